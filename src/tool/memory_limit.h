// A bound on the memory that reading profiles may take, in proportion to the files: whatever a file was made to do, the
// command ends with a message instead of the machine's memory.
#ifndef HBMPROF_SRC_TOOL_MEMORY_LIMIT_H_
#define HBMPROF_SRC_TOOL_MEMORY_LIMIT_H_

#include <cstddef>
#include <string>

namespace hbmprof::tool {

// What the command may take for files of `input_bytes` in all, as they are on disk, in bytes: 1 GiB and 100 times the
// files, or what $HBMPROF_TOOL_MEMORY says ("8GiB").
size_t MemoryFor(size_t input_bytes);

// From now on the process may take no more than MemoryFor what it reads: an allocation beyond that ends it with an
// error message of the subcommand `name` and kUnusable. For processes that only read profiles; programs that they start
// would inherit the limit. There is no limit under a sanitizer, whose own memory would count.
void EnforceMemoryLimit(const std::string& name);

// Counts a file that was read. Not for use from several threads at once.
void CountInput(size_t bytes);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_MEMORY_LIMIT_H_
