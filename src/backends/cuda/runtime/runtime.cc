// The tracked forms of the CUDA runtime's allocation calls. Each only translates its arguments for the adapter. Not in
// this file: the stream-ordered ones (runtime_stream.cc), sizes and the order of events (adapter.h).
#include "hbmprof/cuda.h"
#include "src/backends/cuda/runtime/linked_calls.h"
#include "src/backends/cuda/runtime/queries.h"
#include "src/backends/cuda/shared/adapter.h"

namespace hbmprof::cuda {
namespace {

using internal::CudaArrayId;
using internal::CudaArrayShape;
using internal::CudaBuffer;
using internal::CudaExternalMemoryId;
using internal::CudaLinkedCalls;
using internal::CudaMipmappedArrayId;
using internal::CudaPitchedBytes;
using internal::CurrentCudaDevice;
using internal::RemoveAndFree;
using internal::TexelBlock;

static_assert(internal::kCudaFormatNv12 == cudaChannelFormatKindNV12);
static_assert(internal::kCudaFormatFirstBlockCompressed == cudaChannelFormatKindUnsignedBlockCompressed1);
static_assert(internal::kCudaFormatFirstBlockCompressed2 == cudaChannelFormatKindUnsignedBlockCompressed2);
static_assert(internal::kCudaFormatFirstBlockCompressed4 == cudaChannelFormatKindUnsignedBlockCompressed4);
static_assert(internal::kCudaFormatFirstBlockCompressed5 == cudaChannelFormatKindUnsignedBlockCompressed5);
static_assert(internal::kCudaFormatLastBlockCompressed == cudaChannelFormatKindUnsignedBlockCompressed7SRGB);
static_assert(internal::kCudaArrayLayered == cudaArrayLayered && internal::kCudaArrayCubemap == cudaArrayCubemap);
static_assert(internal::kCudaArraySparse == cudaArraySparse);
static_assert(internal::kCudaArrayDeferredMapping == cudaArrayDeferredMapping);

CudaBuffer Buffer(BufferId id, size_t bytes, MemoryKind kind) { return {id, bytes, kind}; }

Attributes OnCurrentDevice(const CudaBuffer& buffer) {
  return {internal::CudaDeviceId(CurrentCudaDevice()), buffer.kind, {}};
}

TexelBlock BlockOf(const cudaChannelFormatDesc& format) {
  return internal::CudaTexelBlock(format.x, format.y, format.z, format.w, format.f);
}

CudaArrayShape ShapeOf(const cudaExtent& extent, unsigned int flags) {
  return {extent.width, extent.height, extent.depth, flags};
}

template <typename Call, typename Describe>
cudaError_t Track(const Caller& caller, const Call& call, const Describe& describe) {
  const ScopedCaller scope(caller);
  CudaLinkedCalls* const calls = CudaLinkedCalls::Instance();
  if (calls == nullptr) return call();
  return internal::AllocateAndRecord(calls->profiler, caller, cudaSuccess, call, describe, &OnCurrentDevice);
}

// Returns `result`. If it is cudaErrorMemoryAllocation, reports the failed allocation.
cudaError_t ReportIfOutOfMemory(const Caller& caller, cudaError_t result, const char* name, size_t bytes,
                                MemoryKind kind) {
  if (result == cudaErrorMemoryAllocation) {
    internal::ReportCudaOutOfMemory(caller, name, bytes, CurrentCudaDevice(), kind);
  }
  return result;
}

template <typename Call>
cudaError_t Allocate(const Caller& caller, const char* name, void** ptr, size_t bytes, MemoryKind kind,
                     const Call& call) {
  const cudaError_t result = Track(caller, call, [&] { return Buffer(*ptr, bytes, kind); });
  return ReportIfOutOfMemory(caller, result, name, bytes, kind);
}

// `bytes` and `id` are called only after a success or if there was no memory: until then the arguments may be wrong.
template <typename Bytes, typename Call, typename Id>
cudaError_t AllocateArray(const Caller& caller, const char* name, const Bytes& bytes, const Call& call, const Id& id) {
  const cudaError_t result = Track(caller, call, [&] { return Buffer(id(), bytes(), MemoryKind::kArray); });
  if (result != cudaErrorMemoryAllocation) return result;
  return ReportIfOutOfMemory(caller, result, name, bytes(), MemoryKind::kArray);
}

template <typename Call>
cudaError_t Release(BufferId id, const Call& call) {
  CudaLinkedCalls* const calls = CudaLinkedCalls::Instance();
  return calls == nullptr ? call() : RemoveAndFree(calls->profiler, id, cudaSuccess, call);
}

}  // namespace

cudaError_t Malloc(void** ptr, size_t bytes) {
  const Caller caller = Caller::OfThisFunction();
  return Allocate(caller, "cudaMalloc", ptr, bytes, MemoryKind::kDevice, [&] { return cudaMalloc(ptr, bytes); });
}

cudaError_t MallocManaged(void** ptr, size_t bytes, unsigned int flags) {
  const Caller caller = Caller::OfThisFunction();
  return Allocate(caller, "cudaMallocManaged", ptr, bytes, MemoryKind::kManaged,
                  [&] { return cudaMallocManaged(ptr, bytes, flags); });
}

cudaError_t MallocPitch(void** ptr, size_t* pitch, size_t width, size_t height) {
  const Caller caller = Caller::OfThisFunction();
  const cudaError_t result = Track(
      caller, [&] { return cudaMallocPitch(ptr, pitch, width, height); },
      [&] { return Buffer(*ptr, CudaPitchedBytes(*pitch, height), MemoryKind::kDevice); });
  return ReportIfOutOfMemory(caller, result, "cudaMallocPitch", CudaPitchedBytes(width, height), MemoryKind::kDevice);
}

cudaError_t Malloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  const Caller caller = Caller::OfThisFunction();
  const cudaError_t result = Track(
      caller, [&] { return cudaMalloc3D(pitched, extent); },
      [&] {
        const size_t bytes = CudaPitchedBytes(pitched->pitch, extent.height, extent.depth);
        return Buffer(pitched->ptr, bytes, MemoryKind::kDevice);
      });
  const size_t bytes = CudaPitchedBytes(extent.width, extent.height, extent.depth);
  return ReportIfOutOfMemory(caller, result, "cudaMalloc3D", bytes, MemoryKind::kDevice);
}

