// Reads whole files.
#ifndef HBMPROF_SRC_TOOL_UTIL_READ_FILE_H_
#define HBMPROF_SRC_TOOL_UTIL_READ_FILE_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Returns the contents of the file `path` of at most 1 GiB; "-" is standard input. Errors: kNotFound,
// kPermissionDenied, kInvalidArgument (a directory), kResourceExhausted (too large), kInternal.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_READ_FILE_H_
