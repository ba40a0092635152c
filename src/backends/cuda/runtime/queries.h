// Queries to the CUDA runtime. They do not change the current device or the set of initialized devices. They do not
// change the last-error state, unless an error is pending and a query fails (QueryCuda). Queries that would initialize
// a device are made to the driver instead (driver_queries.h).
//
// Not in this file: allocation calls (runtime.cc, runtime_stream.cc), recording (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_QUERIES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_QUERIES_H_

#include <cuda_runtime_api.h>

#include "src/backends/cuda/driver/driver_queries.h"

namespace hbmprof::internal {

// Calls `query` and returns whether it succeeded. If no error is pending, this function clears the error of a query
// that fails, so that the program does not see it. If an error is pending, it is replaced by that of a query that
// fails: the runtime has no function that sets the last error.
template <typename Query>
bool QueryCuda(const Query& query) {
  const cudaError_t before = cudaPeekAtLastError();
  if (query() == cudaSuccess) return true;
  if (before == cudaSuccess) static_cast<void>(cudaGetLastError());
  return false;
}

// Returns the ordinal of the thread's current device; -1 if CUDA does not report it.
inline int CurrentCudaDevice() {
  int ordinal = -1;
  return QueryCuda([&] { return cudaGetDevice(&ordinal); }) ? ordinal : -1;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_QUERIES_H_
