// LiveTable: which buffers are live now: id -> (site, bytes).
//
// A linear-hash table of cache lines. Each 64-byte line holds up to three records under a lock of its own in the same
// line, so one event touches one line and threads that work on different buffers share nothing. It grows and shrinks
// by one line at a time (Resize), so no event ever waits for a rehash, and memory follows the number of records.
//
// Thread safety: everything from any thread at any time, unless annotated.
//
// Invariants:
// 1. With n lines in use, a record with hash h is in line BucketOf(h, n) or in that line's chain of overflow lines.
// 2. lines_ changes only while resize_lock_ and both lines that exchange records are locked. So whoever locked line b
//    and then sees BucketOf(h, lines_) == b may use b for h until it unlocks b.
// 3. A segment of lines, once mapped, stays mapped; lines at and beyond lines_ hold no record.
// 4. An overflow line is reached only through its chain, whose first line is locked.
#ifndef HBMPROF_SRC_CORE_LIVE_TABLE_H_
#define HBMPROF_SRC_CORE_LIVE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/base/hash.h"
#include "src/base/pages.h"
#include "src/base/spin_lock.h"
#include "src/core/site_table.h"

namespace hbmprof::internal {

struct LiveRecord {
  SiteId site = kNoSite;
  int64_t bytes = 0;
};

class LiveTable {
  struct Line;

 public:
  static constexpr int64_t kMaxBytes = (int64_t{1} << 40) - 1;  // per record
  static constexpr SiteId kMaxSites = SiteId{1} << 24;          // that a record can tell apart
  static_assert(SiteTable::kMaxSites <= kMaxSites);

  enum class Inserted { kNew, kReplaced, kNoMemory };

