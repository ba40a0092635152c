// OpenRegularFile: opens a file whose path comes from outside, such as a variable of the environment.
#ifndef HBMPROF_SRC_BASE_REGULAR_FILE_H_
#define HBMPROF_SRC_BASE_REGULAR_FILE_H_

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "src/base/descriptor.h"

namespace hbmprof::internal {

// Opens `path` with `flags`, and with O_CLOEXEC, O_NOCTTY and O_NONBLOCK, so that a named pipe without another end does
// not block. Returns a descriptor of a regular file, which is never 0, 1 or 2; -1 with errno set on failure: EISDIR for
// a directory, EINVAL for any other file that is not regular.
inline int OpenRegularFile(const char* path, int flags, mode_t mode = 0) {
  FileDescriptor file(AboveStandard([&] { return open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, mode); }));
  struct stat info;
  if (file.get() < 0 || fstat(file.get(), &info) != 0) return -1;
  if (S_ISREG(info.st_mode)) return file.Release();
  errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
  return -1;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_REGULAR_FILE_H_
