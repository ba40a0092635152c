// LiveTable: the buffers that are live now. Maps the id of a buffer to its site, its bytes and its birth.
//
// A hash table. A bucket is one cache line: a lock and up to three records. The buckets are the leaves of a binary
// tree. The node with index i has the children 2 * i and 2 * i + 1, and the root has the index 1. The bits of a hash,
// from the second highest on, are the way from the root to the bucket of the hash. A table of n buckets has the leaves
// n to 2 * n - 1. To grow, the leaf n gets children, which become buckets.
//
// Thread safety: all methods may be called from any thread at any time, unless annotated.
//
// Invariants:
// 1. A record with hash h is in bucket IndexOf(h, state_) or in that bucket's chain of overflow buckets.
// 2. state_ is the split state: how many buckets are in use. It changes only while resize_lock_ and the buckets that
//    exchange records are locked. So a thread that has locked bucket b and then sees IndexOf(h, state_) == b may use b
//    for h until it unlocks b.
// 3. An array of buckets, once mapped, stays mapped; buckets that are not in use hold no record.
// 4. An overflow bucket is reached only through its chain, whose first bucket is locked.
// 5. A chain has no free entry before a used one. Only its first overflow bucket, or if there is none its first bucket,
//    may have free entries. The id of a free entry is 0.
// 6. Locks are taken in this order: resize_lock_, buckets by index, overflow_lock_.
#ifndef HBMPROF_SRC_CORE_TABLES_LIVE_TABLE_H_
#define HBMPROF_SRC_CORE_TABLES_LIVE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "src/base/pages.h"
#include "src/base/spin_lock.h"
#include "src/core/generations.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

struct LiveRecord {
  SiteId site = kNoSite;
  Generation birth = 0;
  int64_t bytes = 0;
};

class LiveTable {
  struct Bucket;

 public:
  static constexpr int64_t kMaxBytes = (int64_t{1} << 40) - 1;  // per record
  static constexpr SiteId kMaxSites = (SiteId{1} << 24) - 1;    // a record has 24 bits for the site
  static_assert(SiteTable::kMaxSites <= kMaxSites);

  enum class Inserted { kNew, kTaken, kNoMemory };

  LiveTable();  // throws std::bad_alloc
  ~LiveTable();

  // Inserts `id`, which is not 0. If `id` is in the table, returns kTaken and changes nothing.
  Inserted Insert(uint64_t id, const LiveRecord& record);
  // A record without its birth as one word: 24 bits of site, 40 bits of bytes.
  static uint64_t Pack(const LiveRecord& record) {
    return static_cast<uint64_t>(record.site) << 40 | static_cast<uint64_t>(record.bytes);
  }
  static LiveRecord Unpack(uint64_t packed, Generation birth) {
    return {static_cast<SiteId>(packed >> 40), birth, static_cast<int64_t>(packed & kMaxBytes)};
  }

