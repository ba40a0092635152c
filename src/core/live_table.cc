#include "src/core/live_table.h"

#include <algorithm>

namespace hbmprof::internal {
namespace {

// A bucket has space for three records. There are at most 1.5 records per bucket on average, so that few buckets
// overflow.
constexpr int64_t MostRecords(size_t buckets) { return static_cast<int64_t>(buckets + buckets / 2); }
constexpr int64_t FewestRecords(size_t buckets) { return MostRecords(buckets) / 2; }
constexpr int kMostSplitsPerResize = 128;
constexpr size_t kOverflowBucketsAtOnce = 64;

}  // namespace

LiveTable::LiveTable() {
  origins_[kFirstSegment].store(reinterpret_cast<uintptr_t>(first_segment_), std::memory_order_relaxed);
  SetBuckets(kMinBuckets);
}

LiveTable::~LiveTable() {
  for (size_t i = kFirstSegment + 1; i < kSegments; ++i) {
    UnmapPages(SegmentAt(i), SegmentBuckets(i) * sizeof(Bucket));
  }
}

LiveTable::Bucket* LiveTable::LockBucketOf(uint64_t id) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (;;) {
    const Position position = PositionOf(id);
    position.bucket->lock.Lock();
    // A split or merge may have moved the id to another bucket while this thread waited.
    if (PositionOf(id).bucket == position.bucket) return position.bucket;
    position.bucket->lock.Unlock();
  }
}

LiveTable::Inserted LiveTable::InsertInto(Bucket* first, uint64_t id, uint64_t record, uint64_t* replaced) {
  Inserted result = Inserted::kNew;
  Entry* free_entry = nullptr;
  Bucket* last = first;
  for (Bucket* bucket = first; bucket != nullptr; last = bucket, bucket = bucket->overflow) {
    for (Entry& entry : bucket->entries) {
      if (entry.id == id) {
        if (replaced != nullptr) {
          *replaced = entry.site_and_bytes;
          entry.site_and_bytes = record;
        }
        first->lock.Unlock();
        return Inserted::kReplaced;
      }
      if (entry.id == 0 && free_entry == nullptr) free_entry = &entry;
    }
  }
  if (free_entry == nullptr) {
    last->overflow = NewOverflowBucket();
    if (last->overflow != nullptr) free_entry = &last->overflow->entries[0];
  }
  if (free_entry != nullptr) {
    *free_entry = {id, record};
  } else {
    result = Inserted::kNoMemory;
  }
  first->lock.Unlock();
  return result;
}

LiveTable::Entry* LiveTable::EntryIn(Bucket* first, uint64_t id) {
  for (Bucket* bucket = first; bucket != nullptr; bucket = bucket->overflow) {
    for (Entry& entry : bucket->entries) {
      if (entry.id == id) return &entry;
    }
  }
  return nullptr;
}

bool LiveTable::Find(uint64_t id, LiveRecord* record) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Bucket* first = LockBucketOf(id);
  const Entry* entry = EntryIn(first, id);
  if (entry != nullptr) *record = Unpack(entry->site_and_bytes);
  first->lock.Unlock();
  return entry != nullptr;
}

bool LiveTable::Replace(uint64_t id, LiveRecord expected, LiveRecord desired) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Bucket* first = LockBucketOf(id);
  Entry* entry = EntryIn(first, id);
  const bool is_it = entry != nullptr && entry->site_and_bytes == Pack(expected);
  if (is_it) entry->site_and_bytes = Pack(desired);
  first->lock.Unlock();
  return is_it;
}

