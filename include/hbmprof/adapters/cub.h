// TrackingCachingAllocator: cub::CachingDeviceAllocator with recorded memory.
//
//   hbmprof::adapters::TrackingCachingAllocator allocator;   // in place of cub::CachingDeviceAllocator
//   void* p = nullptr;
//   cudaError_t error = allocator.DeviceAllocate(&p, bytes, stream);
//   ...
//   error = allocator.DeviceFree(p);
//
// Needs CUB's headers (the CUDA toolkit has them).
#ifndef HBMPROF_ADAPTERS_CUB_H_
#define HBMPROF_ADAPTERS_CUB_H_

#include <algorithm>
#include <cstddef>
#include <cub/util_allocator.cuh>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/profiler.h"

namespace hbmprof::adapters {

// A cub::CachingDeviceAllocator. Its functions do what CUB's do, with these records: each allocation is a block with
// the size that CUB has rounded up and the stack of the caller. Cached memory is the idle memory of the pool. So, for
// each device, the sum of the blocks is CUB's counter cached_bytes[device].live, and the idle memory is
// cached_bytes[device].free. The label `device` is "GPU:<ordinal>", the label `allocator` is "cub". A failure with
// cudaErrorMemoryAllocation is reported (out_of_memory.h). Thread-safe, as CUB's.
//
// Call these functions on this type, not on its base, whose functions are not virtual. `profiler` must live longer than
// this object.
//
// Limit: if CUDA has no memory, CUB frees its cache and tries again. The records of that cache are removed after the
// call, and so are those of blocks that come into the cache during FreeAllCached. If another allocator records the same
// memory before that, its record replaces that of the cache.
class TrackingCachingAllocator : public cub::CachingDeviceAllocator {
  using Base = cub::CachingDeviceAllocator;

 public:
  explicit TrackingCachingAllocator(Profiler& profiler = Profiler::Default())
      : profiler_(profiler), allocator_(profiler.Allocator("cub")) {}
  // The arguments after `profiler` are those of cub::CachingDeviceAllocator.
  TrackingCachingAllocator(Profiler& profiler, unsigned int bin_growth, unsigned int min_bin = 1,
                           unsigned int max_bin = INVALID_BIN, size_t max_cached_bytes = INVALID_SIZE,
                           bool skip_cleanup = false)
      : Base(bin_growth, min_bin, max_bin, max_cached_bytes, skip_cleanup),
        profiler_(profiler),
        allocator_(profiler.Allocator("cub")) {}
  // Keeps the records of allocations that were not freed.
  ~TrackingCachingAllocator() override {
    if (!skip_cleanup) FreeAllCached();
  }

  [[gnu::noinline]] cudaError_t DeviceAllocate(int device, void** memory, size_t bytes, cudaStream_t stream = nullptr) {
    return Allocate(Caller::OfThisFunction(), device, memory, bytes, stream);
  }
  [[gnu::noinline]] cudaError_t DeviceAllocate(void** memory, size_t bytes, cudaStream_t stream = nullptr) {
    return Allocate(Caller::OfThisFunction(), INVALID_DEVICE_ORDINAL, memory, bytes, stream);
  }

  [[gnu::noinline]] cudaError_t DeviceFree(int device, void* memory) {
    return Free(Caller::OfThisFunction(), device, memory);
  }
  [[gnu::noinline]] cudaError_t DeviceFree(void* memory) {
    return Free(Caller::OfThisFunction(), INVALID_DEVICE_ORDINAL, memory);
  }

