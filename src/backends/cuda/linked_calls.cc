#include "src/backends/cuda/linked_calls.h"

#include <memory>

#include "src/backends/cuda/made_tracker.h"

namespace hbmprof::internal {

CudaLinkedCalls* CudaLinkedCalls::Instance() {
  static MadeTracker<CudaLinkedCalls> made;
  return made.Get([] { return std::make_unique<CudaLinkedCalls>(); });
}

}  // namespace hbmprof::internal