void LiveTable::Compact(Bucket* first) {
  // Fills the empty entries of the chain with entries of later buckets, then frees the buckets that became empty.
  Bucket* hole_bucket = first;
  int hole = 0;
  const auto next_hole_before = [&](const Bucket* end) {
    while (hole_bucket != end && hole_bucket->entries[hole].id != 0) {
      if (++hole == kEntriesPerBucket) {
        hole = 0;
        hole_bucket = hole_bucket->overflow;
      }
    }
  };
  for (Bucket* bucket = first->overflow; bucket != nullptr; bucket = bucket->overflow) {
    for (Entry& entry : bucket->entries) {
      if (entry.id == 0) continue;
      next_hole_before(bucket);
      if (hole_bucket == bucket) break;
      hole_bucket->entries[hole] = entry;
      entry.id = 0;
    }
  }
  Bucket* bucket = first;
  while (bucket != nullptr && bucket->overflow != nullptr) {
    Bucket* next = bucket->overflow;
    const bool empty =
        std::all_of(next->entries, next->entries + kEntriesPerBucket, [](const Entry& entry) { return entry.id == 0; });
    if (!empty) {
      bucket = next;
      continue;
    }
    bucket->overflow = next->overflow;
    FreeOverflowBucket(next);
  }
}

bool LiveTable::MoveInto(Bucket* first, const Entry& moved) {
  for (Bucket* bucket = first;; bucket = bucket->overflow) {
    for (Entry& entry : bucket->entries) {
      if (entry.id != 0) continue;
      entry = moved;
      return true;
    }
    if (bucket->overflow == nullptr) {
      bucket->overflow = NewOverflowBucket();
      if (bucket->overflow == nullptr) return false;
    }
  }
}

bool LiveTable::MapSegment(size_t segment) {
  if (SegmentAt(segment) != nullptr) return true;
  void* buckets = MapPages(SegmentBuckets(segment) * sizeof(Bucket));
  if (buckets == nullptr) return false;
  origins_[segment].store(reinterpret_cast<uintptr_t>(buckets) - SegmentStart(segment) * sizeof(Bucket),
                          std::memory_order_release);
  return true;
}

bool LiveTable::Split() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const size_t buckets = BucketsOf(state_.load(std::memory_order_relaxed));
  const size_t segment = SegmentOf(buckets);
  if (segment >= kSegments || !MapSegment(segment)) return false;
  const size_t half = size_t{1} << (63 - __builtin_clzll(buckets));
  Bucket* from = BucketAt(buckets - half);
  Bucket* to = BucketAt(buckets);
  SpinLockHolder hold_from(from->lock);
  SpinLockHolder hold_to(to->lock);
  for (Bucket* bucket = from; bucket != nullptr; bucket = bucket->overflow) {
    for (Entry& entry : bucket->entries) {
      if (entry.id == 0 || IndexOf(HashAddress(entry.id), StateOf(buckets + 1)) != buckets) continue;
      // If there is no memory for an overflow bucket, the split is undone: the moved entries return to `from`.
      if (!MoveInto(to, entry)) {
        for (Bucket* undo = to; undo != nullptr; undo = undo->overflow) {
          for (Entry& moved : undo->entries) {
            if (moved.id != 0) MoveInto(from, moved);
            moved.id = 0;
          }
        }
        return false;
      }
      entry.id = 0;
    }
  }
  if (from->overflow != nullptr) Compact(from);
  SetBuckets(buckets + 1);
  return true;
}

bool LiveTable::Merge() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const size_t buckets = BucketsOf(state_.load(std::memory_order_relaxed)) - 1;  // after the merge
  const size_t half = size_t{1} << (63 - __builtin_clzll(buckets));
  Bucket* to = BucketAt(buckets - half);
  Bucket* from = BucketAt(buckets);
  {
    SpinLockHolder hold_to(to->lock);
    SpinLockHolder hold_from(from->lock);
    for (Bucket* bucket = from; bucket != nullptr; bucket = bucket->overflow) {
      for (Entry& entry : bucket->entries) {
        if (entry.id == 0) continue;
        if (!MoveInto(to, entry)) {
          // The entries that were moved return; `from` still has space for them.
          for (Bucket* undo = to; undo != nullptr; undo = undo->overflow) {
            for (Entry& moved : undo->entries) {
              if (moved.id == 0 || IndexOf(HashAddress(moved.id), StateOf(buckets + 1)) != buckets) continue;
              MoveInto(from, moved);
              moved.id = 0;
            }
          }
          return false;
        }
        entry.id = 0;
      }
    }
    if (from->overflow != nullptr) Compact(from);
    SetBuckets(buckets);
  }
  const size_t segment = SegmentOf(buckets);
  if (segment > kFirstSegment && buckets == SegmentStart(segment)) {
    // The whole segment is unused. A thread that read an older state_ may still lock one of its buckets, see that it is
    // the wrong one, and unlock it. If the lock were set to zero between these steps, a third thread could lock the
    // bucket, and the first thread would release the lock that the third thread holds. So all these locks are taken
    // before the pages are discarded.
    Bucket* start = BucketAt(buckets);
    for (size_t i = 0; i < SegmentBuckets(segment); ++i) start[i].lock.Lock();
    DiscardPages(start, SegmentBuckets(segment) * sizeof(Bucket));
  }
  return true;
}