  // The common case of Insert: returns false, and changes nothing, if another thread has locked the bucket, if
  // the split state has changed, if `id` is in the table, or if the bucket is full. Calls no function.
  bool TryInsert(uint64_t id, const LiveRecord& record) {
    const uint64_t state = state_.load(std::memory_order_acquire);
    Bucket& bucket = *BucketOf(id, state);
    const uint32_t fill = bucket.TryLock();
    if (__builtin_expect(fill > kFull - kOne, 0) != 0) {
      bucket.UndoTryLock(fill);
      return false;
    }
    // The third entry is free.
    const bool inserts =
        state_.load(std::memory_order_acquire) == state && bucket.entries[0].id != id && bucket.entries[1].id != id;
    if (inserts) {
      bucket.EntryAt(fill) = {id, Pack(record)};
      bucket.BirthAt(fill) = record.birth;
    }
    bucket.Unlock(inserts ? fill + kOne : fill);
    return inserts;
  }
  // Sets `*record` to the record of `id`. Returns false if it is not in the table.
  bool Find(uint64_t id, LiveRecord* record) const;
  // What happens with a record.
  enum class Then : uint8_t { kKeep, kErase };
  // Calls `change(record)` with the record of `id`, whose site and bytes it may set. Removes the record if that returns
  // kErase. Returns false if there is no record. `change` runs under a bucket's lock and must not call the table.
  template <typename Function>
  bool Change(uint64_t id, const Function& change) {
    LockedChain chain(*this, id);
    const Place place = chain.Find(id);
    if (place.bucket == nullptr) return false;
    LiveRecord record = place.record();
    if (change(&record) == Then::kErase) {
      chain.Remove(place);
    } else {
      place.entry().site_and_bytes = Pack(record);
    }
    return true;
  }
  // The common case of a removal: sets `*record` to the record of `id`, then calls `agrees()`, and removes the record
  // if that returns true. Returns whether it was removed. Returns false, and changes nothing, also if another thread
  // has locked the bucket, if the bucket has an overflow bucket, or if the record is not in the bucket. Calls no
  // function but `agrees`, which runs under the bucket's lock.
  template <typename Agrees>
  bool TryErase(uint64_t id, LiveRecord* record, const Agrees& agrees) {
    Bucket& bucket = *BucketOf(id, state_.load(std::memory_order_acquire));
    const uint32_t fill = bucket.TryLock();
    const uint32_t last = fill - kOne;
    if (__builtin_expect(last >= kFull, 0) != 0) {
      bucket.UndoTryLock(fill);
      return false;
    }
    const uint64_t at = bucket.PlaceOf(id);
    Entry& entry = bucket.EntryAt(at);
    // A record is only in the bucket of its id, so if it is here, the split state need not be compared.
    bool erases = entry.id == id;
    if (erases) {
      *record = Unpack(entry.site_and_bytes, bucket.BirthAt(at));
      erases = agrees();
    }
    if (erases) {
      bucket.BirthAt(at) = bucket.BirthAt(last);
      Entry& moved = bucket.EntryAt(last);
      entry.id = moved.id;
      // Two words: they may just have been stored, and narrow stores are not read back by a wider load.
      asm("" : : : "memory");
      entry.site_and_bytes = moved.site_and_bytes;
      moved.id = 0;
    }
    bucket.Unlock(erases ? last : fill);
    return erases;
  }

  // Calls VisitSome until all records are visited.
  template <typename Visit>
  void ForEach(const Visit& visit) const;
  // Calls `visit(id, record)` for a limited number of records, from the hash `*next` on, which is kFirstHash for the
  // first call, and sets `*next` for the following call. Returns false after the last records. All calls together visit
  // each record that is live meanwhile exactly once. `visit` runs under locks of the table, which it must not call. A
  // long visit delays nobody for long.
  template <typename Visit>
  bool VisitSome(uint64_t* next, const Visit& visit) const;
  static constexpr uint64_t kFirstHash = uint64_t{1} << 63;
  static constexpr size_t kMostVisited = 1024;  // by one VisitSome, usually far fewer

  // Adds buckets until there are enough for `records` records, which may be negative. One call adds a limited number.
  // Returns true if there are enough, or if the host has no memory for more. Returns false if more calls are needed. If
  // another thread is adding some, does nothing and returns false.
  bool Grow(int64_t records) { return records <= grow_above_.load(std::memory_order_relaxed) || GrowSlow(records); }

 private:
  struct Entry {
    uint64_t id;  // 0: empty
    uint64_t site_and_bytes;
  };
  static constexpr uint32_t kEntriesPerBucket = 3;
  // A place in a bucket is a multiple of kOne, so that the addresses of its entry and of its birth need no shift.
  static constexpr uint32_t kOne = sizeof(Generation);
  // What Bucket::fill can be, besides kOne times the number of entries in use.
  static constexpr uint32_t kFull = kEntriesPerBucket * kOne;
  static constexpr uint32_t kOverflows = kFull + kOne;  // full, and has an overflow bucket
  static constexpr uint16_t kLocked = 0x8000;
  static_assert(kOverflows < kLocked);
  struct alignas(64) Bucket {
    // kOne times the number of entries in use, kOverflows or kLocked. One word says how full the bucket is and whether
    // it is locked, so an event compares once. The thread with the lock has the other value. An overflow bucket is
    // never locked.
    std::atomic<uint16_t> fill;
    Generation births[kEntriesPerBucket];
    Bucket* overflow;
    Entry entries[kEntriesPerBucket];