  cudaError_t FreeAllCached() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const BlockDescriptor& block : cached_blocks) TakeSegment(Key(block.device, block.d_ptr));
    }
    const cudaError_t error = Base::FreeAllCached();
    const std::lock_guard<std::mutex> lock(mutex);
    // Those that another thread has put into the cache meanwhile.
    RemoveFreedSegments();
    // A block that could not be freed is recorded as a new segment when CUB hands it out again.
    for (const BlockDescriptor& block : cached_blocks) {
      if (segments_.count(Key(block.device, block.d_ptr)) == 0) profiler_.RecordRefusedFree();
    }
    return error;
  }

 private:
  // A device and an address on it.
  using Key = std::pair<int, void*>;
  enum class State { kGone, kCached, kLive };

  static int Resolve(int device) {
    return device == INVALID_DEVICE_ORDINAL && cudaGetDevice(&device) != cudaSuccess ? INVALID_DEVICE_ORDINAL : device;
  }
  static std::string NameOf(int device) { return "GPU:" + std::to_string(device); }

  cudaError_t Allocate(const Caller& caller, int device, void** memory, size_t bytes, cudaStream_t stream) {
    const ScopedCaller scope(caller);
    const int ordinal = Resolve(device);
    const cudaError_t error = Base::DeviceAllocate(device, memory, bytes, stream);
    if (error != cudaSuccess) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        RemoveFreedSegments();
      }
      if (error == cudaErrorMemoryAllocation) {
        ReportOutOfMemory({"cub::CachingDeviceAllocator::DeviceAllocate", bytes, NameOf(ordinal)}, profiler_);
      }
      return error;
    }
    try {
      Record(caller, Key(ordinal, *memory));
    } catch (const std::bad_alloc&) {
      profiler_.RecordDropped(bytes);
    }
    return error;
  }

  cudaError_t Free(const Caller& caller, int device, void* memory) {
    const Key key(Resolve(device), memory);
    size_t bytes = 0;
    bool has_ended = false;  // the record of the segment
    bool was_block = false;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      const auto device_id = devices_.find(key.first);
      if (device_id != devices_.end()) {
        was_block = profiler_.RecordBlockFree({device_id->second, allocator_}, memory).has_value();
      }
      // The record of memory that goes back to CUDA is removed before that. CUB decides by the size of its cache, which
      // other threads change, so the decision is checked afterwards.
      const auto live = live_blocks.find(BlockDescriptor(memory, key.first));
      if (live != live_blocks.end()) {
        bytes = live->bytes;
        const bool stays = live->bin != INVALID_BIN && cached_bytes[key.first].free + bytes <= max_cached_bytes;
        if (!stays) has_ended = TakeSegment(key);
      }
    }
    const cudaError_t error = Base::DeviceFree(device, memory);
    // The error cudaErrorInvalidResourceHandle is that of an event: another thread has freed the cached block.
    if (error != cudaSuccess && error != cudaErrorInvalidResourceHandle && (was_block || has_ended)) {
      profiler_.RecordRefusedFree();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (StateOf(key, bytes) == State::kGone) {
      TakeSegment(key);
    } else if (has_ended) {
      AddSegment(caller, key, bytes);
    }
    return error;
  }

  // Records an allocation, which no other thread can free yet.
  void Record(const Caller& caller, const Key& key) {
    if (key.second == nullptr) return;
    Pool pool;
    size_t bytes = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      const auto block = live_blocks.find(BlockDescriptor(key.second, key.first));
      if (block == live_blocks.end()) return;
      bytes = block->bytes;
      pool = PoolOf(key.first);
      const auto [segment, is_new] = segments_.try_emplace(key, bytes);
      if (is_new || segment->second != bytes) {
        if (!is_new) EndSegment(key);
        segment->second = bytes;
        profiler_.RecordSegmentFrom(caller, pool, key.second, bytes);
        // If CUB has freed its cache to make this allocation, there are more segments than CUB has memory.
        if (segments_.size() != live_blocks.size() + cached_blocks.size()) RemoveFreedSegments();
      }
    }
    profiler_.RecordBlockFrom(caller, pool, key.second, bytes);
  }

  // --- The functions below need CUB's lock. ---

  Pool PoolOf(int ordinal) {
    auto device = devices_.find(ordinal);
    if (device == devices_.end()) device = devices_.emplace(ordinal, profiler_.Device(NameOf(ordinal))).first;
    return {device->second, allocator_};
  }

  State StateOf(const Key& key, size_t bytes) const {
    if (live_blocks.count(BlockDescriptor(key.second, key.first)) != 0) return State::kLive;
    BlockDescriptor size(key.first);
    size.bytes = bytes;
    const auto [begin, end] = cached_blocks.equal_range(size);
    const bool is_cached =
        std::any_of(begin, end, [&key](const BlockDescriptor& block) { return block.d_ptr == key.second; });
    return is_cached ? State::kCached : State::kGone;
  }

  // Ends the record of the segment. Returns whether there was one: the memory may belong to another allocator by now.
  bool EndSegment(const Key& key) {
    const std::optional<LiveBuffer> record = profiler_.FindBuffer(key.second);
    return record.has_value() && record->attributes.kind == MemoryKind::kPool &&
           profiler_.RecordSegmentFree(PoolOf(key.first), key.second).has_value();
  }
  bool TakeSegment(const Key& key) { return segments_.erase(key) != 0 && EndSegment(key); }
  void AddSegment(const Caller& caller, const Key& key, size_t bytes) {
    try {
      segments_.try_emplace(key, bytes);
      profiler_.RecordSegmentFrom(caller, PoolOf(key.first), key.second, bytes);
    } catch (const std::bad_alloc&) {
      profiler_.RecordDropped(bytes);
    }
  }

  // Removes the segments whose memory CUB no longer has.
  void RemoveFreedSegments() {
    for (auto segment = segments_.begin(); segment != segments_.end();) {
      const auto& [key, known] = *segment;
      if (StateOf(key, known) != State::kGone) {
        ++segment;
        continue;
      }
      EndSegment(key);
      segment = segments_.erase(segment);
    }
  }

  Profiler& profiler_;
  const AllocatorId allocator_;
  std::map<Key, size_t> segments_;  // the bytes of memory that CUB has from CUDA, and that is recorded as a segment
  std::map<int, DeviceId> devices_;
};

}  // namespace hbmprof::adapters

#endif  // HBMPROF_ADAPTERS_CUB_H_
