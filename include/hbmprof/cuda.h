// The CUDA runtime's allocation calls, tracked; CudaAllocator: CUDA memory behind the DeviceAllocator interface.
//
// Write hbmprof::cuda::Malloc for cudaMalloc, and so on. Each function has the signature of the runtime's function of
// that name (also the typed forms of <cuda_runtime.h>), calls it exactly once and returns exactly what it returned; the
// runtime's last-error state is as that call left it. A success is recorded in Profiler::Default() with the stack of
// the caller. Device: the stream's device for stream-ordered calls, else the calling thread's current device, named
// "GPU:<ordinal>".
//
//   create                                    bytes recorded              kind           free with
//   Malloc                                    as asked                    device         Free
//   MallocManaged                             as asked                    managed        Free
//   MallocPitch, Malloc3D                     pitch x rows x slices       device         Free
//   MallocHost, HostAlloc                     as asked                    pinned_host    FreeHost
//   HostRegister                              as asked                    pinned_host    HostUnregister
//   MallocAsync, MallocFromPoolAsync          as asked                    device*        FreeAsync or Free
//   MemPoolImportPointer                      the driver's answer         external       FreeAsync or Free
//   MallocArray, Malloc3DArray                texels x texel (estimate)   array          FreeArray
//   MallocMipmappedArray                      all levels (estimate)       array          FreeMipmappedArray
//   IpcOpenMemHandle                          the driver's answer, once   external       IpcCloseMemHandle (the last)
//   ImportExternalMemory                      as described                external       DestroyExternalMemory
//   ExternalMemoryGetMappedBuffer             0: a view                   alias          Free
//   ExternalMemoryGetMappedMipmappedArray     0: a view                   alias          FreeMipmappedArray
//   * MallocAsync on a capturing stream: graph. MallocFromPoolAsync: managed or pinned_host if the pool is.
// Stream-ordered memory carries the label allocator=cudaMallocAsync: it lives in CUDA's pools and survives DeviceReset.
//
// Needs the CUDA toolkit's headers, version 12 or later; this is the only public header that does. Link hbmprof::cuda,
// and cudart (static or shared) yourself: nothing here chooses it. Translation units built for the per-thread default
// stream (nvcc's --default-stream per-thread) get the per-thread variants, as with the runtime itself.
//
// Not here: graph memory nodes, modules, device limits, graphics interop; what libraries allocate for themselves.
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

// Texture memory. CUDA does not tell its size: it is computed from the format, without the device's padding. Sparse and
// deferred-mapping arrays have no memory of their own and count as zero.
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

// After a success, forgets what is recorded on the current device, of every kind, except stream-ordered memory.
[[gnu::noinline]] cudaError_t DeviceReset();

// Stream-ordered memory, with the typed forms of <cuda_runtime.h>. What CUDA's pool holds beyond the requested bytes
// shows as unaccounted.
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

// CUDA memory as a DeviceAllocator, not recorded by itself: wrap it in a TrackingAllocator. Each call makes `ordinal`
// the thread's device and puts the former one back (since CUDA 12, cudaSetDevice also initialises the device it is
// given). Errors name the call, the size, the device and CUDA's error; they do not stay in cudaGetLastError, unless
// CUDA keeps them for good. Codes: kResourceExhausted for cudaErrorMemoryAllocation, kInvalidArgument for an invalid
// value, device, pointer or stream, kUnimplemented for what is not supported, kUnavailable without a usable device or
// driver, kInternal for all else.
class CudaAllocator : public DeviceAllocator {
 public:
  // `kind` is kDevice (cudaMalloc; in stream order cudaMallocAsync), kManaged (cudaMallocManaged) or kPinnedHost
  // (cudaMallocHost); another kind makes every allocation fail with kInvalidArgument. Calls nothing of CUDA.
  explicit CudaAllocator(int ordinal, MemoryKind kind = MemoryKind::kDevice) : ordinal_(ordinal), kind_(kind) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override;
  absl::Status Free(void* ptr) override;
  // `stream` is a cudaStream_t. Managed and pinned memory has no stream order: as the plain calls.
  absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream) override;
  absl::Status FreeAsync(void* ptr, StreamId stream) override;
  std::string device_name() const override;
  MemoryKind kind() const override { return kind_; }
  // Total memory and bytes in use (by all processes), as the driver tells them. Knows nothing, and makes no context to
  // find out, while this process does not use the device.
  DeviceProbe Probe() const override;

 private:
  const int ordinal_;
  const MemoryKind kind_;
};

}  // namespace hbmprof::cuda

#endif  // HBMPROF_CUDA_H_