void LiveTable::SetBuckets(size_t buckets) {
  grow_above_.store(MostRecords(buckets), std::memory_order_relaxed);
  shrink_below_.store(buckets <= kMinBuckets ? INT64_MIN : FewestRecords(buckets), std::memory_order_relaxed);
  state_.store(StateOf(buckets), std::memory_order_release);
}

bool LiveTable::ResizeSlow(int64_t records) {
  if (!resize_lock_.TryLock()) return false;
  bool has_memory = true;
  for (int i = 0; i < kMostSplitsPerResize && has_memory && !Fits(records); ++i) {
    has_memory = records > grow_above_.load(std::memory_order_relaxed) ? Split() : Merge();
  }
  resize_lock_.Unlock();
  return !has_memory || Fits(records);
}

LiveTable::Bucket* LiveTable::NewOverflowBucket() {
  SpinLockHolder hold(overflow_lock_);
  if (free_overflow_ == nullptr) {
    auto address = reinterpret_cast<uintptr_t>(overflow_arena_.Allocate((kOverflowBucketsAtOnce + 1) * sizeof(Bucket)));
    if (address == 0) return nullptr;
    auto* buckets = reinterpret_cast<Bucket*>((address + alignof(Bucket) - 1) & ~(alignof(Bucket) - 1));
    for (size_t i = 0; i < kOverflowBucketsAtOnce; ++i) {
      buckets[i].overflow = free_overflow_;
      free_overflow_ = &buckets[i];
    }
  }
  Bucket* bucket = free_overflow_;
  free_overflow_ = bucket->overflow;
  bucket->overflow = nullptr;
  return bucket;
}

void LiveTable::FreeOverflowBucket(Bucket* bucket) {
  SpinLockHolder hold(overflow_lock_);
  bucket->overflow = free_overflow_;
  free_overflow_ = bucket;
}

void LiveTable::LockAll() {
  resize_lock_.Lock();
  overflow_lock_.Lock();
}

void LiveTable::UnlockAll() {
  overflow_lock_.Unlock();
  resize_lock_.Unlock();
}

void LiveTable::UnlockBucketsInChild() {
  const size_t buckets = BucketsOf(state_.load(std::memory_order_relaxed));
  for (size_t index = 0; index < buckets; ++index) BucketAt(index)->lock.Unlock();
}

void LiveTable::ClearInChild() {
  const size_t buckets = BucketsOf(state_.load(std::memory_order_relaxed));
  for (size_t index = 0; index < buckets; ++index) {
    Bucket* first = BucketAt(index);
    while (first->overflow != nullptr) {
      Bucket* bucket = first->overflow;
      first->overflow = bucket->overflow;
      for (Entry& entry : bucket->entries) entry.id = 0;
      bucket->overflow = free_overflow_;
      free_overflow_ = bucket;
    }
  }
  for (Bucket& bucket : first_segment_) {
    for (Entry& entry : bucket.entries) entry.id = 0;
    bucket.lock.Unlock();
  }
  for (size_t i = kFirstSegment + 1; i < kSegments; ++i) {
    Bucket* segment = SegmentAt(i);
    if (segment != nullptr) DiscardPages(segment, SegmentBuckets(i) * sizeof(Bucket));
  }
  SetBuckets(kMinBuckets);
  overflow_lock_.Unlock();
  resize_lock_.Unlock();
}

}  // namespace hbmprof::internal
