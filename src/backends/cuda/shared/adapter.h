// The code for tracking CUDA memory that the wrappers of the runtime and those of the driver share: it computes sizes
// that CUDA does not report, orders the events around the real calls, and counts memory that is opened several times.
// Includes no CUDA header: real calls are passed as callables, CUDA's constants as numbers.
//
// Not in this file: the calls themselves (runtime.cc, runtime_stream.cc, driver_calls.inc), logic that only the
// driver's wrappers need (driver_adapter.h), queries to CUDA (queries.h, driver_queries.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_SHARED_ADAPTER_H_
#define HBMPROF_SRC_BACKENDS_CUDA_SHARED_ADAPTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/base/mutex.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {

// The ids of handles that are not device addresses. The id of a null handle is null.
inline BufferId CudaHandleId(NameSpace name_space, const void* handle) {
  return handle == nullptr ? BufferId() : BufferId::Handle(name_space, reinterpret_cast<uintptr_t>(handle));
}
inline BufferId CudaArrayId(const void* array) { return CudaHandleId(NameSpace::kCudaArray, array); }
inline BufferId CudaMipmappedArrayId(const void* array) { return CudaHandleId(NameSpace::kCudaMipmappedArray, array); }
inline BufferId CudaExternalMemoryId(const void* memory) {
  return CudaHandleId(NameSpace::kCudaExternalMemory, memory);
}
// The id of physical memory. `number` is chosen by hbmprof and is not the driver's handle, because the driver can reuse
// the value of a handle while its memory is still live.
inline BufferId CudaPhysicalId(uint64_t number) { return BufferId::Handle(NameSpace::kCudaPhysical, number); }
inline BufferId CudaModuleId(const void* module) { return CudaHandleId(NameSpace::kCudaModule, module); }
inline BufferId CudaLibraryId(const void* library) { return CudaHandleId(NameSpace::kCudaLibrary, library); }

// Returns the bytes of pitched memory. All sizes here saturate at SIZE_MAX instead of wrapping around.
size_t CudaPitchedBytes(size_t pitch, size_t rows, size_t slices = 1);

// The smallest independent unit of an array's format: `width` x `height` texels in `bytes` bytes. It is 1 x 1 for plain
// formats, 4 x 4 for block-compressed ones, and 2 x 2 for planar 4:2:0.
struct TexelBlock {
  size_t width = 1;
  size_t height = 1;
  size_t bytes = 0;
};

// The values of cudaChannelFormatKind for which the size of a texel is not the sum of the channels' bits.
inline constexpr int kCudaFormatNv12 = 4;
inline constexpr int kCudaFormatFirstBlockCompressed = 17;
inline constexpr int kCudaFormatFirstBlockCompressed2 = 19;
inline constexpr int kCudaFormatFirstBlockCompressed4 = 23;
inline constexpr int kCudaFormatFirstBlockCompressed5 = 25;
inline constexpr int kCudaFormatLastBlockCompressed = 30;

// Returns the block of a cudaChannelFormatDesc with these bits in its four channels and this kind.
TexelBlock CudaTexelBlock(int x, int y, int z, int w, int format_kind);
// Returns the block of a driver's array: `format` is a CUarray_format. The block of an unknown format has 0 bytes.
TexelBlock CudaDriverTexelBlock(int format, unsigned channels);

// The flags of cudaMalloc3DArray that have an effect on the size of an array.
inline constexpr unsigned kCudaArrayLayered = 0x01;
inline constexpr unsigned kCudaArrayCubemap = 0x04;
inline constexpr unsigned kCudaArraySparse = 0x40;
inline constexpr unsigned kCudaArrayDeferredMapping = 0x80;

// The dimensions of an array in texels, as in a cudaExtent. `height` and `depth` are 0 if the array does not have that
// dimension; `depth` is the number of layers (and of a cubemap's six faces) of a layered array.
struct CudaArrayShape {
  size_t width = 0;
  size_t height = 0;
  size_t depth = 0;
  unsigned flags = 0;
};

// Returns the estimated bytes of an array, without the device's padding; 0 for sparse and deferred-mapping arrays,
// which own no memory.
size_t CudaArrayBytes(const TexelBlock& block, const CudaArrayShape& shape);
// Returns the estimated bytes of a mipmapped array of `levels` levels. As in CUDA, the number of levels is clamped to
// the range 1 to 1 + floor(log2(largest dimension)). Layers and faces do not shrink from level to level.
size_t CudaMipmappedArrayBytes(const TexelBlock& block, const CudaArrayShape& shape, unsigned levels);

