#include "src/backends/cuda/linked_calls.h"

#include <memory>
#include <string>

#include "hbmprof/out_of_memory.h"
#include "src/backends/cuda/caller_above.h"
#include "src/backends/cuda/driver_queries.h"
#include "src/backends/cuda/made_tracker.h"
#include "src/base/completes.h"
#include "src/base/message.h"

namespace hbmprof::internal {

CudaLinkedCalls* CudaLinkedCalls::Instance() {
  static MadeTracker<CudaLinkedCalls> made;
  return made.Get([] { return std::make_unique<CudaLinkedCalls>(); });
}

void ReportCudaOutOfMemory(const char* call, size_t bytes, int ordinal, MemoryKind kind) {
  if (CallerAbove::IsInjected()) return;
  const bool is_reported = Completes([&] {
    const std::string device = ordinal < 0 ? "unknown" : CudaDeviceName(ordinal);
    ReportOutOfMemory({call, bytes, device, SpaceOf(kind)});
  });
  if (!is_reported) PrintMessage("hbmprof: out of device memory, and the host has no memory to report it");
}

}  // namespace hbmprof::internal
