// Questions to the CUDA runtime that leave no trace: the last-error state, the current device and the set of
// initialised devices are the same afterwards. What would initialise a device is asked of the driver
// (driver_queries.h). Not here: allocation calls (runtime.cc, runtime_stream.cc), what is recorded (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_

#include <cuda_runtime_api.h>

#include "src/backends/cuda/driver_queries.h"

namespace hbmprof::internal {

// Calls `query`; returns whether it succeeded. An error it leaves is cleared, so that the program does not find it.
template <typename Query>
bool QueryCuda(const Query& query) {
  const cudaError_t before = cudaPeekAtLastError();
  if (query() == cudaSuccess) return true;
  if (before == cudaSuccess) static_cast<void>(cudaGetLastError());
  return false;
}

// The thread's current device; -1 if CUDA does not say.
int CurrentCudaDevice();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_