    // Returns kLocked if another thread has locked the bucket. Otherwise locks it and returns the fill.
    uint32_t TryLock() { return fill.exchange(kLocked, std::memory_order_acquire); }
    // `before`: what TryLock returned.
    [[gnu::cold]] void UndoTryLock(uint32_t before) {
      if (before != kLocked) Unlock(before);
    }
    uint32_t Lock() {
      Backoff backoff;
      for (;;) {
        if (const uint32_t before = TryLock(); before != kLocked) return before;
        while (fill.load(std::memory_order_relaxed) == kLocked) backoff.Wait();
      }
    }
    void Unlock(uint32_t new_fill) { fill.store(static_cast<uint16_t>(new_fill), std::memory_order_release); }
    Entry& EntryAt(uint64_t place) {
      constexpr size_t kBytes = sizeof(Entry) / kOne;
      return *reinterpret_cast<Entry*>(reinterpret_cast<char*>(this) + place * kBytes + offsetof(Bucket, entries));
    }
    Generation& BirthAt(uint64_t place) {
      return *reinterpret_cast<Generation*>(reinterpret_cast<char*>(this) + place + offsetof(Bucket, births));
    }
    // Returns the place of this id if it has one, else any place. It has no branches, because the processor cannot
    // predict which place it is.
    uint64_t PlaceOf(uint64_t id) const {
      uint64_t place = 2 * kOne;
      if (entries[1].id == id) place = kOne;
      if (entries[0].id == id) place = 0;
      asm("" : "+r"(place));  // without this, the compiler uses branches
      return place;
    }
  };
  static_assert(sizeof(Bucket) == 64, "one cache line");

  // A place in a chain. `bucket` is null if there is none.
  struct Place {
    Entry& entry() const { return bucket->EntryAt(at); }
    Generation& birth() const { return bucket->BirthAt(at); }
    LiveRecord record() const { return Unpack(entry().site_and_bytes, birth()); }

    Bucket* bucket = nullptr;
    uint64_t at = 0;
  };

  // A bucket with its overflow buckets, locked as long as the object exists.
  class LockedChain {
   public:
    LockedChain(const LiveTable& table, Bucket* first) : table_(table), first_(first), fill_(first->Lock()) {}
    // The chain of `id`.
    LockedChain(const LiveTable& table, uint64_t id);
    ~LockedChain() { first_->Unlock(fill_); }
    LockedChain(const LockedChain&) = delete;
    LockedChain& operator=(const LockedChain&) = delete;

    Place Find(uint64_t id) const;
    // Returns false if there is no memory for an overflow bucket.
    bool Append(uint64_t id, const LiveRecord& record);
    // Removes the record of a place. Another one takes its place.
    void Remove(const Place& place);
    void Clear();
    // Calls `visit(id, record)` for each record.
    template <typename Visit>
    void ForEach(const Visit& visit) const {
      for (Bucket* bucket = first_; bucket != nullptr; bucket = bucket->overflow) {
        for (uint32_t at = 0; at < kFull; at += kOne) {
          const Place place{bucket, at};
          if (place.entry().id != 0) visit(place.entry().id, place.record());
        }
      }
    }

   private:
    const LiveTable& table_;
    Bucket* first_;
    uint32_t fill_;
  };

  // Array s has the buckets from 2^s on, up to 2^(s+1). The table always has the buckets of the first one at least.
  static constexpr size_t kFirstArray = 6;
  static constexpr size_t kArrays = 32;
  static constexpr size_t kMinBuckets = size_t{1} << kFirstArray;

