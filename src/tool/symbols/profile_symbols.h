// Adds what debug information says to the addresses of a profile.
#ifndef HBMPROF_SRC_TOOL_SYMBOLS_PROFILE_SYMBOLS_H_
#define HBMPROF_SRC_TOOL_SYMBOLS_PROFILE_SYMBOLS_H_

#include "src/tool/profile/profile.h"
#include "src/tool/symbols/debug_info.h"

namespace hbmprof::tool {

// A module of a profile: the locations in it, and the frames found for them.
struct ProfileModule {
  std::string path;
  std::string build_id;
  std::vector<pprof::Location*> locations;
  std::vector<std::vector<SourceFrame>> frames;  // by location; empty if no file was found
  std::string file;                              // the file with the symbols; "" if none was found
  std::string problem;                           // why no file was found
  bool has_dwarf = false;

  int64_t found() const {
    return absl::c_count_if(frames, [](const auto& of_location) { return !of_location.empty(); });
  }
};

// Returns the modules whose code the profile has, by build id, or by path if they have none.
std::map<std::pair<std::string, std::string>, ProfileModule> ModulesOf(RawProfile& profile);

// Finds the frames of the module's locations. Thread-safe for different modules.
void FindFrames(const DebugFiles& debug_files, const pprof::Profile& profile, ProfileModule& module);

// Replaces the lines of the locations for which frames were found. Functions that no line names any more stay in the
// profile.
void WriteFrames(const std::vector<ProfileModule*>& modules, pprof::Profile& profile);

// Adds the file and the line to each function that lacks them, if it is the program's own code (OwnerOf), and its
// binary is on this machine, with the same build id, with debug information, and not too large to be read at once.
// Neither names nor inlined calls are added: a profile whose binary is gone has the same functions. What was found is
// kept for the next profile. Thread-safe.
void AddLines(RawProfile& profile);

// Parses and combines profiles that are in memory, with AddLines. Thread-safe. Errors: those of ParseProfile and of
// ProfileSet::ReadEach.
absl::StatusOr<ProfileSet> ParseWithLines(const std::vector<ProfileBytes>& profiles);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SYMBOLS_PROFILE_SYMBOLS_H_
