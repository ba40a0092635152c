// The tracked stream-ordered calls of a program that is built for the per-thread default stream.
#ifndef HBMPROF_TESTS_BACKENDS_CUDA_PER_THREAD_CALLS_H_
#define HBMPROF_TESTS_BACKENDS_CUDA_PER_THREAD_CALLS_H_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace hbmprof {

cudaError_t PerThreadMallocAsync(void** ptr, size_t bytes, cudaStream_t stream);
cudaError_t PerThreadMallocFromPoolAsync(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream);
cudaError_t PerThreadFreeAsync(void* ptr, cudaStream_t stream);

}  // namespace hbmprof

#endif  // HBMPROF_TESTS_BACKENDS_CUDA_PER_THREAD_CALLS_H_
