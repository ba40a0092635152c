#include "src/tool/util/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kBase = size_t{1} << 30;
constexpr size_t kPerInputByte = 100;

constexpr char kVariable[] = "HBMPROF_TOOL_MEMORY";

bool enforced = false;
std::atomic<size_t> input{0};
std::string command;

int64_t VariableBytes() {
  int64_t bytes = 0;
  const char* variable = std::getenv(kVariable);
  return variable != nullptr && ParseBytes(variable, &bytes) ? bytes : 0;
}

// RLIMIT_DATA counts all private writable memory.
void Apply() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  static std::mutex mutex;  // so that the last limit that is set counts all input
  const std::lock_guard<std::mutex> lock(mutex);
  rlimit limit;
  if (!enforced || getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(MemoryFor(input), limit.rlim_max);
  setrlimit(RLIMIT_DATA, &limit);
#endif
}

}  // namespace

absl::Status CheckMemoryVariable() {
  const char* variable = std::getenv(kVariable);
  if (variable == nullptr || *variable == '\0' || VariableBytes() > 0) return absl::OkStatus();
  return InvalidArgument(kVariable, "=", variable, ": write a size such as 8GiB");
}

size_t MemoryFor(size_t input_bytes) {
  const int64_t bytes = VariableBytes();
  return bytes > 0 ? static_cast<size_t>(bytes) : kBase + input_bytes * kPerInputByte;
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
    // The limit, or the machine has no more memory. A recording has no input: it is not read into memory.
    PrintError(command, Cat("needs more memory than ", Bytes(static_cast<int64_t>(MemoryFor(input))), ", the limit",
                            input == 0 ? "" : Cat(" for ", Bytes(static_cast<int64_t>(input)), " of input"),
                            "; HBMPROF_TOOL_MEMORY=8GiB in the environment sets another limit"));
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