cudaError_t Free(void* ptr) {
  return Release(ptr, [&] { return cudaFree(ptr); });
}

cudaError_t MallocHost(void** ptr, size_t bytes) {
  const Caller caller = Caller::OfThisFunction();
  return Allocate(caller, "cudaMallocHost", ptr, bytes, MemoryKind::kPinnedHost,
                  [&] { return cudaMallocHost(ptr, bytes); });
}

cudaError_t HostAlloc(void** ptr, size_t bytes, unsigned int flags) {
  const Caller caller = Caller::OfThisFunction();
  return Allocate(caller, "cudaHostAlloc", ptr, bytes, MemoryKind::kPinnedHost,
                  [&] { return cudaHostAlloc(ptr, bytes, flags); });
}

cudaError_t FreeHost(void* ptr) {
  return Release(ptr, [&] { return cudaFreeHost(ptr); });
}

cudaError_t HostRegister(void* ptr, size_t bytes, unsigned int flags) {
  const Caller caller = Caller::OfThisFunction();
  return Allocate(caller, "cudaHostRegister", &ptr, bytes, MemoryKind::kPinnedHost,
                  [&] { return cudaHostRegister(ptr, bytes, flags); });
}

cudaError_t HostUnregister(void* ptr) {
  return Release(ptr, [&] { return cudaHostUnregister(ptr); });
}

cudaError_t MallocArray(cudaArray_t* array, const cudaChannelFormatDesc* format, size_t width, size_t height,
                        unsigned int flags) {
  const Caller caller = Caller::OfThisFunction();
  const auto bytes = [&] { return CudaArrayBytes(BlockOf(*format), {width, height, 0, flags}); };
  return AllocateArray(
      caller, "cudaMallocArray", bytes, [&] { return cudaMallocArray(array, format, width, height, flags); },
      [&] { return CudaArrayId(*array); });
}

cudaError_t Malloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* format, cudaExtent extent,
                          unsigned int flags) {
  const Caller caller = Caller::OfThisFunction();
  const auto bytes = [&] { return CudaArrayBytes(BlockOf(*format), ShapeOf(extent, flags)); };
  return AllocateArray(
      caller, "cudaMalloc3DArray", bytes, [&] { return cudaMalloc3DArray(array, format, extent, flags); },
      [&] { return CudaArrayId(*array); });
}

cudaError_t FreeArray(cudaArray_t array) {
  return Release(CudaArrayId(array), [&] { return cudaFreeArray(array); });
}

cudaError_t MallocMipmappedArray(cudaMipmappedArray_t* array, const cudaChannelFormatDesc* format, cudaExtent extent,
                                 unsigned int levels, unsigned int flags) {
  const Caller caller = Caller::OfThisFunction();
  const auto bytes = [&] { return CudaMipmappedArrayBytes(BlockOf(*format), ShapeOf(extent, flags), levels); };
  return AllocateArray(
      caller, "cudaMallocMipmappedArray", bytes,
      [&] { return cudaMallocMipmappedArray(array, format, extent, levels, flags); },
      [&] { return CudaMipmappedArrayId(*array); });
}

