#include "src/core/segments.h"

#include <algorithm>
#include <new>

namespace hbmprof::internal {

SegmentMap::~SegmentMap() {
  Array* array = array_.load(std::memory_order_relaxed);
  while (array != nullptr) {
    Array* older = array->older;
    UnmapPages(array, sizeof(Array) + array->capacity * sizeof(Slot));
    array = older;
  }
}

size_t SegmentMap::UpperBound(Array* array, size_t count, uint64_t address) const {
  size_t low = 0;
  size_t high = count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const Segment* segment = array->slots()[middle].load(std::memory_order_acquire);
    if (segment != nullptr && segment->start.load(std::memory_order_acquire) <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bool SegmentMap::Reserve(size_t count) {
  Array* old = array_.load(std::memory_order_relaxed);
  if (old != nullptr && old->capacity >= count) return true;
  const size_t capacity = std::max<size_t>(510, 2 * count);
  auto* array = static_cast<Array*>(MapPages(sizeof(Array) + capacity * sizeof(Slot)));
  if (array == nullptr) return false;
  array->capacity = capacity;
  array->older = old;
  for (size_t i = 0; i < count_.load(std::memory_order_relaxed); ++i) {
    array->slots()[i].store(old->slots()[i].load(std::memory_order_relaxed), std::memory_order_release);
  }
  array_.store(array, std::memory_order_release);
  return true;
}

SegmentMap::Added SegmentMap::Add(uint64_t start, uint64_t bytes, SiteId site, Found* added) {
  if (bytes == 0 || bytes > kMaxBytes || start + bytes < start) return Added::kRefused;
  SpinLockHolder hold(lock_);
  const size_t count = count_.load(std::memory_order_relaxed);
  if (!Reserve(count + 1)) return Added::kNoMemory;
  Array* array = array_.load(std::memory_order_relaxed);
  const size_t place = UpperBound(array, count, start);
  const auto at = [array](size_t i) { return array->slots()[i].load(std::memory_order_relaxed); };
  if (place > 0 && at(place - 1)->end.load(std::memory_order_relaxed) > start) return Added::kRefused;
  if (place < count && at(place)->start.load(std::memory_order_relaxed) < start + bytes) return Added::kRefused;

  Segment* segment = free_;
  if (segment != nullptr) {
    free_ = segment->next_free;
  } else {
    void* memory = arena_.Allocate(sizeof(Segment));
    if (memory == nullptr) return Added::kNoMemory;
    segment = new (memory) Segment;
  }
  sequence_.fetch_add(1, std::memory_order_acq_rel);
  segment->start.store(start, std::memory_order_release);
  segment->end.store(start + bytes, std::memory_order_release);
  // Nobody else changes it: no bytes of a segment that is not in the map can be reserved or returned.
  const uint64_t use = segment->state.load(std::memory_order_relaxed) >> kBytesBits;
  segment->state.store(use << kBytesBits | bytes, std::memory_order_release);
  segment->site.store(site, std::memory_order_release);
  for (size_t i = count; i > place; --i) array->slots()[i].store(at(i - 1), std::memory_order_release);
  array->slots()[place].store(segment, std::memory_order_release);
  count_.store(count + 1, std::memory_order_release);
  sequence_.fetch_add(1, std::memory_order_release);
  added->segment_ = segment;
  added->use_ = use;
  added->site_ = site;
  return Added::kAdded;
}

size_t SegmentMap::PlaceAfter(uint64_t start) const {
  Array* array = array_.load(std::memory_order_relaxed);
  const size_t place = UpperBound(array, count_.load(std::memory_order_relaxed), start);
  if (place == 0) return 0;
  const Segment* segment = array->slots()[place - 1].load(std::memory_order_relaxed);
  return segment->start.load(std::memory_order_relaxed) == start ? place : 0;
}

uint64_t SegmentMap::Retire(Segment* segment) {
  const uint64_t use = segment->state.load(std::memory_order_relaxed) >> kBytesBits;
  // What is reserved from here on is refused; what was reserved before is seen here.
  const uint64_t state = segment->state.exchange((use + 1) << kBytesBits, std::memory_order_acq_rel);
  segment->next_free = free_;
  free_ = segment;
  return state & kMaxBytes;
}

void SegmentMap::RemoveAt(size_t place, bool* had_blocks) {
  const size_t count = count_.load(std::memory_order_relaxed);
  Array* array = array_.load(std::memory_order_relaxed);
  Segment* segment = array->slots()[place].load(std::memory_order_relaxed);
  const uint64_t bytes = segment->end.load(std::memory_order_relaxed) - segment->start.load(std::memory_order_relaxed);
  sequence_.fetch_add(1, std::memory_order_acq_rel);
  for (size_t i = place; i + 1 < count; ++i) {
    array->slots()[i].store(array->slots()[i + 1].load(std::memory_order_relaxed), std::memory_order_release);
  }
  count_.store(count - 1, std::memory_order_release);
  *had_blocks = Retire(segment) != bytes;
  sequence_.fetch_add(1, std::memory_order_release);
}

bool SegmentMap::Remove(uint64_t start, bool* had_blocks) {
  SpinLockHolder hold(lock_);
  const size_t place = PlaceAfter(start);
  if (place == 0) return false;
  RemoveAt(place - 1, had_blocks);
  return true;
}

void SegmentMap::Remove(const Found& found) {
  SpinLockHolder hold(lock_);
  if (!found.IsThere()) return;
  bool had_blocks;
  RemoveAt(PlaceAfter(found.segment_->start.load(std::memory_order_relaxed)) - 1, &had_blocks);
}

SegmentMap::Found SegmentMap::Find(uint64_t start, uint64_t bytes) const {
  for (Backoff backoff;;) {
    const uint32_t before = sequence_.load(std::memory_order_acquire);
    if ((before & 1) != 0) {
      backoff.Wait();
      continue;
    }
    Found found;
    Array* array = array_.load(std::memory_order_acquire);
    if (array != nullptr) {
      const size_t count = std::min(count_.load(std::memory_order_acquire), array->capacity);
      const size_t place = UpperBound(array, count, start);
      if (place > 0) {
        Segment* segment = array->slots()[place - 1].load(std::memory_order_acquire);
        if (segment != nullptr &&
            start - segment->start.load(std::memory_order_acquire) <
                segment->end.load(std::memory_order_acquire) - segment->start.load(std::memory_order_acquire) &&
            bytes <= segment->end.load(std::memory_order_acquire) - start) {
          found.segment_ = segment;
          found.use_ = segment->state.load(std::memory_order_acquire) >> kBytesBits;
          found.site_ = segment->site.load(std::memory_order_acquire);
        }
      }
    }
    if (sequence_.load(std::memory_order_acquire) == before) return found;
  }
}

bool SegmentMap::Found::Reserve(int64_t bytes) const {
  uint64_t state = segment_->state.load(std::memory_order_relaxed);
  while (state >> kBytesBits == use_ && static_cast<int64_t>(state & kMaxBytes) >= bytes) {
    if (segment_->state.compare_exchange_weak(state, state - static_cast<uint64_t>(bytes), std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void SegmentMap::Found::Return(int64_t bytes) const {
  const uint64_t size = segment_->end.load(std::memory_order_relaxed) - segment_->start.load(std::memory_order_relaxed);
  uint64_t state = segment_->state.load(std::memory_order_relaxed);
  // More than there is cannot come back: those were another segment's.
  while (state >> kBytesBits == use_ && (state & kMaxBytes) + static_cast<uint64_t>(bytes) <= size) {
    if (segment_->state.compare_exchange_weak(state, state + static_cast<uint64_t>(bytes), std::memory_order_relaxed)) {
      return;
    }
  }
}

}  // namespace hbmprof::internal
