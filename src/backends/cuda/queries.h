// Queries to the CUDA runtime. They do not change the last-error state, the current device or the set of initialized
// devices. Queries that would initialize a device are made to the driver instead (driver_queries.h).
//
// Not in this file: allocation calls (runtime.cc, runtime_stream.cc), recording (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_

#include <cuda_runtime_api.h>

#include "src/backends/cuda/driver_queries.h"

namespace hbmprof::internal {

// Calls `query` and returns whether it succeeded. If the query sets the last-error state, this function clears it, so
// that the program does not see that error.
template <typename Query>
bool QueryCuda(const Query& query) {
  const cudaError_t before = cudaPeekAtLastError();
  if (query() == cudaSuccess) return true;
  if (before == cudaSuccess) static_cast<void>(cudaGetLastError());
  return false;
}

// Returns the ordinal of the thread's current device; -1 if CUDA does not report it.
int CurrentCudaDevice();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_
