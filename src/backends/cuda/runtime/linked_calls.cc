#include "src/backends/cuda/runtime/linked_calls.h"

#include <dlfcn.h>

#include <atomic>
#include <string>

#include "hbmprof/out_of_memory.h"
#include "src/backends/cuda/driver/driver_queries.h"
#include "src/base/fork.h"
#include "src/base/linker_error.h"
#include "src/base/message.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {
namespace {

// Whether the program was started with the injected library, which then reports failures of the driver. Not a static
// local with an initializer: the guard would be held while dlsym takes the dynamic linker's lock. Threads that call it
// at the same time store the same value.
bool IsInjected() {
  enum Answer { kUnknown, kNo, kYes };
  static std::atomic<Answer> known{kUnknown};
  Answer answer = known.load(std::memory_order_relaxed);
  if (answer == kUnknown) {
    answer = dlsym(RTLD_DEFAULT, "hbmprof_injected_version") != nullptr ? kYes : kNo;
    if (answer == kNo) ClearLinkerError();
    known.store(answer, std::memory_order_relaxed);
  }
  return answer == kYes;
}

}  // namespace

Profiler* LinkedProfiler() {
  Profiler* profiler = nullptr;
  return BeginEvent() && TryRun([&] { profiler = &Profiler::Default(); }) ? profiler : nullptr;
}

void ReportCudaOutOfMemory(const char* call, size_t bytes, MemoryKind kind) {
  if (IsInjected()) return;
  const bool is_reported = TryRun([&] {
    const int ordinal = CudaDriverInProcess().CurrentDevice();
    const std::string device = ordinal < 0 ? "unknown" : CudaDeviceName(ordinal);
    CudaDeviceId(ordinal);  // sets the probe of the device if this is its first allocation
    ReportOutOfMemory({call, bytes, device, SpaceOf(kind)});
  });
  if (!is_reported) PrintMessage("hbmprof: out of device memory, and the host has no memory to report it");
}

}  // namespace hbmprof::internal
