// A limit on the memory for reading profiles, in proportion to the size of the files. A crafted file cannot exhaust the
// machine's memory: the command ends with a message instead.
#ifndef HBMPROF_SRC_TOOL_UTIL_MEMORY_LIMIT_H_
#define HBMPROF_SRC_TOOL_UTIL_MEMORY_LIMIT_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// Returns kInvalidArgument if $HBMPROF_TOOL_MEMORY is set and neither empty nor a size. Every command that reads
// profiles checks this first.
absl::Status CheckMemoryVariable();

// Returns the limit in bytes for files that have `input_bytes` bytes on disk together: $HBMPROF_TOOL_MEMORY ("8GiB") if
// it is a size, else 1 GiB plus 100 times `input_bytes`.
size_t MemoryFor(size_t input_bytes);

// Limits the memory of this process to MemoryFor(the size of all files that it reads). An allocation beyond the limit
// ends the process with an error message of the subcommand `name` and kUnusable. Call it only in processes that only
// read profiles, because child processes inherit the limit. Has no effect under a sanitizer, whose own memory would
// count.
void EnforceMemoryLimit(const std::string& name);

// Adds the size of a file that was read, or what is missing to the least input of a compressed file. Thread-safe.
void CountInput(size_t bytes);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_MEMORY_LIMIT_H_
