// WriteFileAtomically: a file that is either complete or as it was. Also WriteInPlace, for when no file can be opened
// any more.
#ifndef HBMPROF_SRC_BASE_ATOMIC_FILE_H_
#define HBMPROF_SRC_BASE_ATOMIC_FILE_H_

#include <sys/types.h>
#include <time.h>

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "src/base/descriptor.h"

namespace hbmprof::internal {

// Which file has a name, and since when it is unchanged. The default one stands for no file.
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

// The permissions of a file that is not there yet. One that is replaced keeps its own.
struct NewFileMode {
  mode_t bits = 0600;
  bool less_umask = false;
};
struct FileRules {
  NewFileMode mode;
  // Fails with kAlreadyExists if there is anything of that name, also a link. No link is followed.
  bool must_be_new = false;
  // Fails with kAlreadyExists if the file that is to be replaced is not this one.
  std::optional<FileIdentity> only_over;
  // If not null: get the identity of the file that was written, and the file itself, open for writing.
  FileIdentity* written = nullptr;
  FileDescriptor* keep_open = nullptr;
};

// For what a command writes for its user.
inline constexpr FileRules kAsAnyCommand{{0666, true}, false, std::nullopt, nullptr, nullptr};

// Makes `bytes` the contents of the file at `path`: written to a file in the same directory that has no name, synced,
// then linked to `path`. A file that is there is replaced by a rename from the temporary name ".hbmprof.N.tmp"; its
// permission bits are kept, and its owner and group where the process may give files away. A reader sees the old file
// or the new one, also when the process is killed or the machine stops. If it is killed while the temporary name exists
// (only where a file is replaced, or the file system has no files without a name), the next call for any file in the
// directory removes it. A write beyond the process's file size limit is an error, not a SIGXFSZ.
//
// Symbolic links are followed. In a directory with the sticky bit that anyone may write to, such as /tmp, neither a
// link is followed nor a file replaced that belongs to another user than this process's or the directory's (whatever
// fs.protected_symlinks says).
//
// Errors name the path, the step and the system's reason: kInvalidArgument (no file name, or something that is not a
// regular file), kNotFound (no such directory), kPermissionDenied, kAlreadyExists (`rules`), kResourceExhausted (disk,
// quota, file size or descriptor limit), kInternal. On an error `path` is as it was and no temporary file is left.
// Throws std::bad_alloc only. Any thread.
absl::Status WriteFileAtomically(std::string_view path, std::string_view bytes, const FileRules& rules = {});

// Writes `bytes` to `fd`, an empty file that WriteFileAtomically has kept open as `identity`. Calls fstat and write,
// and nothing else of the system; so the file is neither atomic nor synced. Errors: kFailedPrecondition if `fd` is not
// that file any more, the file has no name any more, or is not empty; else as WriteFileAtomically, and the file is
// empty again if it can be cut. `path` is for the message.
absl::Status WriteInPlace(int fd, const FileIdentity& identity, std::string_view path, std::string_view bytes);

// The file at `path`, links followed; the default one if there is none or it cannot be told.
FileIdentity IdentityOf(std::string_view path);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_ATOMIC_FILE_H_
