// LiveTable: which buffers are live now: id -> (site, bytes).
//
// A linear-hash table of cache lines. Each 64-byte line holds up to three records under a lock of its own in the same
// line, so one event touches one line and threads that work on different buffers share nothing. It grows and shrinks
// by one line at a time (Resize), so no event ever waits for a rehash, and memory follows the number of records.
//
// Thread safety: everything from any thread at any time, unless annotated.
//
// Invariants:
// 1. A record with hash h is in line BucketOf(h, shape_) or in that line's chain of overflow lines.
// 2. shape_, which says how many lines are in use, changes only while resize_lock_ and both lines that exchange records
//    are locked. So whoever locked line b and then sees BucketOf(h, shape_) == b may use b for h until it unlocks b.
// 3. A segment of lines, once mapped, stays mapped; lines that are not in use hold no record.
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
  static constexpr SiteId kMaxSites = (SiteId{1} << 24) - 1;    // that a record can tell apart, and from none
  static_assert(SiteTable::kMaxSites <= kMaxSites);

  enum class Inserted { kNew, kReplaced, kNoMemory };

  LiveTable() = default;
  ~LiveTable();
  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  // Where an id belongs, as far as one can know without a lock.
  class Place {
    friend class LiveTable;
    uint64_t shape;
    Line* line;  // unless shape is 0
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
    if (InsertSimply(line, id, record)) return Inserted::kNew;
    uint64_t was = 0;
    const Inserted result = InsertSlow(line, id, Pack(record), &was);
    if (result == Inserted::kReplaced) *replaced = Unpack(was);
    return result;
  }
  Inserted Insert(uint64_t id, LiveRecord record, LiveRecord* replaced) {
    return Insert(Prefetch(id), id, record, replaced);
  }
  // Whether `id` was there; then its record is in `record` and gone from the table.
  bool Erase(uint64_t id, LiveRecord* record) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Line* line = Lock(PlaceOf(id), id);
    if (line == nullptr) return false;
    uint64_t was;
    Entry* entry = line->EntryWith(id);
    if (entry->id == id && line->overflow == nullptr) {
      was = entry->site_and_bytes;
      entry->id = 0;
      line->lock.Unlock();
    } else {
      was = EraseSlow(line, id);
      if (was == kNoRecord) return false;
    }
    *record = Unpack(was);
    return true;
  }
  // Inserts `id` unless it is there already; kReplaced: it is, and nothing was changed.
  Inserted InsertNew(uint64_t id, LiveRecord record) { return InsertNew(PlaceOf(id), id, record); }
  [[gnu::always_inline]] Inserted InsertNew(const Place& place, uint64_t id,
                                            LiveRecord record) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Line* line = Lock(place, id);
    return InsertSimply(line, id, record) ? Inserted::kNew : InsertSlow(line, id, Pack(record), nullptr);
  }
  bool Find(uint64_t id, LiveRecord* record) const;
  // Erases `id` if its record is this one; says whether it was.
  bool EraseExactly(uint64_t id, const LiveRecord& record) {
    LiveRecord erased;
    return EraseWhere(id, &erased, [&] { return erased.site == record.site && erased.bytes == record.bytes; });
  }
  // Erases `id` if its record, which is in `record` then, is one for which `agrees()` holds; says whether it was.
  // `agrees` runs under a line's lock and must not call the table.
  template <typename Agrees>
  bool EraseWhere(uint64_t id, LiveRecord* record, const Agrees& agrees) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Line* line = Lock(PlaceOf(id), id);
    if (line == nullptr) return false;
    Entry* entry = line->overflow == nullptr ? line->EntryWith(id) : EntryIn(line, id);
    bool erases = entry != nullptr && entry->id == id;
    if (erases) {
      *record = Unpack(entry->site_and_bytes);
      erases = agrees();
    }
    if (erases) {
      entry->id = 0;
      if (line->overflow != nullptr) Compact(line);
    }
    line->lock.Unlock();
    return erases;
  }

  // Puts `desired` in place of the record of `id` if that is `expected`; returns whether it was.
  bool Replace(uint64_t id, LiveRecord expected, LiveRecord desired);

  // Calls `visit(id, record)` for every record. It runs under a line's lock and must not call the table. Records that
  // are inserted meanwhile may be missed.
  template <typename Visit>
  void ForEach(const Visit& visit) const;
  // Erases every record for which `matches(id, record)` holds and passes it to `erased(record)`. `matches` runs under a
  // line's lock and must not call the table; `erased` runs under no lock. Records that are inserted meanwhile may be
  // missed.
  template <typename Matches, typename Erased>
  void EraseIf(const Matches& matches, const Erased& erased);

  // Moves towards the number of lines that fits `records`, by so few that no event is held up; returns at once if it
  // fits already or if another thread is at it. False if it has to go on; true where the host has no memory for that.
  bool Resize(int64_t records) { return Fits(records) || ResizeSlow(records); }

  // Around a fork; the child calls ClearInChild instead of unlocking.
  void LockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Releases the lines' locks, whoever held them. No other thread exists.
  void UnlockLinesInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS;
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

    bool Has(uint64_t id) const { return entries[0].id == id || entries[1].id == id || entries[2].id == id; }
    // The entry with this id, if there is one. Without branches: which it is cannot be foreseen.
    Entry* EntryWith(uint64_t id) {
      uint64_t is_later = entries[0].id != id;
      asm("" : "+r"(is_later));  // or the compiler makes branches of it
      return &entries[is_later + (is_later & static_cast<uint64_t>(entries[1].id != id))];
    }
  };
  static_assert(sizeof(Line) == 64, "one cache line");

  static constexpr int kFirstSegmentBits = 12;
  static constexpr uint64_t kNoRecord = ~uint64_t{0};  // no packed one
  static constexpr size_t kMinLines = 64;
  static constexpr size_t kSegments = 20;

  static uint64_t Pack(LiveRecord record) {
    return static_cast<uint64_t>(record.site) << 40 | static_cast<uint64_t>(record.bytes);
  }
  static LiveRecord Unpack(uint64_t packed) {
    return {static_cast<SiteId>(packed >> 40), static_cast<int64_t>(packed & kMaxBytes)};
  }
  // A number of lines (>= kMinLines), and the mask that cuts a hash to twice the largest power of two in it, in one
  // word.
  static uint64_t ShapeOf(size_t lines) { return lines | ((uint64_t{2} << (63 - __builtin_clzll(lines))) - 1) << 32; }
  static size_t LinesOf(uint64_t shape) { return static_cast<uint32_t>(shape); }
  // The line of a hash in a table of that shape.
  static size_t BucketOf(uint64_t hash, uint64_t shape) {
    const auto mask = static_cast<uint32_t>(shape >> 32);
    const auto bucket = static_cast<uint32_t>(hash) & mask;
    // No branch: it could not be foreseen.
    return bucket & mask >> static_cast<int>(bucket >= static_cast<uint32_t>(shape));
  }
  static size_t SegmentOf(size_t bucket) {
    const uint32_t number = static_cast<uint32_t>(bucket) | ((uint32_t{1} << kFirstSegmentBits) - 1);
    return 31 - static_cast<uint32_t>(__builtin_clz(number)) - (kFirstSegmentBits - 1);
  }
  static size_t SegmentStart(size_t segment) {
    return segment == 0 ? 0 : size_t{1} << (kFirstSegmentBits + segment - 1);
  }
  static size_t SegmentLines(size_t segment) {
    return segment == 0 ? size_t{1} << kFirstSegmentBits : SegmentStart(segment);
  }
  Line* LineAt(size_t bucket) const {
    return reinterpret_cast<Line*>(origins_[SegmentOf(bucket)].load(std::memory_order_acquire) + bucket * sizeof(Line));
  }
  // The segment's memory; null if it is not mapped.
  Line* SegmentAt(size_t segment) const {
    const uintptr_t origin = origins_[segment].load(std::memory_order_acquire);
    return origin == 0 ? nullptr : reinterpret_cast<Line*>(origin + SegmentStart(segment) * sizeof(Line));
  }

  Place PlaceOf(uint64_t id) const {
    Place place;
    place.shape = shape_.load(std::memory_order_acquire);
    place.line = LineAt(BucketOf(HashAddress(id), place.shape));
    return place;
  }
  // The line that holds `id`, locked; null before the first Insert.
  Line* Lock(const Place& place, uint64_t id) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (place.shape == 0) return LockLineOf(id);
    place.line->lock.Lock();
    if (shape_.load(std::memory_order_acquire) == place.shape) return place.line;
    place.line->lock.Unlock();
    return LockLineOf(id);
  }
  // The same, wherever the line is by now.
  Line* LockLineOf(uint64_t id) const;
  // Inserts into a locked line that has no others behind it, is not full and has no such id, and unlocks it. False if
  // it is another one, or null.
  [[gnu::always_inline]] bool InsertSimply(Line* line, uint64_t id, LiveRecord record) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (line == nullptr || line->overflow != nullptr || line->Has(id)) return false;
    Entry* free = line->EntryWith(0);
    if (free->id != 0) return false;
    *free = {id, Pack(record)};
    line->lock.Unlock();
    return true;
  }
  // The entry of `id` in the chain of a locked line; null if there is none.
  static Entry* EntryIn(Line* first, uint64_t id);
  // The rest of Insert and of Erase, with records packed. `first` is locked, or null for Insert where there are no
  // lines. `replaced` is null if a record that is there stays.
  Inserted InsertSlow(Line* first, uint64_t id, uint64_t record, uint64_t* replaced) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  uint64_t EraseSlow(Line* first, uint64_t id) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool Fits(int64_t records) const {
    return records <= grow_above_.load(std::memory_order_relaxed) &&
           records >= shrink_below_.load(std::memory_order_relaxed);
  }
  bool ResizeSlow(int64_t records);
  // Changes shape_ and what follows from it.
  void SetLines(size_t lines);
  bool MapSegment(size_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool Split() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool Merge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool MoveInto(Line* line, const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(line->lock);
  // Moves entries so that the chain has no holes and gives empty overflow lines back.
  void Compact(Line* line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(line->lock);
  Line* NewOverflowLine();
  void FreeOverflowLine(Line* line);

  std::atomic<uint64_t> shape_{0};  // 0 before the first Insert, and only then
  // The numbers of records between which it is right. (A number that is behind may be negative.)
  std::atomic<int64_t> grow_above_{INT64_MAX};
  std::atomic<int64_t> shrink_below_{INT64_MIN};
  // Of each segment, the address at which line 0 would be if all lines lay in a row; 0: not mapped.
  std::atomic<uintptr_t> origins_[kSegments] = {};
  mutable SpinLock resize_lock_;
  SpinLock overflow_lock_;
  Line* free_overflow_ ABSL_GUARDED_BY(overflow_lock_) = nullptr;
  Arena overflow_arena_ ABSL_GUARDED_BY(overflow_lock_);
};

template <typename Visit>
void LiveTable::ForEach(const Visit& visit) const {
  SpinLockHolder hold_size(resize_lock_);
  const size_t lines = LinesOf(shape_.load(std::memory_order_relaxed));
  for (size_t bucket = 0; bucket < lines; ++bucket) {
    Line* first = LineAt(bucket);
    SpinLockHolder hold(first->lock);
    for (const Line* line = first; line != nullptr; line = line->overflow) {
      for (const Entry& entry : line->entries) {
        if (entry.id != 0) visit(entry.id, Unpack(entry.site_and_bytes));
      }
    }
  }
}

template <typename Matches, typename Erased>
void LiveTable::EraseIf(const Matches& matches, const Erased& erased) {
  constexpr int kAtOnce = 32;  // a small stack has room for them
  LiveRecord gone[kAtOnce];
  uint64_t shape = 0;
  size_t bucket = 0;
  int count;
  do {
    count = 0;
    {
      SpinLockHolder hold_size(resize_lock_);
      if (const uint64_t now = shape_.load(std::memory_order_relaxed); now != shape) {
        // Records have moved between lines.
        shape = now;
        bucket = 0;
      }
      for (; bucket < LinesOf(shape); ++bucket) {
        Line* first = LineAt(bucket);
        SpinLockHolder hold(first->lock);
        const int count_before = count;
        for (Line* line = first; line != nullptr && count < kAtOnce; line = line->overflow) {
          for (Entry& entry : line->entries) {
            if (entry.id == 0 || count == kAtOnce || !matches(entry.id, Unpack(entry.site_and_bytes))) continue;
            gone[count++] = Unpack(entry.site_and_bytes);
            entry.id = 0;
          }
        }
        if (count > count_before && first->overflow != nullptr) Compact(first);
        if (count == kAtOnce) break;
      }
    }
    for (int i = 0; i < count; ++i) erased(gone[i]);
  } while (count == kAtOnce);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LIVE_TABLE_H_
