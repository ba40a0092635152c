// Recorded versions of the CUDA runtime's allocation functions; CudaAllocator: CUDA memory as a DeviceAllocator.
//
// Replace cudaMalloc by hbmprof::cuda::Malloc, and so on:
//
//   float* weights = nullptr;
//   cudaError_t error = hbmprof::cuda::Malloc(&weights, bytes);
//   ...
//   error = hbmprof::cuda::Free(weights);
//
// Each function has the signature of the runtime's function of that name (also the typed forms of <cuda_runtime.h>). It
// calls that function exactly once and returns its result. It does not change the runtime's last error, with one
// exception: if an error is pending and a query of hbmprof to the runtime fails, the pending error is replaced by that
// of the query. A successful call is recorded in Profiler::Default() with the caller's stack. The recorded device is
// the pool's device for device memory from MallocFromPoolAsync, the stream's device for all other stream-ordered calls,
// and the calling thread's current device for all other calls. Its name is "GPU:<ordinal>". Any thread may call them.
//
//   create                                    bytes recorded              kind           free with
//   Malloc                                    as requested                device         Free
//   MallocManaged                             as requested                managed        Free
//   MallocPitch, Malloc3D                     pitch x rows x slices       device         Free
//   MallocHost, HostAlloc                     as requested                pinned_host    FreeHost
//   HostRegister                              as requested                pinned_host    HostUnregister
//   MallocAsync, MallocFromPoolAsync          as requested                device*        FreeAsync or Free
//   MemPoolImportPointer                      as the driver reports       external       FreeAsync or Free
//   MallocArray, Malloc3DArray                texels x texel (estimate)   array          FreeArray
//   MallocMipmappedArray                      all levels (estimate)       array          FreeMipmappedArray
//   IpcOpenMemHandle                          as the driver reports, once external       IpcCloseMemHandle (the last)
//   ImportExternalMemory                      as described                external       DestroyExternalMemory
//   ExternalMemoryGetMappedBuffer             0: a view                   alias          Free
//   ExternalMemoryGetMappedMipmappedArray     0: a view                   alias          FreeMipmappedArray
//   * MallocAsync on a capturing stream: graph. MallocFromPoolAsync: the kind of the pool.
// Stream-ordered memory has the label allocator=cudaMallocAsync. It belongs to CUDA's pools, and DeviceReset does not
// free it.
//
// This header needs the headers of the CUDA toolkit (version 12 or later). Link hbmprof::cuda, a static
// library (find_package(hbmprof COMPONENTS cuda); there is no pkg-config file), and either the static or the shared
// cudart. Code that is compiled for the per-thread default stream (nvcc's --default-stream per-thread) gets the
// per-thread variants, as with the runtime itself.
//
// Not recorded by these functions: graph memory nodes, modules, device limits, graphics interop, and what libraries
// allocate with their own calls. `hbmprof run` records these (docs/cuda.md).
#ifndef HBMPROF_CUDA_H_
#define HBMPROF_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "hbmprof/device_allocator.h"

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

// Texture memory. CUDA does not report its size: it is computed from the format, without the device's padding. Sparse
// and deferred-mapping arrays have no memory of their own and count as 0 bytes.
[[gnu::noinline]] cudaError_t MallocArray(cudaArray_t* array, const cudaChannelFormatDesc* format, size_t width,
                                          size_t height = 0, unsigned int flags = 0);
[[gnu::noinline]] cudaError_t Malloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* format, cudaExtent extent,
                                            unsigned int flags = 0);
[[gnu::noinline]] cudaError_t FreeArray(cudaArray_t array);
[[gnu::noinline]] cudaError_t MallocMipmappedArray(cudaMipmappedArray_t* array, const cudaChannelFormatDesc* format,
                                                   cudaExtent extent, unsigned int levels, unsigned int flags = 0);
[[gnu::noinline]] cudaError_t FreeMipmappedArray(cudaMipmappedArray_t array);

// Memory of other processes and APIs. Opening an IPC handle again gives the same address; it counts once.
[[gnu::noinline]] cudaError_t IpcOpenMemHandle(void** ptr, cudaIpcMemHandle_t handle, unsigned int flags);
[[gnu::noinline]] cudaError_t IpcCloseMemHandle(void* ptr);
[[gnu::noinline]] cudaError_t ImportExternalMemory(cudaExternalMemory_t* memory,
                                                   const cudaExternalMemoryHandleDesc* description);
[[gnu::noinline]] cudaError_t ExternalMemoryGetMappedBuffer(void** ptr, cudaExternalMemory_t memory,
                                                            const cudaExternalMemoryBufferDesc* description);
[[gnu::noinline]] cudaError_t ExternalMemoryGetMappedMipmappedArray(
    cudaMipmappedArray_t* array, cudaExternalMemory_t memory, const cudaExternalMemoryMipmappedArrayDesc* description);
[[gnu::noinline]] cudaError_t DestroyExternalMemory(cudaExternalMemory_t memory);
[[gnu::noinline]] cudaError_t MemPoolImportPointer(void** ptr, cudaMemPool_t pool, cudaMemPoolPtrExportData* data);

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

// CUDA memory as a DeviceAllocator. It records nothing itself: wrap it in a TrackingAllocator. Thread-safe.
//
// Each call makes `ordinal` the thread's current device and restores the previous one. (Since CUDA 12, cudaSetDevice
// also initializes the device.) The message of an error has the call, the size, the device and CUDA's error. A call
// that fails clears the error of cudaGetLastError, except for errors that CUDA never clears. Codes: kResourceExhausted
// for cudaErrorMemoryAllocation; kInvalidArgument for an invalid value, device, pointer or stream; kUnimplemented for
// an operation that is not supported; kUnavailable if there is no usable device or driver; kInternal for all other
// errors.
class CudaAllocator : public DeviceAllocator {
 public:
  // `kind` is kDevice (cudaMalloc and cudaMallocAsync), kManaged (cudaMallocManaged) or kPinnedHost (cudaMallocHost).
  // With any other kind each allocation fails with kInvalidArgument. The constructor calls no CUDA function.
  explicit CudaAllocator(int ordinal, MemoryKind kind = MemoryKind::kDevice) : ordinal_(ordinal), kind_(kind) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override;
  absl::Status Free(void* ptr) override;
  // `stream` is a cudaStream_t, converted to an integer. Managed and pinned memory has no stream order: for these kinds
  // the two functions are the same as Allocate and Free.
  absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream) override;
  absl::Status FreeAsync(void* ptr, StreamId stream) override;
  std::string device_name() const override;
  MemoryKind kind() const override { return kind_; }
  // Returns the total memory and the bytes in use: by this process if NVML reports them, else by all processes. It
  // creates no context. No value is known before CUDA is initialized in this process.
  DeviceProbe Probe() const override;

 private:
  const int ordinal_;
  const MemoryKind kind_;
};

}  // namespace hbmprof::cuda

#endif  // HBMPROF_CUDA_H_
