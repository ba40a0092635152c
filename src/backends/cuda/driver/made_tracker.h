// MadeTracker: the object that wrapped calls record with. The first call for which the host has memory makes it.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_MADE_TRACKER_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_MADE_TRACKER_H_

#include <atomic>
#include <cstdint>

#include "hbmprof/profiler.h"
#include "src/base/lock_free_lazy.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {

// Returns make() if this thread is not inside the tracker, else null. During make() the thread is inside the tracker.
// So if the program's own operator new makes a wrapped call, the allocations of make() do not make a second tracker.
template <typename Make>
auto MakeInsideTracker(const Make& make) -> decltype(make()) {
  const ReentryGuard guard;
  return guard.entered() ? make() : nullptr;
}

// Declare it static: it is constant-initialized. The tracker is never destroyed. Thread-safe.
template <typename T>
class MadeTracker {
 public:
  // As LockFreeLazy::Get, but returns null if the host has no memory or if `make` returns null. The caller then makes
  // the real call without a record. If the host has no memory, the call is counted as dropped, as soon as there is a
  // profiler.
  template <typename Make>
  T* Get(const Make& make, bool* published = nullptr) {
    T* tracker = nullptr;
    if (!TryRun([&] { tracker = made_.Get(make, published); })) {
      if (!TryRun([] { Profiler::Default().RecordDropped(0); })) {
        untracked_calls_.fetch_add(1, std::memory_order_relaxed);
      }
      return nullptr;
    }
    if (tracker != nullptr && untracked_calls_.load(std::memory_order_relaxed) != 0) {
      for (int64_t calls = untracked_calls_.exchange(0); calls > 0; --calls) Profiler::Default().RecordDropped(0);
    }
    return tracker;
  }

 private:
  LockFreeLazy<T> made_;
  std::atomic<int64_t> untracked_calls_{0};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_MADE_TRACKER_H_
