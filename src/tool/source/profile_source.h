// Where profiles come from. A source on a command line is a file, standard input ("-"), the id or name of a running
// process, or a moment of a recording: "run.hbmrec@peak" (InstantNamed). A snapshot of PyTorch is read as a recording.
#ifndef HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_
#define HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_

#include "src/tool/source/control_client.h"
#include "src/tool/sums/sums_view.h"

namespace hbmprof::tool {

struct SourceParts {
  std::string file;                   // the recording, or the whole source
  std::optional<std::string> moment;  // of the recording
};
// Returns the parts of `source`. It names a moment if there is no such file, but one whose name ends before an "@",
// the last such "@".
SourceParts PartsOf(const std::string& source);
// Returns the files that the sources name, for CheckIsNoInput.
std::vector<std::string> FilesOf(const std::vector<std::string>& sources);

// Returns the process in ControlDirectory() that `source` names by its id or name, or nullopt if `source` names
// something else. A file is preferred to a process of the same name, unless the file is a program. Errors: kNotFound if
// there is neither such a file nor such a process; kInvalidArgument if several processes have the name.
absl::StatusOr<std::optional<LiveProcess>> ProcessOf(const std::string& source);

// Returns the bytes of the profile that `source` names. A recording without a moment is that of LastStateOf;
// what it lacks (GapsOf) is printed as warnings. Errors: those of ReadFile for a file, of QueryProcess for a process,
// and of OpenRecordingFile and InstantNamed for a recording; kNotFound if there is neither such a file nor such a
// process; kInvalidArgument for a URL, and for a recording or a snapshot of PyTorch that is not a regular file.
absl::StatusOr<std::string> ReadSource(const std::string& source);

// Returns the path of a new file of `process`: "hbmprof.NAME.PID" and `suffix`, in the current folder. If this
// file exists, adds a number after the process id.
std::string NewFileOf(const LiveProcess& process, const std::string& suffix);

// Returns the path of a new file in the current folder, for what is made of `source`: its name without folder and
// suffix, and `suffix`, such as "run_peak.pb.gz" of "/data/run.hbmrec@peak". If this file exists, adds a number.
std::string NewFileFor(const std::string& source, const std::string& suffix);

// If `source` is a folder, returns the profiles in it (*.pb.gz), sorted by name; otherwise `source`. Error: kNotFound
// if the folder has none, or cannot be read.
absl::StatusOr<std::vector<std::string>> ProfilesIn(const std::string& source);

// Returns whether `path` is a regular file that begins as a recording does, or as a snapshot of PyTorch.
bool IsRecordingFile(const std::string& path);
// Returns whether `source` is a snapshot of PyTorch, or a moment of one.
bool IsSnapshot(const std::string& source);

// Reads each source once. The sizes count for the memory limit. Errors: those of ReadSource.
absl::StatusOr<std::vector<ProfileBytes>> ReadSources(const std::vector<std::string>& sources);

// Reads the profile of `source`. Its size counts for the memory limit. Errors: those of ReadSource and ParseProfile.
absl::StatusOr<RawProfile> ReadProfile(const std::string& source);

// Reads the profiles and combines them; calls `after_each` when one was read, if it is not null. Shows progress on
// stderr if that is a terminal. Errors: those of ReadProfile and of ProfileSet::ReadEach.
absl::StatusOr<ProfileSet> ReadProfiles(const std::vector<std::string>& sources,
                                        const std::function<void()>& after_each = nullptr);

// Reads the profiles for the subcommand `command`, of those from `first` on keeps the last of each process, and applies
// the options. If `older` is set or --by has kBirthLabel, samples have this label. `after_each`: as for ReadProfiles.
// Errors: those of ReadProfiles, LabelBirths and MakeQuery.
absl::StatusOr<SumsQuery> ReadQuery(const std::string& command, const std::vector<std::string>& sources,
                                    const SumsOptions& options, size_t first = 0,
                                    const std::function<void()>& after_each = nullptr);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_SOURCE_PROFILE_SOURCE_H_
