// The tracked forms of the CUDA runtime's allocation calls. Each only translates its arguments for the adapter. Not in
// this file: the stream-ordered ones (runtime_stream.cc), the order of events (adapter.h).
#include "hbmprof/cuda.h"
#include "src/backends/calls/events.h"
#include "src/backends/cuda/driver/driver_queries.h"
#include "src/backends/cuda/runtime/linked_calls.h"

namespace hbmprof::cuda {
namespace {

using internal::DriverBuffer;
using internal::PitchedBytes;
using internal::TrackFree;

Attributes OnCurrentDevice(const DriverBuffer& buffer) {
  return {internal::cuda_driver_in_process.Device(internal::cuda_driver_in_process.CurrentDevice()), buffer.kind, {}};
}

// Tracks a call that allocates the buffer which `describe` returns after a success.
template <typename Call, typename Describe>
cudaError_t Allocate(const Caller& caller, const char* name, size_t bytes, MemoryKind kind, const Call& call,
                     const Describe& describe) {
  return internal::TrackAllocation(caller, name, bytes, kind, call, describe, &OnCurrentDevice);
}

template <typename Call>
cudaError_t Allocate(const Caller& caller, const char* name, void** ptr, size_t bytes, MemoryKind kind,
                     const Call& call) {
  return Allocate(caller, name, bytes, kind, call, [&] { return DriverBuffer{*ptr, bytes, kind}; });
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
  return Allocate(
      caller, "cudaMallocPitch", PitchedBytes(width, height), MemoryKind::kDevice,
      [&] { return cudaMallocPitch(ptr, pitch, width, height); },
      [&] {
        return DriverBuffer{*ptr, PitchedBytes(*pitch, height), MemoryKind::kDevice};
      });
}

cudaError_t Malloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  const Caller caller = Caller::OfThisFunction();
  return Allocate(
      caller, "cudaMalloc3D", PitchedBytes(extent.width, extent.height, extent.depth), MemoryKind::kDevice,
      [&] { return cudaMalloc3D(pitched, extent); },
      [&] {
        const size_t bytes = PitchedBytes(pitched->pitch, extent.height, extent.depth);
        return DriverBuffer{pitched->ptr, bytes, MemoryKind::kDevice};
      });
}

cudaError_t Free(void* ptr) {
  return TrackFree(ptr, [&] { return cudaFree(ptr); });
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
  return TrackFree(ptr, [&] { return cudaFreeHost(ptr); });
}

cudaError_t HostRegister(void* ptr, size_t bytes, unsigned int flags) {
  const Caller caller = Caller::OfThisFunction();
  return Allocate(caller, "cudaHostRegister", &ptr, bytes, MemoryKind::kPinnedHost,
                  [&] { return cudaHostRegister(ptr, bytes, flags); });
}

cudaError_t HostUnregister(void* ptr) {
  return TrackFree(ptr, [&] { return cudaHostUnregister(ptr); });
}

cudaError_t DeviceReset() {
  Profiler* const profiler = internal::LinkedProfiler();
  const cudaError_t result = cudaDeviceReset();
  int ordinal = 0;
  if (result != cudaSuccess || profiler == nullptr || cudaGetDevice(&ordinal) != cudaSuccess) return result;
  // A reset is followed also while recording is off.
  internal::RecordOrDrop(*profiler, 0, [&] {
    profiler->DropDevice(profiler->Device(internal::cuda_driver::driver.DeviceName(ordinal)),
                         internal::cuda_driver::driver.StreamOrderedAllocator());
  });
  return result;
}

}  // namespace hbmprof::cuda
