// WriteFileAtomically: a file that is either complete or as it was.
#ifndef HBMPROF_SRC_BASE_ATOMIC_FILE_H_
#define HBMPROF_SRC_BASE_ATOMIC_FILE_H_

#include <string_view>

#include "absl/status/status.h"

namespace hbmprof::internal {

// Makes `bytes` the contents of the file at `path`: written to an unnamed or a temporary file in the same directory,
// synced, then renamed over `path`. A reader sees the old file or the new one, also when the process is killed or the
// machine stops. A symbolic link is followed. A write beyond the process's file size limit is an error here, not a
// SIGXFSZ.
//
// Errors name the path, the step and the system's reason: kInvalidArgument (empty path, or something that is not a
// regular file), kNotFound (no such directory), kPermissionDenied, kResourceExhausted (disk, quota, file size or
// descriptor limit), kInternal. On an error `path` is as it was and no temporary file is left. Any thread.
absl::Status WriteFileAtomically(std::string_view path, std::string_view bytes);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_ATOMIC_FILE_H_
