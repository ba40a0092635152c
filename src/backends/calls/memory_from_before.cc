#include "src/backends/calls/memory_from_before.h"

#include <sched.h>

#include <algorithm>

#include "src/base/no_cancellation.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {
namespace {

BufferId RecordOf(DeviceId device) {
  return BufferId::Handle(NameSpace::kCudaFromBefore, static_cast<uint64_t>(device) + 1);
}

}  // namespace

void MemoryFromBefore::Expect(const Caller& stack, bool is_measured) {
  is_expected_.store(false, std::memory_order_relaxed);
  stack_ = stack;
  for (OfDevice& device : devices_) {
    device.left.store(0, std::memory_order_relaxed);
    device.segments.store(0, std::memory_order_relaxed);
    device.state.store(is_measured ? State::kUnknown : State::kBusy, std::memory_order_relaxed);
  }
  is_expected_.store(true, std::memory_order_release);
}

// The frees of before the measurement have changed `left`, too. So what is measured is added to the difference that
// they make later.
void MemoryFromBefore::Measure(DeviceId device, int attempts) {
  OfDevice& of_device = At(device);
  State unknown = State::kUnknown;
  if (!is_expected() || of_device.state.load(std::memory_order_relaxed) != unknown ||
      !of_device.state.compare_exchange_strong(unknown, State::kBusy)) {
    return;
  }
  const NoCancellation no_cancellation;  // the probe loads NVML
  const uint32_t own = thread_state.calls != 0 ? 1 : 0;
  int64_t before = 0;
  DeviceStats stats;
  bool is_quiet = false;
  for (int i = 0; i < attempts && !is_quiet; ++i) {
    uint64_t count = TrackedCall::Count();
    for (int j = 0; j < attempts && TrackedCall::InProgress(count) != own; ++j) {
      sched_yield();
      count = TrackedCall::Count();
    }
    before = of_device.left.load();
    if (!TryRun([&] { stats = profiler_.Stats(device); }) || !stats.unaccounted.has_value()) break;
    is_quiet = TrackedCall::InProgress(count) == own && TrackedCall::Count() == count;
  }
  if (!stats.unaccounted.has_value()) return of_device.state.store(State::kUnknown);
  of_device.left.fetch_add(std::max<int64_t>(*stats.unaccounted, 0) - before);
  const auto bytes = static_cast<size_t>(std::max<int64_t>(of_device.left.load(), 0));
  profiler_.RecordAllocFrom(stack_, RecordOf(device), bytes, {device, MemoryKind::kDevice, {}});
  of_device.state.store(State::kMeasured);
  Publish(device);
}

void MemoryFromBefore::Remove(DeviceId device, int64_t bytes) {
  if (bytes == 0) return;
  At(device).left.fetch_sub(bytes);
  Publish(device);
}

void MemoryFromBefore::BecomeSegment(DeviceId device, int64_t bytes) {
  At(device).segments.fetch_add(bytes, std::memory_order_relaxed);
  Remove(device, bytes);
}

MemoryFromBefore::Bytes MemoryFromBefore::Of(DeviceId device) const {
  const OfDevice& of_device = devices_[static_cast<int>(device)];
  return {std::max<int64_t>(of_device.left.load(), 0), of_device.segments.load(),
          of_device.state.load() == State::kMeasured};
}

// Sets the size of the record. Threads that do so at the same time can set sizes in another order than that of their
// changes; the last one then finds that the size has changed, and sets it again.
void MemoryFromBefore::Publish(DeviceId device) {
  OfDevice& of_device = At(device);
  if (of_device.state.load() != State::kMeasured) return;
  int64_t shown;
  do {
    shown = of_device.left.load();
    profiler_.RecordResize(RecordOf(device), static_cast<size_t>(std::max<int64_t>(shown, 0)));
  } while (of_device.left.load() != shown);
}

}  // namespace hbmprof::internal
