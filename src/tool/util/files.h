// Reads whole files, limits the memory for what they hold, and writes the result of a subcommand.
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

// A limit on the memory for reading profiles, in proportion to the size of the files. A crafted file cannot exhaust the
// machine's memory: the command ends with a message instead.
//
// Returns kInvalidArgument if $HBMPROF_TOOL_MEMORY is set and neither empty nor a size. Every command that reads
// profiles checks this first.
absl::Status CheckMemoryVariable();

// Returns the limit in bytes for files that have `input_bytes` bytes on disk together: $HBMPROF_TOOL_MEMORY ("8GiB") if
// it is a size, else 1 GiB plus 100 times `input_bytes`.
size_t MemoryFor(size_t input_bytes);

// Limits the memory of this process to MemoryFor(the size of all files that it reads). An allocation beyond the limit
// ends the process with an error message of the subcommand `name` and kUnusable. Call it only in processes that only
// read profiles. Has no effect under a sanitizer, whose own memory would count.
void EnforceMemoryLimit(const std::string& name);
// Ends the limit. For a child process, which inherits it.
void LiftMemoryLimit();

// Adds the size of a file that was read, or what is missing to the least input of a compressed file. Has no effect
// without EnforceMemoryLimit; after it, only one thread may call it.
void CountInput(size_t bytes);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_FILES_H_