  // The highest bit is set, so that the index of a bucket, which is the highest bits of a hash, begins with 1. The
  // lowest six bits are set for StateOf. With this factor, the highest bits of the products of most arithmetic
  // progressions of ids are distributed more evenly than random numbers.
  static uint64_t HashOf(uint64_t id) { return id * 0xcaf3c0b1593a49bd | uint64_t{1} << 63 | 63; }
  static size_t ArrayOf(size_t index) { return size_t{63} - static_cast<size_t>(__builtin_clzll(index)); }
  static size_t BucketsOfArray(size_t array) { return size_t{1} << array; }
  // Returns the split state of a table of `buckets` buckets (at least kMinBuckets): the number of bits by which a hash
  // is shifted to give an index, plus the lowest hash for which this is so. Lower hashes are shifted by one bit less.
  // Since the lowest six bits of a hash are set, a hash is below that one exactly if it is below the state.
  static uint64_t StateOf(size_t buckets) {
    const size_t shift = 63 - ArrayOf(buckets);
    return (uint64_t{buckets} << shift) + shift;
  }
  // The index of the bucket of a hash in a table with that state. It has no branch, because the processor could not
  // predict it.
  static size_t IndexOf(uint64_t hash, uint64_t state) {
    return hash >> ((state - static_cast<uint64_t>(hash < state)) & 63);
  }
  Bucket* BucketAt(size_t index) const {
    return reinterpret_cast<Bucket*>(origins_[ArrayOf(index)].load(std::memory_order_acquire) + index * sizeof(Bucket));
  }

  // If the split state is not `state` any more, the id may be in another bucket.
  Bucket* BucketOf(uint64_t id, uint64_t state) const { return BucketAt(IndexOf(HashOf(id), state)); }
  [[gnu::cold]] bool GrowSlow(int64_t records);
  // Sets the number of buckets and what depends on it.
  void SetBuckets(size_t buckets) ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  // These two return false if there is no memory; then nothing changes. Split adds a bucket.
  bool MapArray(size_t array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  bool Split() ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  // Returns the memory of buckets that are not in use any more to the kernel.
  void Discard(size_t first, size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(resize_lock_);
  // Returns null if there is no memory.
  Bucket* NewOverflowBucket() const;
  void FreeOverflowBucket(Bucket* bucket) const;

  // For each array, the address that bucket 0 would have if all arrays were one; 0: not mapped. It is the
  // first member, so that an access to it needs no addition.
  std::atomic<uintptr_t> origins_[kArrays] = {};
  std::atomic<uint64_t> state_;
  std::atomic<int64_t> grow_above_;  // the most records for which there are enough buckets
  mutable SpinLock resize_lock_;
  size_t buckets_ ABSL_GUARDED_BY(resize_lock_);
  mutable SpinLock overflow_lock_;
  mutable Bucket* free_overflow_ ABSL_GUARDED_BY(overflow_lock_) = nullptr;
  mutable Arena overflow_arena_ ABSL_GUARDED_BY(overflow_lock_);
};

template <typename Visit>
void LiveTable::ForEach(const Visit& visit) const {
  constexpr int kPauses = 8;  // the lock is not fair
  for (uint64_t next = kFirstHash; VisitSome(&next, visit);) {
    for (int i = 0; i < kPauses; ++i) CpuRelax();
  }
}

template <typename Visit>
bool LiveTable::VisitSome(uint64_t* next, const Visit& visit) const {
  // The buckets are visited in the order of their hashes, because a split between two calls then changes nothing: the
  // ranges of hashes before and from `*next` stay.
  constexpr size_t kBucketsAtOnce = 128;
  size_t visited = 0;
  SpinLockHolder hold_size(resize_lock_);
  const uint64_t state = state_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < kBucketsAtOnce && *next != 0 && visited < kMostVisited / 2; ++i) {
    const uint64_t from = *next | 63;
    const uint64_t shift = (state - static_cast<uint64_t>(from < state)) & 63;
    const size_t index = IndexOf(from, state);
    LockedChain(*this, BucketAt(index)).ForEach([&](uint64_t id, const LiveRecord& record) {
      if (HashOf(id) < *next) return;
      visit(id, record);
      ++visited;
    });
    *next = uint64_t{index + 1} << shift;  // 0 after the last bucket
  }
  return *next != 0;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TABLES_LIVE_TABLE_H_
