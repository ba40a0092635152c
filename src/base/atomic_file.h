// WriteFileAtomically: replaces a file in one step, so that a reader sees either the old or the complete new file at
// any time. FileOutput: the file while its parts are written.
#ifndef HBMPROF_SRC_BASE_ATOMIC_FILE_H_
#define HBMPROF_SRC_BASE_ATOMIC_FILE_H_

#include <sys/types.h>
#include <time.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "src/base/descriptor.h"

namespace hbmprof::internal {

// Identifies a file and its last modification. The default value means that there is no file.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  timespec modified = {};

  bool exists() const { return inode != 0; }
  friend bool operator==(const FileIdentity& a, const FileIdentity& b) {
    return a.device == b.device && a.inode == b.inode && a.modified.tv_sec == b.modified.tv_sec &&
           a.modified.tv_nsec == b.modified.tv_nsec;
  }
};

// The permissions of a new file. A file that is replaced keeps its permissions.
struct NewFileMode {
  mode_t bits = 0600;
  bool less_umask = false;
};
struct FileRules {
  NewFileMode mode;
  // If true: the write fails with kAlreadyExists if any file, directory or link has this name.
  bool must_be_new = false;
  // If set: the write fails with kAlreadyExists if there is a file to replace and it is not this one.
  std::optional<FileIdentity> only_over;
  // If not null: `*written` is set to the identity of the written file, and `*keep_open` to its descriptor, which is
  // open for writing.
  FileIdentity* written = nullptr;
  FileDescriptor* keep_open = nullptr;
};

// The rules for files that the command writes for its user.
inline constexpr FileRules kAsAnyCommand{{0666, true}, false, std::nullopt, nullptr, nullptr};

// Writes `bytes` to a new file in the directory of `path` with a temporary name, ".hbmprof.N.tmp", syncs it, and
// renames it to `path`. If there is a file, the new one replaces it and gets its permission bits, and its owner and
// group if the process has the privilege. A reader sees either the old or the new file, also if the process is killed
// or the machine stops. If the process is killed meanwhile, the next call for any file in the directory removes the
// temporary file. A write beyond the process's file size limit is an error and raises no SIGXFSZ.
//
// A symbolic link is not followed: it is not a regular file. In a directory that has the sticky bit and that anyone may
// write to, such as /tmp, a file is replaced only if it belongs to the user of this process or to the owner of the
// directory.
//
// Errors name the path, the step and the system's reason: kInvalidArgument (no file name, or not a regular file),
// kNotFound (no such directory), kPermissionDenied, kAlreadyExists (`rules`), kResourceExhausted (disk, quota, file
// size or descriptor limit), kInternal. After an error `path` is unchanged and there is no temporary file. Throws only
// std::bad_alloc. Any thread may call it.
absl::Status WriteFileAtomically(std::string_view path, std::string_view bytes, const FileRules& rules = {});

// A file that is being written in parts. At most 64 KiB are kept in memory until they are written.
// After an error, all further calls return the same error. One thread at a time.
class FileOutput {
 public:
  // `path` is used in messages. Takes no ownership of `fd`, an empty file.
  FileOutput(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  FileOutput(const FileOutput&) = delete;
  FileOutput& operator=(const FileOutput&) = delete;

  absl::Status Append(std::string_view bytes);
  // Replaces bytes that were appended before.
  absl::Status Overwrite(int64_t offset, std::string_view bytes);
  // Writes the bytes that are in memory.
  absl::Status Flush();
  // Bytes appended so far.
  int64_t size() const { return written_ + static_cast<int64_t>(buffer_.size()); }

 private:
  const int fd_;
  const std::string path_;
  int64_t written_ = 0;
  std::string buffer_;
  absl::Status status_;
};

// The same as WriteFileAtomically, for a file that is too large for memory: `write` appends its bytes. An error of
// `write` is returned, and `path` is unchanged.
absl::Status WriteFileAtomically(std::string_view path, const std::function<absl::Status(FileOutput&)>& write,
                                 const FileRules& rules = {});

// Returns the identity of the file at `path`, with links followed; the default value if there is none or stat fails.
FileIdentity IdentityOf(std::string_view path);

// Returns the error of these functions for a system call that failed with the errno value `error`. `step` is its name
// in the message, such as "write".
absl::Status WriteFailure(const std::string& path, const char* step, int error);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_ATOMIC_FILE_H_
