// The tracked forms of the CUDA runtime's stream-ordered calls. Compiled twice: by itself for the legacy default
// stream, and by runtime_stream_per_thread.cc for the per-thread default stream.
#include "hbmprof/cuda.h"
#include "src/backends/cuda/runtime/linked_calls.h"
#include "src/backends/cuda/runtime/queries.h"
#include "src/backends/cuda/shared/adapter.h"

namespace hbmprof::cuda {
namespace {

// Returns the ordinal of the device of `stream`.
int DeviceOfStream([[maybe_unused]] cudaStream_t stream) {
#if CUDART_VERSION >= 12080
  int ordinal = -1;
  if (internal::QueryCuda([&] { return cudaStreamGetDevice(stream, &ordinal); })) return ordinal;
#endif
  return internal::CurrentCudaDevice();
}

bool IsCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return internal::QueryCuda([&] { return cudaStreamIsCapturing(stream, &status); }) &&
         status == cudaStreamCaptureStatusActive;
}

Attributes StreamOrdered(int ordinal, MemoryKind kind) {
  return {internal::CudaDeviceId(ordinal), kind, internal::CudaStreamOrderedAllocator()};
}

// The memory of a pool lies on the device of the pool, which can differ from the device of the stream, or on the host.
Attributes OfPoolMemory(const void* ptr, cudaStream_t stream) {
  cudaPointerAttributes pointer = {};
  if (!internal::QueryCuda([&] { return cudaPointerGetAttributes(&pointer, ptr); })) pointer = {};
  switch (pointer.type) {
    case cudaMemoryTypeDevice:
      return StreamOrdered(pointer.device, MemoryKind::kDevice);
    case cudaMemoryTypeManaged:
      return StreamOrdered(DeviceOfStream(stream), MemoryKind::kManaged);
    case cudaMemoryTypeHost:
      return StreamOrdered(DeviceOfStream(stream), MemoryKind::kPinnedHost);
    default:
      return StreamOrdered(DeviceOfStream(stream), MemoryKind::kDevice);
  }
}

template <typename Call, typename AttributesOf>
cudaError_t Track(const Caller& caller, const char* name, void** ptr, size_t bytes, cudaStream_t stream,
                  const Call& call, const AttributesOf& attributes) {
  const ScopedCaller scope(caller);
  internal::CudaLinkedCalls* const calls = internal::CudaLinkedCalls::Instance();
  if (calls == nullptr) return call();
  const cudaError_t result = internal::AllocateAndRecord(
      calls->profiler, caller, cudaSuccess, call,
      [&] {
        return internal::CudaBuffer{*ptr, bytes, {}};
      },
      [&](const internal::CudaBuffer&) { return attributes(); });
  if (result == cudaErrorMemoryAllocation) {
    internal::ReportCudaOutOfMemory(caller, name, bytes, DeviceOfStream(stream), MemoryKind::kDevice);
  }
  return result;
}

}  // namespace

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
inline namespace per_thread_stream {
#endif

cudaError_t MallocAsync(void** ptr, size_t bytes, cudaStream_t stream) {
  const Caller caller = Caller::OfThisFunction();
  return Track(
      caller, "cudaMallocAsync", ptr, bytes, stream, [&] { return cudaMallocAsync(ptr, bytes, stream); },
      [&] {
        const MemoryKind kind = IsCapturing(stream) ? MemoryKind::kGraph : MemoryKind::kDevice;
        return StreamOrdered(DeviceOfStream(stream), kind);
      });
}

cudaError_t MallocFromPoolAsync(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  const Caller caller = Caller::OfThisFunction();
  return Track(
      caller, "cudaMallocFromPoolAsync", ptr, bytes, stream,
      [&] { return cudaMallocFromPoolAsync(ptr, bytes, pool, stream); }, [&] { return OfPoolMemory(*ptr, stream); });
}

cudaError_t FreeAsync(void* ptr, cudaStream_t stream) {
  const auto free = [&] { return cudaFreeAsync(ptr, stream); };
  internal::CudaLinkedCalls* const calls = internal::CudaLinkedCalls::Instance();
  return calls == nullptr ? free() : internal::RemoveAndFree(calls->profiler, ptr, cudaSuccess, free);
}

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
}  // namespace per_thread_stream
#endif

}  // namespace hbmprof::cuda
