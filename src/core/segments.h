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
  // Idle bytes, and above them how often the record was in use before. One word: whoever takes bytes takes them from
  // the segment that was found, or not at all.
  std::atomic<uint64_t> state{0};
  std::atomic<SiteId> site{kNoSite};
  Segment* next_free = nullptr;
};

class SegmentMap {
 public:
  static constexpr int kBytesBits = 40;
  static constexpr uint64_t kMaxBytes = (uint64_t{1} << kBytesBits) - 1;  // per segment

  // A segment as it was found. It may have been removed since, and its record used again.
  class Found {
   public:
    explicit operator bool() const { return segment_ != nullptr; }
    SiteId site() const { return site_; }
    // Whether it is still in the map.
    bool IsThere() const { return segment_->state.load(std::memory_order_acquire) >> kBytesBits == use_; }
    // Takes `bytes` from what is idle; false if there is less, or the segment was removed.
    bool Reserve(int64_t bytes) const;
    // Undoes Reserve, unless the segment was removed.
    void Return(int64_t bytes) const;

   private:
    friend class SegmentMap;
    Segment* segment_ = nullptr;
    uint64_t use_ = 0;
    SiteId site_ = kNoSite;
  };

  enum class Added : uint8_t {
    kAdded,
    kRefused,  // it overlaps a segment, is empty, or too large
    kNoMemory,
  };

  SegmentMap() = default;
  ~SegmentMap();
  SegmentMap(const SegmentMap&) = delete;
  SegmentMap& operator=(const SegmentMap&) = delete;

  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // `added` gets the new segment.
  Added Add(uint64_t start, uint64_t bytes, SiteId site, Found* added);
  // Whether there was a segment that starts there. `had_blocks`: some of it was reserved. No more of it can be.
  bool Remove(uint64_t start, bool* had_blocks);
  // Removes this very segment, if it is still there.
  void Remove(const Found& found);
  // Removes all segments for whose site `matches` holds.
  template <typename Matches>
  void RemoveIf(const Matches& matches);
  // The segment that holds all of [start, start+bytes).
  Found Find(uint64_t start, uint64_t bytes) const;
  // Forgets all segments.
  void Clear() {
    RemoveIf([](SiteId) { return true; });
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
  // The place after that of the segment that starts at `start`; 0 if there is none.
  size_t PlaceAfter(uint64_t start) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  // Returns its idle bytes. The segment is out of the array, or about to be.
  uint64_t Retire(Segment* segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  void RemoveAt(size_t place, bool* had_blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);
  bool Reserve(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_);

  mutable SpinLock lock_;
  std::atomic<uint32_t> sequence_{0};  // odd while the array changes
  std::atomic<Array*> array_{nullptr};
  std::atomic<size_t> count_{0};
  Segment* free_ ABSL_GUARDED_BY(lock_) = nullptr;
  Arena arena_ ABSL_GUARDED_BY(lock_);
};

template <typename Matches>
void SegmentMap::RemoveIf(const Matches& matches) {
  SpinLockHolder hold(lock_);
  Array* array = array_.load(std::memory_order_relaxed);
  const size_t count = count_.load(std::memory_order_relaxed);
  size_t kept = 0;
  sequence_.fetch_add(1, std::memory_order_acq_rel);
  for (size_t i = 0; i < count; ++i) {
    Segment* segment = array->slots()[i].load(std::memory_order_relaxed);
    if (matches(segment->site.load(std::memory_order_relaxed))) {
      Retire(segment);
    } else {
      array->slots()[kept++].store(segment, std::memory_order_release);
    }
  }
  count_.store(kept, std::memory_order_release);
  sequence_.fetch_add(1, std::memory_order_release);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SEGMENTS_H_