cudaError_t FreeMipmappedArray(cudaMipmappedArray_t array) {
  return Release(CudaMipmappedArrayId(array), [&] { return cudaFreeMipmappedArray(array); });
}

cudaError_t IpcOpenMemHandle(void** ptr, cudaIpcMemHandle_t handle, unsigned int flags) {
  const Caller caller = Caller::OfThisFunction();
  const ScopedCaller scope(caller);
  CudaLinkedCalls* const calls = CudaLinkedCalls::Instance();
  const cudaError_t result = cudaIpcOpenMemHandle(ptr, handle, flags);
  if (result != cudaSuccess || calls == nullptr) return result;
  if (!calls->profiler.enabled()) {
    internal::RecordOrDrop(calls->profiler, 0, [&] { calls->ipc_openings.OpenUnrecorded(*ptr); });
    return result;
  }
  const CudaBuffer buffer = Buffer(*ptr, internal::CudaAddressRangeBytes(*ptr), MemoryKind::kExternal);
  internal::RecordOrDrop(calls->profiler, buffer.bytes, [&] {
    const Attributes attributes = OnCurrentDevice(buffer);
    calls->ipc_openings.Open(*ptr, attributes.device,
                             [&] { calls->profiler.RecordAllocFrom(caller, buffer.id, buffer.bytes, attributes); });
  });
  return result;
}

cudaError_t IpcCloseMemHandle(void* ptr) {
  const auto close = [&] { return cudaIpcCloseMemHandle(ptr); };
  CudaLinkedCalls* const calls = CudaLinkedCalls::Instance();
  if (calls == nullptr) return close();
  return calls->ipc_openings.Close(calls->profiler, ptr, cudaSuccess, close);
}

cudaError_t ImportExternalMemory(cudaExternalMemory_t* memory, const cudaExternalMemoryHandleDesc* description) {
  const Caller caller = Caller::OfThisFunction();
  return Track(
      caller, [&] { return cudaImportExternalMemory(memory, description); },
      [&] { return Buffer(CudaExternalMemoryId(*memory), description->size, MemoryKind::kExternal); });
}

cudaError_t ExternalMemoryGetMappedBuffer(void** ptr, cudaExternalMemory_t memory,
                                          const cudaExternalMemoryBufferDesc* description) {
  const Caller caller = Caller::OfThisFunction();
  return Allocate(caller, "cudaExternalMemoryGetMappedBuffer", ptr, 0, MemoryKind::kAlias,
                  [&] { return cudaExternalMemoryGetMappedBuffer(ptr, memory, description); });
}

cudaError_t ExternalMemoryGetMappedMipmappedArray(cudaMipmappedArray_t* array, cudaExternalMemory_t memory,
                                                  const cudaExternalMemoryMipmappedArrayDesc* description) {
  const Caller caller = Caller::OfThisFunction();
  return Track(
      caller, [&] { return cudaExternalMemoryGetMappedMipmappedArray(array, memory, description); },
      [&] { return Buffer(CudaMipmappedArrayId(*array), 0, MemoryKind::kAlias); });
}

cudaError_t DestroyExternalMemory(cudaExternalMemory_t memory) {
  return Release(CudaExternalMemoryId(memory), [&] { return cudaDestroyExternalMemory(memory); });
}

cudaError_t MemPoolImportPointer(void** ptr, cudaMemPool_t pool, cudaMemPoolPtrExportData* data) {
  const Caller caller = Caller::OfThisFunction();
  return Track(
      caller, [&] { return cudaMemPoolImportPointer(ptr, pool, data); },
      [&] { return Buffer(*ptr, internal::CudaAddressRangeBytes(*ptr), MemoryKind::kExternal); });
}

cudaError_t DeviceReset() {
  CudaLinkedCalls* const calls = CudaLinkedCalls::Instance();
  const cudaError_t result = cudaDeviceReset();
  if (result != cudaSuccess || calls == nullptr) return result;
  // A reset is followed also while recording is off.
  internal::RecordOrDrop(calls->profiler, 0, [&] {
    const int ordinal = CurrentCudaDevice();
    if (ordinal < 0) return;
    const DeviceId device = calls->profiler.Device(internal::CudaDeviceName(ordinal));
    calls->profiler.DropDevice(device, internal::CudaStreamOrderedAllocator());
    calls->ipc_openings.RemoveDevice(device);
  });
  return result;
}

}  // namespace hbmprof::cuda
