// The files of profiles. Their names come from patterns; a file of another process is not replaced.
#ifndef HBMPROF_SRC_API_OUTPUT_OUTPUT_FILE_H_
#define HBMPROF_SRC_API_OUTPUT_OUTPUT_FILE_H_

#include <sys/types.h>

#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "src/api/output/output_path.h"
#include "src/base/atomic_file.h"

namespace hbmprof::internal {

// Writes `bytes` to the file that `pattern` (output_path.h) names, and sets `*path` to its name. If the pattern has
// "%n" or `must_be_new` is true, it makes a new file; otherwise an existing file is replaced. `mode` is the permissions
// of a new file. Any thread may call it. Errors: those of WriteFileAtomically.
absl::Status WriteToPattern(std::string_view pattern, mode_t mode, bool must_be_new, std::string_view bytes,
                            std::string* path);

// The output file of one process, which may be written several times. A file is replaced only if this process wrote it,
// or if the pattern has neither "%p" nor "%n" and the file is the same as when the process started. Otherwise a number
// for which there is no file is put before ".pb.gz", and a line on standard error says so. Thread-safe.
class OutputFile {
 public:
  // `pattern` and `mode` as for WriteToPattern.
  OutputFile(std::string_view pattern, mode_t mode);
  // Returns a new object with the same pattern for the calling process, which is a forked child of this object's
  // process. The caller owns it.
  OutputFile* NewForChild() const;

  pid_t process() const { return process_; }

  // Writes the file, and sets `*path` to its name. After a call with `is_last`, another call without it writes nothing,
  // because its profile is older. Errors: those of WriteFileAtomically.
  absl::Status Write(std::string_view bytes, bool is_last, std::string* path);

 private:
  OutputFile(const OutputFile& parent, pid_t process);

  // With `mutex_`.
  absl::Status WriteFile(std::string_view bytes);

  const OutputPattern pattern_;
  const mode_t mode_;
  const pid_t process_;
  const FileIdentity at_start_;  // of the file, if the pattern has neither "%p" nor "%n"
  // Held while a file is written, which can take long. No event and no snapshot may wait for it. It is no Section
  // (fork.h): a forked child must use neither it nor what it protects, since a thread of the parent may have held it.
  std::mutex mutex_;
  bool has_last_ = false;  // protected by mutex_, as are those below
  std::string own_path_;   // the file that was written last
  FileIdentity own_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_OUTPUT_FILE_H_
