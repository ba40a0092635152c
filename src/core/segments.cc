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

bool SegmentMap::Add(uint64_t start, uint64_t bytes, SiteId site) {
  SpinLockHolder hold(lock_);
  const size_t count = count_.load(std::memory_order_relaxed);
  if (bytes == 0 || start + bytes < start || !Reserve(count + 1)) return false;
  Array* array = array_.load(std::memory_order_relaxed);
  const size_t place = UpperBound(array, count, start);
  const auto at = [array](size_t i) { return array->slots()[i].load(std::memory_order_relaxed); };
  if (place > 0 && at(place - 1)->end.load(std::memory_order_relaxed) > start) return false;
  if (place < count && at(place)->start.load(std::memory_order_relaxed) < start + bytes) return false;

  Segment* segment = free_;
  if (segment != nullptr) {
    free_ = segment->next_free;
  } else {
    void* memory = arena_.Allocate(sizeof(Segment));
    if (memory == nullptr) return false;
    segment = new (memory) Segment;
  }
  sequence_.fetch_add(1, std::memory_order_acq_rel);
  segment->start.store(start, std::memory_order_release);
  segment->end.store(start + bytes, std::memory_order_release);
  segment->idle_bytes.store(static_cast<int64_t>(bytes), std::memory_order_release);
  segment->site.store(site, std::memory_order_release);
  for (size_t i = count; i > place; --i) array->slots()[i].store(at(i - 1), std::memory_order_release);
  array->slots()[place].store(segment, std::memory_order_release);
  count_.store(count + 1, std::memory_order_release);
  sequence_.fetch_add(1, std::memory_order_release);
  return true;
}

bool SegmentMap::Remove(uint64_t start, bool* had_blocks) {
  SpinLockHolder hold(lock_);
  const size_t count = count_.load(std::memory_order_relaxed);
  Array* array = array_.load(std::memory_order_relaxed);
  const size_t place = UpperBound(array, count, start);
  if (place == 0) return false;
  Segment* segment = array->slots()[place - 1].load(std::memory_order_relaxed);
  const uint64_t found = segment->start.load(std::memory_order_relaxed);
  if (found != start) return false;
  const auto bytes = static_cast<int64_t>(segment->end.load(std::memory_order_relaxed) - found);
  *had_blocks = segment->idle_bytes.load(std::memory_order_relaxed) != bytes;
  sequence_.fetch_add(1, std::memory_order_acq_rel);
  for (size_t i = place - 1; i + 1 < count; ++i) {
    array->slots()[i].store(array->slots()[i + 1].load(std::memory_order_relaxed), std::memory_order_release);
  }
  count_.store(count - 1, std::memory_order_release);
  sequence_.fetch_add(1, std::memory_order_release);
  segment->next_free = free_;
  free_ = segment;
  return true;
}

Segment* SegmentMap::Find(uint64_t start, uint64_t bytes) const {
  for (Backoff backoff;;) {
    const uint32_t before = sequence_.load(std::memory_order_acquire);
    if ((before & 1) != 0) {
      backoff.Wait();
      continue;
    }
    Segment* found = nullptr;
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
          found = segment;
        }
      }
    }
    if (sequence_.load(std::memory_order_acquire) == before) return found;
  }
}

void SegmentMap::Clear() {
  SpinLockHolder hold(lock_);
  sequence_.fetch_add(1, std::memory_order_acq_rel);
  Array* array = array_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < count_.load(std::memory_order_relaxed); ++i) {
    Segment* segment = array->slots()[i].load(std::memory_order_relaxed);
    segment->next_free = free_;
    free_ = segment;
  }
  count_.store(0, std::memory_order_release);
  sequence_.fetch_add(1, std::memory_order_release);
}

bool SegmentMap::Reserve(Segment& segment, int64_t bytes) {
  int64_t idle = segment.idle_bytes.load(std::memory_order_relaxed);
  while (idle >= bytes) {
    if (segment.idle_bytes.compare_exchange_weak(idle, idle - bytes, std::memory_order_relaxed)) return true;
  }
  return false;
}

}  // namespace hbmprof::internal
