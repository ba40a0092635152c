// SegmentMap: the live segments of pools, by address, with how much of each no block covers.
//
// Thread safety: everything from any thread. Finding takes no lock (a sequence lock over a sorted array, whose words
// are atomics); adding and removing take one. Reserving and returning bytes are atomic additions.
//
// The sequence lock has no fences: the array's words are stored with release and loaded with acquire, so a reader that
// saw any word of a change also sees the sequence number that announced it.
#ifndef HBMPROF_SRC_CORE_SEGMENTS_H_
#define HBMPROF_SRC_CORE_SEGMENTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/base/pages.h"
#include "src/base/spin_lock.h"
#include "src/core/site_table.h"

namespace hbmprof::internal {

// Once made, a record stays readable for the life of the map, and is used again for a later segment.
struct Segment {
  std::atomic<uint64_t> start{0};
  std::atomic<uint64_t> end{0};  // one past the last byte
  std::atomic<int64_t> idle_bytes{0};
  std::atomic<SiteId> site{kNoSite};
  Segment* next_free = nullptr;
};

class SegmentMap {
 public:
  SegmentMap() = default;
  ~SegmentMap();
  SegmentMap(const SegmentMap&) = delete;
  SegmentMap& operator=(const SegmentMap&) = delete;

  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // Returns false if it overlaps a segment or there is no memory.
  bool Add(uint64_t start, uint64_t bytes, SiteId site);
  // Whether there was a segment that starts there. `had_blocks`: some of it was covered.
  bool Remove(uint64_t start, bool* had_blocks);
  // The segment that holds all of [start, start+bytes); null if none does.
  Segment* Find(uint64_t start, uint64_t bytes) const;
  // Forgets all segments.
  void Clear();

  // Takes `bytes` from what is idle; false if there is less.
  static bool Reserve(Segment& segment, int64_t bytes);
  static void Return(Segment& segment, int64_t bytes) {
    segment.idle_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  // Around a fork.
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION(lock_) { lock_.Lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION(lock_) { lock_.Unlock(); }

 private:
  using Slot = std::atomic<Segment*>;
  // Slots [0, count_) hold the segments by ascending start. An array that was outgrown stays mapped for its readers.
  struct Array {
    size_t capacity;
    Array* older;
    Slot* slots() { return reinterpret_cast<Slot*>(this + 1); }
  };

  size_t UpperBound(Array* array, size_t count, uint64_t address) const;
  bool Reserve(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);

  mutable SpinLock lock_;
  std::atomic<uint32_t> sequence_{0};  // odd while the array changes
  std::atomic<Array*> array_{nullptr};
  std::atomic<size_t> count_{0};
  Segment* free_ ABSL_GUARDED_BY(lock_) = nullptr;
  Arena arena_ ABSL_GUARDED_BY(lock_);
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SEGMENTS_H_
