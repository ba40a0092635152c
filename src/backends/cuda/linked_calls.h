// What the tracked forms of the runtime's calls share: the profiler and their tables.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_LINKED_CALLS_H_
#define HBMPROF_SRC_BACKENDS_CUDA_LINKED_CALLS_H_

#include "hbmprof/profiler.h"
#include "src/backends/cuda/adapter.h"

namespace hbmprof::internal {

// Never destroyed: handles may be closed during static destruction.
struct CudaLinkedCalls {
  Profiler& profiler = Profiler::Default();
  SharedOpenings ipc_openings;
  CudaDeviceResets resets;

  // Made on first use. Null while the host has no memory for it; the calls that are made then are counted as dropped
  // later.
  static CudaLinkedCalls* Instance();
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_LINKED_CALLS_H_
