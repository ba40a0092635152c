// See memory_limit.h.
#include "src/tool/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "src/tool/command.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kBase = size_t{1} << 30;
constexpr size_t kPerInputByte = 100;

bool enforced = false;
size_t input = 0;
std::string command;

// RLIMIT_DATA counts all private writable memory.
void Apply() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  rlimit limit;
  if (!enforced || getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(MemoryFor(input), limit.rlim_max);
  setrlimit(RLIMIT_DATA, &limit);
#endif
}

// Returns the message for an allocation that failed because of the limit or because the machine has no more memory.
std::string OutOfMemoryMessage() {
  return Cat("needs more memory than ", FormatValue(static_cast<int64_t>(MemoryFor(input)), "bytes"),
             ", the limit for ", FormatValue(static_cast<int64_t>(input), "bytes"),
             " of profiles; HBMPROF_TOOL_MEMORY=8GiB in the environment sets another limit");
}

}  // namespace

size_t MemoryFor(size_t input_bytes) {
  int64_t wished = 0;
  const char* variable = std::getenv("HBMPROF_TOOL_MEMORY");
  if (variable != nullptr && ParseBytes(variable, &wished) && wished > 0) return static_cast<size_t>(wished);
  return kBase + input_bytes * kPerInputByte;
}

void EnforceMemoryLimit(const std::string& name) {
  enforced = true;
  command = name;
  // This does not throw an exception, because destructors can allocate too, for example that of a JSON value.
  std::set_new_handler([] {
    if (rlimit limit; getrlimit(RLIMIT_DATA, &limit) == 0) {
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_DATA, &limit);
    }
    PrintError(command, OutOfMemoryMessage());
    std::fflush(stdout);
    _exit(kUnusable);
  });
  Apply();
}

void CountInput(size_t bytes) {
  input += bytes;
  Apply();
}

}  // namespace hbmprof::tool
