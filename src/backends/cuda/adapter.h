// The logic of tracking CUDA memory that runtime and driver share: sizes that CUDA does not say, the order of events
// around the real calls, which handles share a name. Knows no CUDA header: the vendor's calls come in as callables, its
// constants as numbers.
// Not here: the calls themselves (runtime.cc, runtime_stream.cc, driver_calls.inc), what only the driver's calls need
// (driver_adapter.h), questions to CUDA (queries.h, driver_queries.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_ADAPTER_H_
#define HBMPROF_SRC_BACKENDS_CUDA_ADAPTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/base/completes.h"
#include "src/base/mutex.h"

namespace hbmprof::internal {

// Handles that are no device addresses, each sort in a name space of BufferId::Handle. A null handle is a null id.
inline BufferId CudaHandleId(uint8_t name_space, const void* handle) {
  return handle == nullptr ? BufferId() : BufferId::Handle(name_space, reinterpret_cast<uintptr_t>(handle));
}
inline BufferId CudaArrayId(const void* array) { return CudaHandleId(1, array); }
inline BufferId CudaMipmappedArrayId(const void* array) { return CudaHandleId(2, array); }
inline BufferId CudaExternalMemoryId(const void* memory) { return CudaHandleId(3, memory); }
// Physical memory has numbers of our own: the driver gives a handle's value out again while its memory lives on.
inline BufferId CudaPhysicalId(uint64_t number) { return BufferId::Handle(4, number); }
inline BufferId CudaModuleId(const void* module) { return CudaHandleId(5, module); }
inline BufferId CudaLibraryId(const void* library) { return CudaHandleId(6, library); }

// Bytes of pitched memory. All sizes here saturate at SIZE_MAX instead of wrapping.
size_t CudaPitchedBytes(size_t pitch, size_t rows, size_t slices = 1);

// The smallest independent piece of an array's format: `width` x `height` texels in `bytes` bytes. 1 x 1 for plain
// formats, 4 x 4 for block-compressed ones, 2 x 2 for planar 4:2:0.
struct TexelBlock {
  size_t width = 1;
  size_t height = 1;
  size_t bytes = 0;
};

// The values of cudaChannelFormatKind that are not "the sum of the channels' bits".
inline constexpr int kCudaFormatNv12 = 4;
inline constexpr int kCudaFormatFirstBlockCompressed = 17;
inline constexpr int kCudaFormatFirstBlockCompressed2 = 19;
inline constexpr int kCudaFormatFirstBlockCompressed4 = 23;
inline constexpr int kCudaFormatFirstBlockCompressed5 = 25;
inline constexpr int kCudaFormatLastBlockCompressed = 30;

// The block of a cudaChannelFormatDesc: bits of its four channels, its kind.
TexelBlock CudaTexelBlock(int x, int y, int z, int w, int format_kind);
// The block of a driver's array: CUarray_format and the number of channels. No bytes for a format it does not know.
TexelBlock CudaDriverTexelBlock(int format, unsigned channels);

// The flags of cudaMalloc3DArray that change an array's size.
inline constexpr unsigned kCudaArrayLayered = 0x01;
inline constexpr unsigned kCudaArrayCubemap = 0x04;
inline constexpr unsigned kCudaArraySparse = 0x40;
inline constexpr unsigned kCudaArrayDeferredMapping = 0x80;

// In texels, as cudaExtent for arrays: height and depth are 0 where the array has no such dimension; depth counts
// layers (and a cubemap's six faces) of layered arrays.
struct CudaArrayShape {
  size_t width = 0;
  size_t height = 0;
  size_t depth = 0;
  unsigned flags = 0;
};

// Estimated bytes of an array, without the device's padding; 0 for sparse and deferred-mapping arrays, which own none.
size_t CudaArrayBytes(const TexelBlock& block, const CudaArrayShape& shape);
// The same over `levels` mipmap levels, clamped as CUDA clamps them: to 1 ... 1 + floor(log2(largest dimension)).
// Layers and faces do not shrink from level to level.
size_t CudaMipmappedArrayBytes(const TexelBlock& block, const CudaArrayShape& shape, unsigned levels);

// A successful allocation. To make one asks nobody and takes no memory.
struct CudaBuffer {
  BufferId id;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
};

// Calls `record`, which records `bytes` bytes. If the host has no memory for that, they are counted as dropped.
template <typename Record>
void RecordOrDrop(Profiler& profiler, size_t bytes, const Record& record) {
  if (!Completes(record)) profiler.RecordDropped(bytes);
}

// The two ways of tracking a call. Both make the real call once, outside of everything that can fail, and return what
// it returned.

// Calls `call`; if it gives `success` and recording is on, calls `record`, which records `bytes` bytes.
template <typename Result, typename Call, typename Record>
Result CallThenRecord(Profiler& profiler, Result success, const Call& call, size_t bytes, const Record& record) {
  const Result result = call();
  if (result == success && profiler.enabled()) RecordOrDrop(profiler, bytes, record);
  return result;
}

// If recording is on, calls `take`, which takes records out. Then calls `call`; if that does not give `success`, calls
// `put_back` with what `take` returned.
template <typename Result, typename Call, typename Take, typename PutBack>
Result RemoveThenCall(Profiler& profiler, Result success, const Call& call, const Take& take, const PutBack& put_back) {
  std::optional<decltype(take())> taken;
  if (profiler.enabled()) RecordOrDrop(profiler, 0, [&] { taken.emplace(take()); });
  const Result result = call();
  if (result != success && taken.has_value()) RecordOrDrop(profiler, 0, [&] { put_back(std::move(*taken)); });
  return result;
}

// Resets of devices, so that a free that fails after its device was reset does not put back what the reset ended.
// Thread-safe. Never calls out with its lock held.
class CudaDeviceResets {
 public:
  // How many there were. To be read before a record is taken out.
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  // After a device was reset: its records end, but those of the allocator `survivor` and those in `kept`.
  void Reset(Profiler& profiler, DeviceId device, AllocatorId survivor, std::vector<BufferId> kept = {})
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the device was reset since count() gave `before`.
  bool WasReset(DeviceId device, uint64_t before) ABSL_LOCKS_EXCLUDED(mutex_);
  // Puts back the record of `id` that was taken out after count() gave `before`, unless a reset has ended it since.
  void PutBack(Profiler& profiler, BufferId id, const FreedRecord& record, uint64_t before) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::atomic<uint64_t> count_{0};
  Mutex mutex_;
  uint64_t last_[kMaxDevices] ABSL_GUARDED_BY(mutex_) = {};  // by DeviceId: the count at its last reset
  AllocatorId survivor_ ABSL_GUARDED_BY(mutex_){};
};

// Calls `allocate`; if it gives `success`, records what `describe()` returns with what `attributes(buffer)` returns and
// the stack from `caller`. Only `attributes` may ask queries; it is called only while recording is on.
template <typename Result, typename Allocate, typename Describe, typename AttributesOf>
Result AllocateAndRecord(Profiler& profiler, const Caller& caller, Result success, const Allocate& allocate,
                         const Describe& describe, const AttributesOf& attributes) {
  const Result result = allocate();
  if (result == success && profiler.enabled()) {
    const CudaBuffer buffer = describe();
    RecordOrDrop(profiler, buffer.bytes,
                 [&] { profiler.RecordAllocFrom(caller, buffer.id, buffer.bytes, attributes(buffer)); });
  }
  return result;
}

// Removes the record of `id`, then calls `free`; puts the record back if that does not give `success`.
template <typename Result, typename Free>
Result RemoveAndFree(Profiler& profiler, CudaDeviceResets& resets, BufferId id, Result success, const Free& free) {
  const uint64_t before = resets.count();
  return RemoveThenCall(
      profiler, success, free, [&] { return profiler.RecordFree(id); },
      [&](const FreedRecord& record) { resets.PutBack(profiler, id, record, before); });
}

// Memory that may be opened several times. CUDA gives the same address for the same shared handle and unmaps it at the
// last close, so only the first open is an allocation and only the last close a free. Thread-safe.
class SharedOpenings {
 public:
  // After `address` was opened on `device`: calls `record()` if it was not open before. No lock is held meanwhile: no
  // close can be the last one until the call returns whose opening this is.
  template <typename Record>
  void Open(const void* address, DeviceId device, const Record& record) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (IsFirst(address, device)) record();
  }

