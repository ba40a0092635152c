#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1
#include "tests/backends/cuda_per_thread_calls.h"

#include "hbmprof/cuda.h"

namespace hbmprof {

cudaError_t PerThreadMallocAsync(void** ptr, size_t bytes, cudaStream_t stream) {
  return cuda::MallocAsync(ptr, bytes, stream);
}
cudaError_t PerThreadMallocFromPoolAsync(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return cuda::MallocFromPoolAsync(ptr, bytes, pool, stream);
}
cudaError_t PerThreadFreeAsync(void* ptr, cudaStream_t stream) { return cuda::FreeAsync(ptr, stream); }

}  // namespace hbmprof
