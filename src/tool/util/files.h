// Reads whole files, and writes the result of a subcommand.
#ifndef HBMPROF_SRC_TOOL_UTIL_FILES_H_
#define HBMPROF_SRC_TOOL_UTIL_FILES_H_

#include "src/base/atomic_file.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Returns whether the value of an option -o means standard output: "-", or "" if the option was not given.
bool IsStandardOutput(const std::string& path);

// Writes a result to the value of an option -o: to standard output, or to the file `path`, which is replaced in one
// step. A device such as /dev/null or a named pipe is opened and written instead. `write` appends the bytes; it may be
// called twice (WriteFileAtomically). On a pipe it cannot overwrite them. Errors: those of `write` and of
// WriteFileAtomically.
absl::Status WriteOutput(const std::string& path, const std::function<absl::Status(internal::FileOutput&)>& write);
absl::Status WriteOutput(const std::string& path, std::string_view bytes);

// Returns kInvalidArgument if the value `path` of an option -o is one of the files `inputs`, also under another name
// (a link). Call it before the work, whose result would replace the input.
absl::Status CheckIsNoInput(const std::string& path, const std::vector<std::string>& inputs);

// Returns the contents of the file `path` of at most 1 GiB; "-" is standard input. Errors: kNotFound,
// kPermissionDenied, kInvalidArgument (a directory), kResourceExhausted (too large), kInternal.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_FILES_H_
