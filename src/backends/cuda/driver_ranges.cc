#include "src/backends/cuda/driver_ranges.h"

#include <algorithm>
#include <iterator>

#include "src/base/completes.h"
#include "src/base/fork.h"
#include "src/base/lazy.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {
namespace {

Lazy<CudaDriverRanges> instance;

// Handles are no addresses: those of different objects may be near each other.
constexpr uint64_t kFirstHandle = BufferId::Handle(1, 0).value();

}  // namespace

CudaDriverRanges& CudaDriverRanges::Instance() { return instance.Get(); }

void CudaDriverRanges::Insert(uint64_t start, const Entry& entry) {
  const ForkPause pause;
  const ReentryGuard guard;
  if (!guard.entered() || entry.bytes == 0) return;
  MutexLock hold(mutex_);
  auto next = entries_.lower_bound(start);
  if (next != entries_.begin()) {
    const auto before = std::prev(next);
    if (start - before->first < before->second.bytes) next = before;
  }
  while (next != entries_.end() && (next->first < start || next->first - start < entry.bytes)) {
    next = entries_.erase(next);
  }
  static_cast<void>(Completes([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { entries_.emplace_hint(next, start, entry); }));
}

void CudaDriverRanges::Add(BufferId id, size_t bytes) {
  Insert(id.value(), {id.value() >= kFirstHandle ? 1 : bytes, id, false, false});
}

void CudaDriverRanges::AddMapped(uint64_t address, size_t bytes, BufferId physical) {
  Insert(address, {bytes, physical, true, false});
}

void CudaDriverRanges::Remove(uint64_t start) {
  const ForkPause pause;
  const ReentryGuard guard;
  if (!guard.entered()) return;
  MutexLock hold(mutex_);
  entries_.erase(start);
}

std::optional<CudaDriverRanges::Range> CudaDriverRanges::Find(BufferId id) const {
  const ForkPause pause;
  const ReentryGuard guard;
  if (!guard.entered()) return std::nullopt;
  MutexLock hold(mutex_);
  const auto after = entries_.upper_bound(id.value());
  if (after == entries_.begin()) return std::nullopt;
  const auto& [start, entry] = *std::prev(after);
  if (id.value() - start >= entry.bytes) return std::nullopt;
  return Range{entry.record, start, entry.is_mapped, entry.is_declared};
}

void CudaDriverRanges::Declare(uint64_t start) {
  const ForkPause pause;
  const ReentryGuard guard;
  if (!guard.entered()) return;
  MutexLock hold(mutex_);
  const auto found = entries_.find(start);
  if (found != entries_.end()) found->second.is_declared = true;
}

}  // namespace hbmprof::internal
