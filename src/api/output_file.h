// Where profiles go: files named by a pattern, of which none replaces another process's.
#ifndef HBMPROF_SRC_API_OUTPUT_FILE_H_
#define HBMPROF_SRC_API_OUTPUT_FILE_H_

#include <sys/types.h>

#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "src/api/output_path.h"
#include "src/base/atomic_file.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

// Writes to the file that `pattern` names. With "%n" that is a new file, of the next number that is free; else a file
// of that name is replaced. `mode`: of a new file. `path`, if not null, gets the name of the file. Errors:
// WriteFileAtomically. Any thread.
absl::Status WriteToPattern(std::string_view pattern, mode_t mode, std::string_view bytes, std::string* path = nullptr);

// The output of one process, which is written again and again. A file is replaced only if this process wrote it, or if
// the name has neither "%p" nor "%n" and the file is the same as when the process started. Otherwise the next free
// number goes before ".pb.gz", and a line on standard error says so.
class OutputFile {
 public:
  // `pattern` as in WriteToPattern.
  OutputFile(std::string_view pattern, mode_t mode);
  // The one of a forked child, whose parent has this one.
  OutputFile* NewForChild() const;

  pid_t process() const { return process_; }

  // Makes the file now, empty, and keeps it open for WriteLast.
  absl::Status OpenEarly();
  bool is_early() const { return early_.get() >= 0; }

  absl::Status Write(std::string_view bytes);
  // The same, into the file that OpenEarly made if there is one.
  absl::Status WriteLast(std::string_view bytes);

  // What to add to an error's message: what can be done about it. "" if nothing is known.
  const char* Advice(const absl::Status& status) const;

 private:
  OutputFile(const OutputFile& parent, pid_t process);

  absl::Status WriteFile(std::string_view bytes, FileDescriptor* keep_open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const OutputPattern pattern_;
  const mode_t mode_;
  const pid_t process_;
  const FileIdentity at_start_;  // of a name without fields
  const bool was_writable_;      // its directory, at the start
  FileDescriptor early_;         // set before other threads know this object
  Mutex mutex_;
  std::string own_path_ ABSL_GUARDED_BY(mutex_);  // what was written last
  FileIdentity own_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_FILE_H_
