// The files of profiles. Their names come from patterns; a file of another process is not replaced.
#ifndef HBMPROF_SRC_API_OUTPUT_OUTPUT_FILE_H_
#define HBMPROF_SRC_API_OUTPUT_OUTPUT_FILE_H_

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "src/base/atomic_file.h"

namespace hbmprof::internal {

// A path in which "%p" is replaced by the process id, "%n" by a number and "%%" by a percent sign. Any other percent
// sign is kept.
class OutputPattern {
 public:
  explicit OutputPattern(std::string_view pattern);

  // Returns the path with `number` for "%n".
  std::string Path(int number) const;

  bool has_process() const { return has_process_; }
  bool has_number() const { return has_number_; }

 private:
  const std::string pattern_;
  bool has_process_ = false;
  bool has_number_ = false;
};

// Returns 0, 1, 2, ...: the next number at each call in the process. Any thread may call it.
int NextOutputNumber();

// Puts a text before ".pb.gz", or at the end of a path without that ending: "/d/a.pb.gz" and ".2" give "/d/a.2.pb.gz".
std::string BeforeEnding(std::string_view path, std::string_view text);

// Returns the path of the recording beside a profile: "/d/a.hbmrec" for "/d/a.pb.gz".
std::string RecordingBeside(std::string_view profile);

// Calls use(path, attempt) with the path of `pattern`, and returns its result. If `must_be_new` is true and use()
// returns kAlreadyExists, calls it again with the next path, up to a million times: with the next number for "%n", or
// with ".1", ".2", ... before the ending.
absl::Status WithFreeName(const OutputPattern& pattern, bool must_be_new,
                          const std::function<absl::Status(const std::string& path, int attempt)>& use);

// Returns kAlreadyExists if there is a file, a directory or a link of this name, else OK.
absl::Status CheckIsNew(const std::string& path);

// Writes `bytes` to the file that `pattern` (OutputPattern) names, and sets `*path` to its name. If the pattern has
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