  LiveTable() = default;
  ~LiveTable();
  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  // Where an id belongs, as far as one can know without a lock.
  class Place {
    friend class LiveTable;
    size_t lines;
    Line* line;
  };
  // Starts loading the line of `id`, for an Insert that follows.
  Place Prefetch(uint64_t id) const {
    const Place place = PlaceOf(id);
    __builtin_prefetch(place.line, 1);
    return place;
  }
  // `id` is not 0, `place` comes from Prefetch(id). If `id` is there already, its record is replaced and handed out in
  // `replaced`.
  Inserted Insert(const Place& place, uint64_t id, LiveRecord record,
                  LiveRecord* replaced) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Line* line = Lock(place, id);
    if (line == nullptr || line->overflow != nullptr) return InsertSlow(line, id, record, replaced);
    const uint32_t free = line->EntriesWith(0);
    if (free == 0 || line->EntriesWith(id) != 0) return InsertSlow(line, id, record, replaced);
    line->entries[__builtin_ctz(free)] = {id, Pack(record)};
    line->lock.Unlock();
    return Inserted::kNew;
  }
  Inserted Insert(uint64_t id, LiveRecord record, LiveRecord* replaced) {
    return Insert(Prefetch(id), id, record, replaced);
  }
  // Whether `id` was there; then its record is in `record` and gone from the table.
  bool Erase(uint64_t id, LiveRecord* record) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Line* line = Lock(PlaceOf(id), id);
    if (line == nullptr) return false;
    const uint32_t found = line->EntriesWith(id);
    if (found != 0 && line->overflow == nullptr) {
      Entry& entry = line->entries[__builtin_ctz(found)];
      *record = Unpack(entry.site_and_bytes);
      entry.id = 0;
      line->lock.Unlock();
      return true;
    }
    return EraseSlow(line, id, record);
  }
  bool Find(uint64_t id, LiveRecord* record) const;

  // Erases every record for which `matches(id, record)` holds and passes it to `erased(record)`, which runs under a
  // line's lock and must not call the table. Records inserted meanwhile may be missed.
  template <typename Matches, typename Erased>
  void EraseIf(const Matches& matches, const Erased& erased);

  // Moves towards the number of lines that fits `records`, by at most a few dozen lines; returns at once if it fits
  // already or if another thread is at it.
  void Resize(int64_t records) {
    if (records > grow_above_.load(std::memory_order_relaxed) ||
        records < shrink_below_.load(std::memory_order_relaxed)) {
      ResizeSlow(records);
    }
  }

  // Around a fork; the child calls ClearInChild instead of unlocking.
  void LockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Forgets everything and resets all locks. No other thread exists.
  void ClearInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Entry {
    uint64_t id;  // 0: empty
    uint64_t site_and_bytes;
  };
  static constexpr int kEntriesPerLine = 3;
  struct alignas(64) Line {
    SpinLock lock;
    uint32_t unused;
    Line* overflow;
    Entry entries[kEntriesPerLine];

    // Bit n: entry n has this id. Without branches: which it is cannot be foreseen.
    uint32_t EntriesWith(uint64_t id) const {
      return static_cast<uint32_t>(entries[0].id == id) | static_cast<uint32_t>(entries[1].id == id) << 1 |
             static_cast<uint32_t>(entries[2].id == id) << 2;
    }
  };
  static_assert(sizeof(Line) == 64, "one cache line");

  static constexpr int kFirstSegmentBits = 12;
  static constexpr size_t kMinLines = 64;
  static constexpr int kSegments = 24;

  static uint64_t Pack(LiveRecord record) {
    return static_cast<uint64_t>(record.site) << 40 | static_cast<uint64_t>(record.bytes);
  }
  static LiveRecord Unpack(uint64_t packed) {
    return {static_cast<SiteId>(packed >> 40), static_cast<int64_t>(packed & kMaxBytes)};
  }
  // The line of a hash when there are `lines` lines (>= kMinLines).
  static size_t BucketOf(uint64_t hash, size_t lines) {
    const size_t half = size_t{1} << (63 - __builtin_clzll(lines));
    const size_t bucket = hash & (2 * half - 1);
    return bucket < lines ? bucket : bucket & (half - 1);
  }
  static int SegmentOf(size_t bucket) {
    return 64 - kFirstSegmentBits - __builtin_clzll(bucket | ((size_t{1} << kFirstSegmentBits) - 1));
  }
  static size_t SegmentStart(int segment) { return segment == 0 ? 0 : size_t{1} << (kFirstSegmentBits + segment - 1); }
  static size_t SegmentLines(int segment) {
    return segment == 0 ? size_t{1} << kFirstSegmentBits : SegmentStart(segment);
  }
  Line* LineAt(size_t bucket) const {
    return reinterpret_cast<Line*>(origins_[SegmentOf(bucket)].load(std::memory_order_acquire) + bucket * sizeof(Line));
  }
  // The segment's memory; null if it is not mapped.
  Line* SegmentAt(int segment) const {
    const uintptr_t origin = origins_[segment].load(std::memory_order_acquire);
    return origin == 0 ? nullptr : reinterpret_cast<Line*>(origin + SegmentStart(segment) * sizeof(Line));
  }

  Place PlaceOf(uint64_t id) const {
    Place place;
    place.lines = lines_.load(std::memory_order_acquire);
    place.line = place.lines == 0 ? nullptr : LineAt(BucketOf(HashAddress(id), place.lines));
    return place;
  }
  // The line that holds `id`, locked; null before the first Insert.
  Line* Lock(const Place& place, uint64_t id) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (place.line == nullptr) return LockLineOf(id);
    place.line->lock.Lock();
    if (lines_.load(std::memory_order_acquire) == place.lines) return place.line;
    place.line->lock.Unlock();
    return LockLineOf(id);
  }
  // The same, wherever the line is by now.
  Line* LockLineOf(uint64_t id) const;
  Inserted InsertSlow(Line* first, uint64_t id, LiveRecord record, LiveRecord* replaced) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool EraseSlow(Line* first, uint64_t id, LiveRecord* record) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void ResizeSlow(int64_t records);
  // Changes lines_ and what follows from it.
  void SetLines(size_t lines);
  bool MapSegment(int segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool Split() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool Merge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool MoveInto(Line* line, const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(line->lock);
  // Moves entries so that the chain has no holes and gives empty overflow lines back.
  void Compact(Line* line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(line->lock);
  Line* NewOverflowLine();
  void FreeOverflowLine(Line* line);

  std::atomic<size_t> lines_{0};
  // The numbers of records between which lines_ is right. (A number that is behind may be negative.)
  std::atomic<int64_t> grow_above_{INT64_MAX};
  std::atomic<int64_t> shrink_below_{INT64_MIN};
  // Of each segment, the address at which line 0 would be if all lines lay in a row; 0: not mapped.
  std::atomic<uintptr_t> origins_[kSegments] = {};
  SpinLock resize_lock_;
  SpinLock overflow_lock_;
  Line* free_overflow_ ABSL_GUARDED_BY(overflow_lock_) = nullptr;
  Arena overflow_arena_ ABSL_GUARDED_BY(overflow_lock_);
};

template <typename Matches, typename Erased>
void LiveTable::EraseIf(const Matches& matches, const Erased& erased) {
  SpinLockHolder hold_size(resize_lock_);
  const size_t lines = lines_.load(std::memory_order_relaxed);
  for (size_t bucket = 0; bucket < lines; ++bucket) {
    Line* first = LineAt(bucket);
    SpinLockHolder hold(first->lock);
    bool any = false;
    for (Line* line = first; line != nullptr; line = line->overflow) {
      for (Entry& entry : line->entries) {
        if (entry.id == 0 || !matches(entry.id, Unpack(entry.site_and_bytes))) continue;
        erased(Unpack(entry.site_and_bytes));
        entry.id = 0;
        any = true;
      }
    }
    if (any && first->overflow != nullptr) Compact(first);
  }
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LIVE_TABLE_H_
