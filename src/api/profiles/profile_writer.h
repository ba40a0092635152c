// WriteProfile: writes the file of each profile of the process, with the recording that belongs beside it.
#ifndef HBMPROF_SRC_API_PROFILES_PROFILE_WRITER_H_
#define HBMPROF_SRC_API_PROFILES_PROFILE_WRITER_H_

#include <array>
#include <cstddef>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "src/api/output/output_file.h"
#include "src/base/atomic_file.h"

namespace hbmprof::internal {

struct ProfileFiles {
  std::string path;    // of the profile
  std::string flight;  // of the recording beside it; "" if there is none
};

// Profiles that hbmprof writes by itself while the process runs: those of failed allocations, or those of triggers. The
// oldest ones are removed. Used by one thread at a time.
class KeptProfiles {
 public:
  // Adds a profile. Removes the oldest ones beyond `most`, with their recordings, unless their files were replaced.
  void Add(const ProfileFiles& files, size_t most);

 private:
  struct File {
    std::string path;
    FileIdentity identity;
  };
  std::deque<std::array<File, 2>> profiles_;  // oldest first, each with its recording
};

// Where a profile is written: either to the name that `pattern` gives, or to `file`.
struct ProfilePlace {
  bool has_flight = true;  // whether a recording of the flight recorder goes beside it, if that is on

  std::string pattern;           // output_file.h
  bool must_be_new = false;      // as in WriteToPattern
  bool leaves_space = false;     // whether 64 MiB of the disk must remain free
  KeptProfiles* kept = nullptr;  // not null: `leaves_space`, and if `pattern` has "%n", the profile is added to these,
                                 // of which DefaultOptions::dump_keep are kept

  OutputFile* file = nullptr;  // the output file of the process; `pattern` is then its own, for `leaves_space`
  bool is_last = false;        // as in OutputFile::Write
};

// Writes the profile `bytes`, and returns the names of its files. A new file has the permissions
// DefaultOptions::output_mode. Errors: that of `bytes`; those of WriteFileAtomically; kResourceExhausted if
// `leaves_space` and less than 64 MiB of the file system would remain free. If only the recording would exceed that
// limit, prints a message and removes the recording. Throws std::bad_alloc.
absl::StatusOr<ProfileFiles> WriteProfile(const absl::StatusOr<std::string>& bytes, const ProfilePlace& place);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_PROFILES_PROFILE_WRITER_H_
