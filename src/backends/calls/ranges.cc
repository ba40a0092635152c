#include "src/backends/calls/ranges.h"

#include <iterator>
#include <new>

#include "src/base/lazy.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {
namespace {

Lazy<DriverRanges> instance;

}  // namespace

DriverRanges& DriverRanges::Instance() { return instance.Get(); }

template <typename T>
T* DriverRanges::NodeAllocator<T>::allocate(size_t count) {
  static_assert(sizeof(T) >= sizeof(void*) && alignof(T) <= 16);
  void* node = nodes->free;
  if (node != nullptr && count == 1) {
    nodes->free = *static_cast<void**>(node);
  } else {
    node = nodes->arena.Allocate(count * sizeof(T));
    if (node == nullptr) throw std::bad_alloc();
  }
  return static_cast<T*>(node);
}

template <typename T>
void DriverRanges::NodeAllocator<T>::deallocate(T* node, size_t /*count*/) {
  void* const memory = node;
  *static_cast<void**>(memory) = nodes->free;
  nodes->free = memory;
}

DriverRanges::Entries::iterator DriverRanges::Clear(uint64_t start, uint64_t bytes) {
  auto next = entries_.lower_bound(start);
  if (next != entries_.begin()) {
    const auto before = std::prev(next);
    if (start - before->first < before->second.bytes) next = before;
  }
  while (next != entries_.end() && (next->first < start || next->first - start < bytes)) next = entries_.erase(next);
  return next;
}

void DriverRanges::Insert(uint64_t start, const Entry& entry) {
  const ReentryGuard guard;
  if (!guard.entered() || entry.bytes == 0) return;
  MutexLock hold(mutex_);
  const auto next = Clear(start, entry.bytes);
  static_cast<void>(TryRun([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { entries_.emplace_hint(next, start, entry); }));
  Changed();
}

void DriverRanges::Add(BufferId id, size_t bytes, bool has_allocator) {
  // A handle is not an address: handles of different objects can be less than `bytes` apart.
  Insert(id.value(), {id.is_handle() ? 1 : bytes, {id, has_allocator}});
}

void DriverRanges::AddMapped(uint64_t address, size_t bytes, BufferId physical) {
  Insert(address, {bytes, {physical, false}});
}

void DriverRanges::Remove(uint64_t start) {
  const ReentryGuard guard;
  if (!guard.entered()) return;
  MutexLock hold(mutex_);
  if (entries_.erase(start) != 0) Changed();
}

DriverRanges::Found DriverRanges::Find(BufferId id) const {
  const ReentryGuard guard;
  if (!guard.entered()) return {};
  MutexLock hold(mutex_);
  Found found;
  found.changes = changes();
  const auto after = entries_.upper_bound(id.value());
  found.last = after == entries_.end() ? UINT64_MAX : after->first - 1;
  if (after == entries_.begin()) return found;
  const auto& [start, entry] = *std::prev(after);
  if (id.value() - start < entry.bytes) {
    found.range = entry.range;
    found.first = start;
    found.last = start + entry.bytes - 1;
  } else {
    found.first = start + entry.bytes;
  }
  return found;
}

}  // namespace hbmprof::internal
