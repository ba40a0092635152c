// The profiler and the tables that the tracked forms of the runtime's calls share.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_LINKED_CALLS_H_
#define HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_LINKED_CALLS_H_

#include <cstddef>

#include "hbmprof/allocation.h"
#include "hbmprof/profiler.h"
#include "src/backends/cuda/shared/adapter.h"

namespace hbmprof::internal {

// Never destroyed, because handles can be closed during static destruction.
struct CudaLinkedCalls {
  Profiler& profiler = Profiler::Default();
  SharedOpenings ipc_openings;

  // Returns the one instance, which is made at the first use. Returns null if the host has no memory for it; see
  // MadeTracker.
  static CudaLinkedCalls* Instance();
};

// Reports a call by `caller` that has failed because there is no memory (hbmprof/out_of_memory.h), on the device
// `ordinal`; -1: the device is not known. Does nothing if the injected library is in this process, because that library
// has already reported the driver's call.
void ReportCudaOutOfMemory(const Caller& caller, const char* call, size_t bytes, int ordinal, MemoryKind kind);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_LINKED_CALLS_H_