// Describes a successful allocation. Its construction makes no calls and takes no memory.
struct CudaBuffer {
  BufferId id;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
};

// Calls `record`, which records `bytes` bytes. If the host has no memory for the record, the bytes are counted as
// dropped.
template <typename Record>
void RecordOrDrop(Profiler& profiler, size_t bytes, const Record& record) {
  if (!TryRun(record)) profiler.RecordDropped(bytes);
}

// The ways to track a call. Each makes the real call once, outside of all code that can fail, and returns its result.

// Calls `call`. If it returns `success` and recording is on, calls `record`, which records `bytes` bytes.
template <typename Result, typename Call, typename Record>
Result CallThenRecord(Profiler& profiler, Result success, const Call& call, size_t bytes, const Record& record) {
  const Result result = call();
  if (result == success && profiler.enabled()) RecordOrDrop(profiler, bytes, record);
  return result;
}

// Calls `take`, which removes entries of tables and records, and returns whether it has removed a record. Then calls
// `call`. If that does not return `success`, a removed record counts as a refused free.
template <typename Result, typename Call, typename Take>
Result TakeThenCall(Profiler& profiler, Result success, const Call& call, const Take& take) {
  bool has_taken = false;
  RecordOrDrop(profiler, 0, [&] { has_taken = take(); });
  const Result result = call();
  if (result != success && has_taken) profiler.RecordRefusedFree();
  return result;
}

// As TakeThenCall if recording is on. Otherwise only calls `call`.
template <typename Result, typename Call, typename Take>
Result RemoveThenCall(Profiler& profiler, Result success, const Call& call, const Take& take) {
  return profiler.enabled() ? TakeThenCall(profiler, success, call, take) : call();
}

// Calls `allocate`. If it returns `success` and recording is on, records the buffer that `describe()` returns, with the
// attributes that `attributes(buffer)` returns and the stack of `caller`. Only `attributes` may query CUDA.
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

// Removes the record of `id`, then calls `free`.
template <typename Result, typename Free>
Result RemoveAndFree(Profiler& profiler, BufferId id, Result success, const Free& free) {
  return RemoveThenCall(profiler, success, free, [&] { return profiler.RecordFree(id).has_value(); });
}

// Memory that can be opened several times. CUDA returns the same address for the same shared handle and unmaps it at
// the last close, so only the first opening is an allocation and only the last close is a free. Openings and closes are
// counted also while recording is off. Thread-safe.
class SharedOpenings {
  struct Opening {
    int64_t count = 0;
    DeviceId device = kDefaultDevice;
    const void* context = nullptr;
  };

 public:
  // After `address` was opened on `device`: calls `record()` if it was not open before. No lock is held during
  // `record()`. The last close cannot come earlier, because the program cannot close the memory before its opening call
  // has returned. `context`: the context that the opening ends with; null if it ends with a reset of the device.
  template <typename Record>
  void Open(const void* address, DeviceId device, const Record& record, const void* context = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    if (IsFirst(address, device, context)) record();
  }

  // Counts an opening while recording is off. Makes no record. The device is not known.
  void OpenUnrecorded(const void* address, const void* context = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);

  // Like RemoveAndFree, for one opening. Only the last close removes the record. The close of an unknown address counts
  // as a foreign free.
  template <typename Result, typename Call>
  Result Close(Profiler& profiler, const void* address, Result success, const Call& call) ABSL_LOCKS_EXCLUDED(mutex_) {
    return TakeThenCall(profiler, success, call, [&] { return Remove(profiler, address); });
  }

  // Removes the openings on a device, except those of contexts. Does not change records.
  void RemoveDevice(DeviceId device) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before a context is destroyed: removes its openings and their records.
  void RemoveContext(Profiler& profiler, const void* context) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the records of all openings of contexts.
  std::vector<BufferId> OfContexts() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes all openings. Does not change records.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool IsFirst(const void* address, DeviceId device, const void* context) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether a record ended.
  bool Remove(Profiler& profiler, const void* address) ABSL_LOCKS_EXCLUDED(mutex_);

  // Also held while a record is removed, so that the count of openings does not change meanwhile. Otherwise the record
  // could be that of another thread's opening.
  mutable Mutex mutex_;
  std::map<const void*, Opening> openings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_SHARED_ADAPTER_H_
