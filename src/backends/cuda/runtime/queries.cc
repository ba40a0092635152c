#include "src/backends/cuda/runtime/queries.h"

namespace hbmprof::internal {

int CurrentCudaDevice() {
  int ordinal = -1;
  return QueryCuda([&] { return cudaGetDevice(&ordinal); }) ? ordinal : -1;
}

}  // namespace hbmprof::internal
