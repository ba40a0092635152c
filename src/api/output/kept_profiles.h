// Profiles that hbmprof writes by itself while the process runs: of failed allocations and of triggers. The oldest ones
// are removed.
#ifndef HBMPROF_SRC_API_OUTPUT_KEPT_PROFILES_H_
#define HBMPROF_SRC_API_OUTPUT_KEPT_PROFILES_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "hbmprof/options.h"
#include "src/base/atomic_file.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

// The profiles of one process with one pattern. Thread-safe.
class KeptProfiles {
 public:
  struct Files {
    std::string path;    // of the profile
    std::string flight;  // of the recording beside it; "" if there is none
  };
  // Writes the profile `bytes` to `pattern` (output_path.h), and beside it a recording if the flight recorder is on. If
  // the pattern has "%n", then removes the oldest profiles beyond options.dump_keep and options.dump_keep_bytes, with
  // their recordings, unless their files were replaced. Errors: those of WriteFileAtomically; kResourceExhausted if
  // less than 64 MiB of the file system would remain free, or if the profile is larger than options.dump_keep_bytes. If
  // only the recording would exceed one of these limits, prints a message and removes the recording. Throws
  // std::bad_alloc.
  absl::StatusOr<Files> Write(const std::string& bytes, const std::string& pattern, const DefaultOptions& options);

 private:
  struct Profile {
    Files files;
    FileIdentity identity;         // of the profile
    FileIdentity flight_identity;  // of the recording
    int64_t bytes;                 // of both
  };

  void Keep(Profile profile, const DefaultOptions& options);

  Mutex mutex_;
  std::deque<Profile> profiles_ ABSL_GUARDED_BY(mutex_);  // oldest first
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;             // their sum
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_KEPT_PROFILES_H_