  // RemoveAndFree for one opening: its record goes with the last one. An unknown address is a foreign free.
  template <typename Result, typename RealClose>
  Result Close(Profiler& profiler, CudaDeviceResets& resets, const void* address, Result success,
               const RealClose& close) ABSL_LOCKS_EXCLUDED(mutex_) {
    const uint64_t before = resets.count();
    return RemoveThenCall(
        profiler, success, close, [&] { return Remove(profiler, address); },
        [&](const Closed& closed) { PutBack(profiler, resets, address, closed, before); });
  }

  // Forgets the openings on a device, without a word to the profiler.
  void ForgetDevice(DeviceId device) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Opening {
    int64_t count = 0;
    DeviceId device = kDefaultDevice;
  };
  struct Closed {
    bool was_open = false;
    DeviceId device = kDefaultDevice;
    FreedRecord record;
  };
  bool IsFirst(const void* address, DeviceId device) ABSL_LOCKS_EXCLUDED(mutex_);
  Closed Remove(Profiler& profiler, const void* address) ABSL_LOCKS_EXCLUDED(mutex_);
  void PutBack(Profiler& profiler, CudaDeviceResets& resets, const void* address, const Closed& closed, uint64_t before)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Held while a record is removed or put back, so that it cannot be another opening's.
  Mutex mutex_;
  std::unordered_map<const void*, Opening> openings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_ADAPTER_H_
