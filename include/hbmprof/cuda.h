// Recorded versions of the CUDA runtime's allocation functions.
//
// Replace cudaMalloc by hbmprof::cuda::Malloc, and so on:
//
//   float* weights = nullptr;
//   cudaError_t error = hbmprof::cuda::Malloc(&weights, bytes);
//   ...
//   error = hbmprof::cuda::Free(weights);
//
// Each function has the signature of the runtime's function of that name (also the typed forms of <cuda_runtime.h>). It
// calls that function exactly once, returns its result, and does not change the runtime's last error. A successful call
// is recorded in Profiler::Default() with the caller's stack. The recorded device is that of the memory for
// stream-ordered calls, and the calling thread's current device for all other calls. Its name is "GPU:<ordinal>". Any
// thread may call them.
//
//   create                             bytes recorded          kind          free with
//   Malloc                             as requested            device        Free
//   MallocManaged                      as requested            managed       Free
//   MallocPitch, Malloc3D              pitch x rows x slices   device        Free
//   MallocHost, HostAlloc              as requested            pinned_host   FreeHost
//   HostRegister                       as requested            pinned_host   HostUnregister
//   MallocAsync, MallocFromPoolAsync   as requested            of the pool*  FreeAsync or Free
//   * device, managed or pinned_host; on a capturing stream: graph.
// Stream-ordered memory has the label allocator=cudaMallocAsync. It belongs to CUDA's pools, and DeviceReset does not
// free it.
//
// This header needs the headers of the CUDA toolkit (version 12 or later). Link hbmprof::cuda, a static
// library (find_package(hbmprof COMPONENTS cuda); there is no pkg-config file), and either the static or the shared
// cudart. Code that is compiled for the per-thread default stream (nvcc's --default-stream per-thread) gets the
// per-thread variants, as with the runtime itself.
//
// Not recorded by these functions: arrays, memory of other processes and APIs, memory nodes of graphs, modules, device
// limits, and what libraries allocate with their own calls. `hbmprof run` records these (docs/cuda.md).
#ifndef HBMPROF_CUDA_H_
#define HBMPROF_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace hbmprof::cuda {

// Linear memory.
[[gnu::noinline]] cudaError_t Malloc(void** ptr, size_t bytes);
[[gnu::noinline]] cudaError_t MallocManaged(void** ptr, size_t bytes, unsigned int flags = cudaMemAttachGlobal);
[[gnu::noinline]] cudaError_t MallocPitch(void** ptr, size_t* pitch, size_t width, size_t height);
[[gnu::noinline]] cudaError_t Malloc3D(cudaPitchedPtr* pitched, cudaExtent extent);
[[gnu::noinline]] cudaError_t Free(void* ptr);

// Host memory, page-locked.
[[gnu::noinline]] cudaError_t MallocHost(void** ptr, size_t bytes);
[[gnu::noinline]] cudaError_t HostAlloc(void** ptr, size_t bytes, unsigned int flags);
[[gnu::noinline]] cudaError_t FreeHost(void* ptr);
[[gnu::noinline]] cudaError_t HostRegister(void* ptr, size_t bytes, unsigned int flags);
[[gnu::noinline]] cudaError_t HostUnregister(void* ptr);

// If the reset succeeds, removes all records of the current device except those of stream-ordered memory.
[[gnu::noinline]] cudaError_t DeviceReset();

// Stream-ordered memory, with the typed forms of <cuda_runtime.h>. Memory that CUDA's pool holds beyond the requested
// bytes counts as unaccounted.
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
inline namespace per_thread_stream {
#endif
[[gnu::noinline]] cudaError_t MallocAsync(void** ptr, size_t bytes, cudaStream_t stream);
[[gnu::noinline]] cudaError_t MallocFromPoolAsync(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream);
[[gnu::noinline]] cudaError_t FreeAsync(void* ptr, cudaStream_t stream);
template <typename T>
[[gnu::always_inline]] inline cudaError_t MallocAsync(T** ptr, size_t bytes, cudaStream_t stream) {
  return MallocAsync(reinterpret_cast<void**>(ptr), bytes, stream);
}
[[gnu::always_inline]] inline cudaError_t MallocAsync(void** ptr, size_t bytes, cudaMemPool_t pool,
                                                      cudaStream_t stream) {
  return MallocFromPoolAsync(ptr, bytes, pool, stream);
}
template <typename T>
[[gnu::always_inline]] inline cudaError_t MallocAsync(T** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return MallocFromPoolAsync(reinterpret_cast<void**>(ptr), bytes, pool, stream);
}
template <typename T>
[[gnu::always_inline]] inline cudaError_t MallocFromPoolAsync(T** ptr, size_t bytes, cudaMemPool_t pool,
                                                              cudaStream_t stream) {
  return MallocFromPoolAsync(reinterpret_cast<void**>(ptr), bytes, pool, stream);
}
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
}  // namespace per_thread_stream
#endif

// The typed forms of the others, as in <cuda_runtime.h>. Always inlined, so that they add no frame.
template <typename T>
[[gnu::always_inline]] inline cudaError_t Malloc(T** ptr, size_t bytes) {
  return Malloc(reinterpret_cast<void**>(ptr), bytes);
}
template <typename T>
[[gnu::always_inline]] inline cudaError_t MallocManaged(T** ptr, size_t bytes,
                                                        unsigned int flags = cudaMemAttachGlobal) {
  return MallocManaged(reinterpret_cast<void**>(ptr), bytes, flags);
}
template <typename T>
[[gnu::always_inline]] inline cudaError_t MallocPitch(T** ptr, size_t* pitch, size_t width, size_t height) {
  return MallocPitch(reinterpret_cast<void**>(ptr), pitch, width, height);
}
[[gnu::always_inline]] inline cudaError_t MallocHost(void** ptr, size_t bytes, unsigned int flags) {
  return HostAlloc(ptr, bytes, flags);
}
template <typename T>
[[gnu::always_inline]] inline cudaError_t MallocHost(T** ptr, size_t bytes, unsigned int flags = 0) {
  return HostAlloc(reinterpret_cast<void**>(ptr), bytes, flags);
}
template <typename T>
[[gnu::always_inline]] inline cudaError_t HostAlloc(T** ptr, size_t bytes, unsigned int flags) {
  return HostAlloc(reinterpret_cast<void**>(ptr), bytes, flags);
}

}  // namespace hbmprof::cuda

#endif  // HBMPROF_CUDA_H_
