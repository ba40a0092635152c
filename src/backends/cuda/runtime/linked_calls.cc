#include "src/backends/cuda/runtime/linked_calls.h"

#include <string>

#include "hbmprof/out_of_memory.h"
#include "src/backends/cuda/driver/driver_queries.h"
#include "src/base/fork.h"
#include "src/base/message.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {

Profiler* LinkedProfiler() {
  Profiler* profiler = nullptr;
  return BeginEvent() && TryRun([&] { profiler = &Profiler::Default(); }) ? profiler : nullptr;
}

void ReportCudaOutOfMemory(const Profiler& profiler, const char* call, size_t bytes, MemoryKind kind) {
  if (profiler.uses_injected()) return;
  const bool is_reported = TryRun([&] {
    int ordinal = cuda_driver_in_process.CurrentDevice();
    // The runtime knows the device also if it could not make the context.
    if (ordinal < 0 && cudaGetDevice(&ordinal) != cudaSuccess) ordinal = -1;
    const std::string device = cuda_driver::driver.DeviceName(ordinal);
    cuda_driver_in_process.Device(ordinal);  // sets the probe of the device if this is its first allocation
    ReportOutOfMemory({call, bytes, device, SpaceOf(kind)});
  });
  if (!is_reported) PrintMessage("hbmprof: out of device memory, and the host has no memory to report it");
}

}  // namespace hbmprof::internal
