// LiveTable: the buffers that are live now. Maps the id of a buffer to its site and bytes.
//
// A linear-hash table. A bucket is one cache line of 64 bytes: a lock and up to three records. So one event touches one
// cache line, and threads that work on different buffers share nothing. The table grows and shrinks by one bucket at a
// time (Resize), so no event waits for a rehash, and the memory is proportional to the number of records.
//
// Thread safety: all methods may be called from any thread at any time, unless annotated.
//
// Invariants:
// 1. A record with hash h is in bucket IndexOf(h, state_) or in that bucket's chain of overflow buckets.
// 2. state_ is the split state: how many buckets are in use. It changes only while resize_lock_ and both buckets that
//    exchange records are locked. So a thread that has locked bucket b and then sees IndexOf(h, state_) == b may use b
//    for h until it unlocks b.
// 3. A segment of buckets, once mapped, stays mapped; buckets that are not in use hold no record.
// 4. An overflow bucket is reached only through its chain, whose first bucket is locked.
#ifndef HBMPROF_SRC_CORE_LIVE_TABLE_H_
#define HBMPROF_SRC_CORE_LIVE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

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
  struct Bucket;

 public:
  static constexpr int64_t kMaxBytes = (int64_t{1} << 40) - 1;  // per record
  static constexpr SiteId kMaxSites = (SiteId{1} << 24) - 1;    // a record has 24 bits for the site
  static_assert(SiteTable::kMaxSites <= kMaxSites);

  enum class Inserted { kNew, kReplaced, kNoMemory };

  LiveTable();
  ~LiveTable();
  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  // The bucket of an id, found without a lock. If the split state has changed since, the id may be in another bucket.
  class Position {
    friend class LiveTable;
    uint64_t state;
    Bucket* bucket;
  };
  // Starts loading the bucket of `id`, for a following TryInsert or InsertNew. Returns its position.
  Position Prefetch(uint64_t id) const {
    const Position position = PositionOf(id);
    __builtin_prefetch(position.bucket, 1);
    return position;
  }
  // Inserts `id`, which is not 0. If `id` is in the table, its record is replaced, and `*replaced` is set to the old
  // record.
  Inserted Insert(uint64_t id, LiveRecord record, LiveRecord* replaced) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    uint64_t was = 0;
    const Inserted result = InsertInto(Lock(PositionOf(id), id), id, Pack(record), &was);
    if (result == Inserted::kReplaced) *replaced = Unpack(was);
    return result;
  }
  // A record as one word: 24 bits of site, 40 bits of bytes.
  static uint64_t Pack(LiveRecord record) {
    return static_cast<uint64_t>(record.site) << 40 | static_cast<uint64_t>(record.bytes);
  }
  static LiveRecord Unpack(uint64_t packed) {
    return {static_cast<SiteId>(packed >> 40), static_cast<int64_t>(packed & kMaxBytes)};
  }

  // Removes `id` and sets `*record` to its record. Returns false if it is not in the table.
  bool Erase(uint64_t id, LiveRecord* record) {
    return EraseWhere(id, record, [] { return true; });
  }
  // Like InsertNew for the common case: returns false, and changes nothing, if another thread has locked the bucket, if
  // the split state has changed, if `id` is in the table, or if the bucket is full or has an overflow bucket. Calls
  // no function.
  bool TryInsert(const Position& position, uint64_t id, LiveRecord record) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!position.bucket->lock.TryLock()) return false;
    const bool inserts =
        state_.load(std::memory_order_acquire) == position.state && InsertSimply(position.bucket, id, record);
    position.bucket->lock.Unlock();
    return inserts;
  }
  // Like Erase, but also returns false, and changes nothing, if another thread has locked the bucket, if the record is
  // in an overflow bucket, or if it has just moved to another bucket. Sets `*packed` to the packed record. Calls no
  // function.
  bool TryErase(uint64_t id, uint64_t* packed) {
    return TryEraseWhere(id, packed, [] { return true; });
  }
  // The same for EraseWhere.
  template <typename Agrees>
  bool TryEraseWhere(uint64_t id, uint64_t* packed, const Agrees& agrees) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Position position = PositionOf(id);
    Bucket* bucket = position.bucket;
    if (!bucket->lock.TryLock()) return false;
    Entry* entry = bucket->EntryWith(id);
    // A record is only in the bucket of its id, so if it is here, the split state need not be compared.
    bool erases = entry->id == id;
    if (erases) {
      *packed = entry->site_and_bytes;
      erases = agrees();
      if (erases) entry->id = 0;
    }
    bucket->lock.Unlock();
    return erases;
  }
  // Inserts `id` if it is not in the table. If it is, returns kReplaced and changes nothing.
  Inserted InsertNew(uint64_t id, LiveRecord record) { return InsertNew(PositionOf(id), id, record); }
  Inserted InsertNew(const Position& position, uint64_t id, LiveRecord record) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (TryInsert(position, id, record)) return Inserted::kNew;
    return InsertInto(Lock(position, id), id, Pack(record), nullptr);
  }
  // Sets `*record` to the record of `id`. Returns false if it is not in the table.
  bool Find(uint64_t id, LiveRecord* record) const;
  // Removes `id` if its record equals `record`. Returns whether it did.
  bool EraseExactly(uint64_t id, const LiveRecord& record) {
    LiveRecord erased;
    return EraseWhere(id, &erased, [&] { return erased.site == record.site && erased.bytes == record.bytes; });
  }
  // Sets `*record` to the record of `id`, then calls `agrees()`, and removes `id` if that returns true. Returns whether
  // `id` was removed. `agrees` runs under a bucket's lock and must not call the table.
  template <typename Agrees>
  bool EraseWhere(uint64_t id, LiveRecord* record, const Agrees& agrees) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Bucket* bucket = Lock(PositionOf(id), id);
    Entry* entry = bucket->overflow == nullptr ? bucket->EntryWith(id) : EntryIn(bucket, id);
    bool erases = entry != nullptr && entry->id == id;
    if (erases) {
      *record = Unpack(entry->site_and_bytes);
      erases = agrees();
    }
    if (erases) {
      entry->id = 0;
      if (bucket->overflow != nullptr) Compact(bucket);
    }
    bucket->lock.Unlock();
    return erases;
  }

  // Replaces the record of `id` by `desired` if it equals `expected`. Returns whether it did.
  bool Replace(uint64_t id, LiveRecord expected, LiveRecord desired);

  // Calls `visit(id, record)` for every record. It runs under a bucket's lock and must not call the table. Records that
  // are inserted meanwhile may be missed.
  template <typename Visit>
  void ForEach(const Visit& visit) const;
  // Removes every record for which `matches(id, record)` returns true, and calls `erased(id, record)` for it. `matches`
  // runs under a bucket's lock and must not call the table; `erased` runs under no lock. Records that are inserted
  // meanwhile may be missed.
  template <typename Matches, typename Erased>
  void EraseIf(const Matches& matches, const Erased& erased);

  // Changes the number of buckets towards the number that fits `records` records. One call adds or removes a limited
  // number of buckets. Returns true if the number of buckets now fits, or if the host has no memory for more buckets.
  // Returns false if more calls are needed. If another thread is changing the number, does nothing and returns false.
  bool Resize(int64_t records) { return Fits(records) || ResizeSlow(records); }

  // Around a fork; the child calls ClearInChild instead of unlocking.
  void LockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Releases the locks of all buckets, including those that threads of the parent held. No other thread exists.
  void UnlockBucketsInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Removes all records and releases all locks. No other thread exists.
  void ClearInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Entry {
    uint64_t id;  // 0: empty
    uint64_t site_and_bytes;
  };
  static constexpr int kEntriesPerBucket = 3;
  struct alignas(64) Bucket {
    SpinLock lock;
    uint32_t unused;
    Bucket* overflow;
    Entry entries[kEntriesPerBucket];

    bool Has(uint64_t id) const { return entries[0].id == id || entries[1].id == id || entries[2].id == id; }
    // Returns the entry with this id if there is one, else any entry. It has no branches, because the processor cannot
    // predict which entry it is.
    Entry* EntryWith(uint64_t id) {
      uint64_t is_later = entries[0].id != id;
      asm("" : "+r"(is_later));  // without this, the compiler uses branches
      return &entries[is_later + (is_later & static_cast<uint64_t>(entries[1].id != id))];
    }
  };
  static_assert(sizeof(Bucket) == 64, "one cache line");

  // Segment s has the buckets from 2^s on, up to 2^(s+1). The first segment also has all buckets before them.
  static constexpr size_t kFirstSegment = 5;
  static constexpr size_t kSegments = 31;
  static constexpr size_t kMinBuckets = size_t{2} << kFirstSegment;

  // Returns the split state of a table of `buckets` buckets (at least kMinBuckets). The low half is `buckets`. The high
  // half is a mask for hashes: 2 * p - 1, where p is the largest power of two that is not above `buckets`.
  static uint64_t StateOf(size_t buckets) {
    return buckets | ((uint64_t{2} << (63 - __builtin_clzll(buckets))) - 1) << 32;
  }
  static size_t BucketsOf(uint64_t state) { return static_cast<uint32_t>(state); }
  // The index of the bucket of a hash in a table with that state.
  static size_t IndexOf(uint64_t hash, uint64_t state) {
    const auto mask = static_cast<uint32_t>(state >> 32);
    const auto index = static_cast<uint32_t>(hash) & mask;
    // It has no branch, because the processor could not predict it.
    return index & mask >> static_cast<int>(index >= static_cast<uint32_t>(state));
  }
  static size_t SegmentOf(size_t index) {
    return size_t{31} - static_cast<size_t>(__builtin_clz(static_cast<uint32_t>(index | (kMinBuckets - 1))));
  }
  static size_t SegmentStart(size_t segment) { return segment == kFirstSegment ? 0 : size_t{1} << segment; }
  static size_t SegmentBuckets(size_t segment) { return segment == kFirstSegment ? kMinBuckets : size_t{1} << segment; }
  Bucket* BucketAt(size_t index) const {
    return reinterpret_cast<Bucket*>(origins_[SegmentOf(index)].load(std::memory_order_acquire) +
                                     index * sizeof(Bucket));
  }
  // The first bucket of the segment; null if the segment is not mapped.
  Bucket* SegmentAt(size_t segment) const {
    const uintptr_t origin = origins_[segment].load(std::memory_order_acquire);
    return origin == 0 ? nullptr : reinterpret_cast<Bucket*>(origin + SegmentStart(segment) * sizeof(Bucket));
  }

  Position PositionOf(uint64_t id) const {
    Position position;
    position.state = state_.load(std::memory_order_acquire);
    position.bucket = BucketAt(IndexOf(HashAddress(id), position.state));
    return position;
  }
  // Locks and returns the bucket of `id`.
  Bucket* Lock(const Position& position, uint64_t id) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    position.bucket->lock.Lock();
    if (state_.load(std::memory_order_acquire) == position.state) return position.bucket;
    position.bucket->lock.Unlock();
    return LockBucketOf(id);
  }
  // The same, if the split state has changed since the position was computed.
  [[gnu::cold]] Bucket* LockBucketOf(uint64_t id) const;
  // `bucket` is locked. If it has no overflow bucket, has space, and does not contain the id, inserts the record and
  // returns true. Otherwise does nothing and returns false.
  static bool InsertSimply(Bucket* bucket, uint64_t id, LiveRecord record) {
    if (bucket->overflow != nullptr || bucket->Has(id)) return false;
    Entry* free = bucket->EntryWith(0);
    if (free->id != 0) return false;
    *free = {id, Pack(record)};
    return true;
  }
  // Returns the entry of `id` in the chain of a locked bucket, or null if there is none.
  static Entry* EntryIn(Bucket* first, uint64_t id);
  // Insert, with packed records. `first` is locked, and InsertInto unlocks it. If `replaced` is null, an existing
  // record stays.
  Inserted InsertInto(Bucket* first, uint64_t id, uint64_t record, uint64_t* replaced) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  bool Fits(int64_t records) const {
    return records <= grow_above_.load(std::memory_order_relaxed) &&
           records >= shrink_below_.load(std::memory_order_relaxed);
  }
  [[gnu::cold]] bool ResizeSlow(int64_t records);
  // Sets state_ and the limits that depend on it.
  void SetBuckets(size_t buckets);
  // These three return false if there is no memory; then nothing changes. Split adds a bucket, Merge removes one.
  bool MapSegment(size_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool Split() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool Merge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  // Copies an entry into the chain of a bucket. Returns false if there is no memory for an overflow bucket.
  bool MoveInto(Bucket* bucket, const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(bucket->lock);
  // Moves entries so that the chain has no empty ones, and frees overflow buckets that become empty.
  void Compact(Bucket* bucket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(bucket->lock);
  // Returns null if there is no memory.
  Bucket* NewOverflowBucket();
  void FreeOverflowBucket(Bucket* bucket);

  // For each segment, the address that bucket 0 would have if all buckets were in one array; 0: not mapped. It is the
  // first member, so that an access to it needs no addition.
  std::atomic<uintptr_t> origins_[kSegments] = {};
  std::atomic<uint64_t> state_;
  // The number of buckets fits if the number of records is between these two. (The number of records may be out of
  // date, and therefore negative.)
  std::atomic<int64_t> grow_above_;
  std::atomic<int64_t> shrink_below_;
  mutable SpinLock resize_lock_;
  SpinLock overflow_lock_;
  Bucket* free_overflow_ ABSL_GUARDED_BY(overflow_lock_) = nullptr;
  Arena overflow_arena_ ABSL_GUARDED_BY(overflow_lock_);
  Bucket first_segment_[kMinBuckets] = {};
};

template <typename Visit>
void LiveTable::ForEach(const Visit& visit) const {
  SpinLockHolder hold_size(resize_lock_);
  const size_t buckets = BucketsOf(state_.load(std::memory_order_relaxed));
  for (size_t index = 0; index < buckets; ++index) {
    Bucket* first = BucketAt(index);
    SpinLockHolder hold(first->lock);
    for (const Bucket* bucket = first; bucket != nullptr; bucket = bucket->overflow) {
      for (const Entry& entry : bucket->entries) {
        if (entry.id != 0) visit(entry.id, Unpack(entry.site_and_bytes));
      }
    }
  }
}

template <typename Matches, typename Erased>
void LiveTable::EraseIf(const Matches& matches, const Erased& erased) {
  constexpr int kAtOnce = 32;  // a small stack has space for them
  std::pair<uint64_t, LiveRecord> gone[kAtOnce];
  uint64_t state = 0;
  size_t index = 0;
  int count;
  do {
    count = 0;
    {
      SpinLockHolder hold_size(resize_lock_);
      if (const uint64_t now = state_.load(std::memory_order_relaxed); now != state) {
        // Records have moved between buckets, so the search begins again.
        state = now;
        index = 0;
      }
      for (; index < BucketsOf(state); ++index) {
        Bucket* first = BucketAt(index);
        SpinLockHolder hold(first->lock);
        const int count_before = count;
        for (Bucket* bucket = first; bucket != nullptr && count < kAtOnce; bucket = bucket->overflow) {
          for (Entry& entry : bucket->entries) {
            if (entry.id == 0 || count == kAtOnce || !matches(entry.id, Unpack(entry.site_and_bytes))) continue;
            gone[count++] = {entry.id, Unpack(entry.site_and_bytes)};
            entry.id = 0;
          }
        }
        if (count > count_before && first->overflow != nullptr) Compact(first);
        if (count == kAtOnce) break;
      }
    }
    for (int i = 0; i < count; ++i) erased(gone[i].first, gone[i].second);
  } while (count == kAtOnce);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LIVE_TABLE_H_
