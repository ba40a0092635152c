#include "src/core/tables/live_table.h"

#include <algorithm>
#include <new>

namespace hbmprof::internal {
namespace {

// A bucket has space for three records. There are at most 1.5 records per bucket on average, so that few buckets
// overflow.
constexpr int64_t MostRecords(size_t buckets) { return static_cast<int64_t>(buckets + buckets / 2); }
constexpr int kMostSplitsAtOnce = 128;
constexpr size_t kOverflowBucketsAtOnce = 64;
constexpr size_t kDiscardedAtOnce = 1 << 15;  // buckets: 2 MiB, a large page

}  // namespace

LiveTable::LiveTable() {
  if (!MapArray(kFirstArray)) throw std::bad_alloc();
  CountHostBytes(kMinBuckets * sizeof(Bucket));
  SetBuckets(kMinBuckets);
}

LiveTable::~LiveTable() {
  for (size_t i = kFirstArray; i < kArrays; ++i) {
    const size_t bytes = BucketsOfArray(i) * sizeof(Bucket);
    if (origins_[i].load(std::memory_order_relaxed) != 0) UnmapRetiredPages(BucketAt(BucketsOfArray(i)), bytes);
  }
  CountHostBytes(-static_cast<int64_t>(buckets_ * sizeof(Bucket)));
}

LiveTable::LockedChain::LockedChain(const LiveTable& table, uint64_t id) : table_(table) {
  for (;;) {
    const uint64_t state = table.state_.load(std::memory_order_acquire);
    first_ = table.BucketOf(id, state);
    fill_ = first_->Lock();
    // A split may have moved the id to another bucket while this thread waited.
    if (table.state_.load(std::memory_order_acquire) == state) return;
    first_->Unlock(fill_);
  }
}

LiveTable::Place LiveTable::LockedChain::Find(uint64_t id) const {
  for (Bucket* bucket = first_; bucket != nullptr; bucket = bucket->overflow) {
    const uint64_t at = bucket->PlaceOf(id);
    if (bucket->EntryAt(at).id == id) return {bucket, at};
  }
  return {};
}

bool LiveTable::LockedChain::Append(uint64_t id, const LiveRecord& record) {
  if (fill_ < kFull) {
    first_->EntryAt(fill_) = {id, Pack(record)};
    first_->BirthAt(fill_) = record.birth;
    fill_ += kOne;
    return true;
  }
  Bucket* bucket = first_->overflow;
  if (bucket == nullptr || bucket->fill.load(std::memory_order_relaxed) == kFull) {
    bucket = table_.NewOverflowBucket();
    if (bucket == nullptr) return false;
    bucket->overflow = first_->overflow;
    first_->overflow = bucket;
    fill_ = kOverflows;
  }
  const uint32_t fill = bucket->fill.load(std::memory_order_relaxed);
  bucket->EntryAt(fill) = {id, Pack(record)};
  bucket->BirthAt(fill) = record.birth;
  bucket->fill.store(static_cast<uint16_t>(fill + kOne), std::memory_order_relaxed);
  return true;
}

void LiveTable::LockedChain::Remove(const Place& place) {
  Bucket* const bucket = first_->overflow;
  const uint32_t fill = (bucket == nullptr ? fill_ : bucket->fill.load(std::memory_order_relaxed)) - kOne;
  const Place last = {bucket == nullptr ? first_ : bucket, fill};
  place.entry() = last.entry();
  place.birth() = last.birth();
  last.entry().id = 0;
  if (bucket == nullptr) {
    fill_ = fill;
    return;
  }
  bucket->fill.store(static_cast<uint16_t>(fill), std::memory_order_relaxed);
  if (fill != 0) return;
  first_->overflow = bucket->overflow;
  table_.FreeOverflowBucket(bucket);
  if (first_->overflow == nullptr) fill_ = kFull;
}

void LiveTable::LockedChain::Clear() {
  while (fill_ != 0) Remove({first_, 0});
}

LiveTable::Inserted LiveTable::Insert(uint64_t id, const LiveRecord& record) {
  LockedChain chain(*this, id);
  if (chain.Find(id).bucket != nullptr) return Inserted::kTaken;
  return chain.Append(id, record) ? Inserted::kNew : Inserted::kNoMemory;
}

bool LiveTable::Find(uint64_t id, LiveRecord* record) const {
  const LockedChain chain(*this, id);
  const Place place = chain.Find(id);
  if (place.bucket != nullptr) *record = place.record();
  return place.bucket != nullptr;
}

bool LiveTable::MapArray(size_t array) {
  if (origins_[array].load(std::memory_order_relaxed) != 0) return true;
  const size_t bytes = BucketsOfArray(array) * sizeof(Bucket);
  void* const buckets = ReservePages(bytes);
  if (buckets == nullptr) return false;
  // The index of the first bucket of an array is the number of its buckets.
  origins_[array].store(reinterpret_cast<uintptr_t>(buckets) - bytes, std::memory_order_release);
  return true;
}

bool LiveTable::Split() {
  const size_t index = buckets_;
  if (ArrayOf(2 * index) >= kArrays || !MapArray(ArrayOf(2 * index)) || !TakeHostBytes(sizeof(Bucket))) {
    return false;
  }
  {
    LockedChain from(*this, BucketAt(index));
    LockedChain to[] = {{*this, BucketAt(2 * index)}, {*this, BucketAt(2 * index + 1)}};
    bool has_memory = true;
    from.ForEach([&](uint64_t id, const LiveRecord& record) {
      has_memory = has_memory && to[IndexOf(HashOf(id), StateOf(index + 1)) - 2 * index].Append(id, record);
    });
    if (!has_memory) {
      for (LockedChain& chain : to) chain.Clear();
      CountHostBytes(-int64_t{sizeof(Bucket)});
      return false;
    }
    from.Clear();
    SetBuckets(index + 1);
  }
  const size_t discarded = std::min(kDiscardedAtOnce, BucketsOfArray(ArrayOf(index)));
  if ((index + 1) % discarded == 0) Discard(index + 1 - discarded, discarded);
  return true;
}

void LiveTable::Discard(size_t first, size_t count) {
  // A thread that read an older state_ may still lock one of these buckets, see that it is the wrong one, and unlock
  // it. If the lock were set to zero between these steps, a third thread could lock the bucket, and the first thread
  // would release the lock that the third thread holds. So all these locks are taken before the pages are discarded.
  Bucket* const start = BucketAt(first);
  for (size_t i = 0; i < count; ++i) start[i].Lock();
  DiscardPages(start, count * sizeof(Bucket));
}

void LiveTable::SetBuckets(size_t buckets) {
  buckets_ = buckets;
  grow_above_.store(MostRecords(buckets), std::memory_order_relaxed);
  state_.store(StateOf(buckets), std::memory_order_release);
}

bool LiveTable::GrowSlow(int64_t records) {
  const auto has_enough = [&] { return records <= grow_above_.load(std::memory_order_relaxed); };
  if (!resize_lock_.TryLock()) return false;
  bool has_memory = true;
  for (int i = 0; i < kMostSplitsAtOnce && has_memory && !has_enough(); ++i) has_memory = Split();
  resize_lock_.Unlock();
  return !has_memory || has_enough();
}

LiveTable::Bucket* LiveTable::NewOverflowBucket() const {
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
  return bucket;
}

void LiveTable::FreeOverflowBucket(Bucket* bucket) const {
  SpinLockHolder hold(overflow_lock_);
  bucket->overflow = free_overflow_;
  free_overflow_ = bucket;
}

}  // namespace hbmprof::internal
