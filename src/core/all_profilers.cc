#include "src/core/all_profilers.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "src/base/fork.h"
#include "src/base/mutex.h"
#include "src/base/pages.h"
#include "src/core/device_driver.h"
#include "src/core/profiler_impl.h"

namespace hbmprof::internal {
namespace {

// The list is changed only under the mutex. The handler of a fork reads it without.
Mutex profilers_mutex;
std::atomic<ProfilerImpl*> first_profiler{nullptr};

template <typename Visit>
void ForEachProfiler(const Visit& visit) {
  for (ProfilerImpl* impl = first_profiler.load(std::memory_order_acquire); impl != nullptr;
       impl = impl->next.load(std::memory_order_acquire)) {
    visit(*impl);
  }
}

// The profilers share tables, so the smallest limit holds for all.
void LimitHostBytes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(profilers_mutex) {
  int64_t least = INT64_MAX;
  ForEachProfiler([&](const ProfilerImpl& impl) { least = std::min(least, impl.max_host_bytes); });
  SetMaxHostBytes(least);
}

void StartInChild(bool is_off) {
  // A child must not call its parent's driver, whose locks may be held.
  device_driver.store(nullptr);
  ForEachProfiler([is_off](ProfilerImpl& impl) {
    if (is_off) return impl.enabled.store(false, std::memory_order_relaxed);
    impl.probes.DropAll();
  });
}

[[gnu::constructor]] void GuardForks() { HandleForks(&StartInChild); }

}  // namespace

void AddProfiler(ProfilerImpl* profiler) {
  MutexLock hold(profilers_mutex);
  profiler->next.store(first_profiler.load(std::memory_order_relaxed), std::memory_order_relaxed);
  first_profiler.store(profiler, std::memory_order_release);
  LimitHostBytes();
}

void RemoveProfiler(ProfilerImpl* profiler) {
  MutexLock hold(profilers_mutex);
  std::atomic<ProfilerImpl*>* link = &first_profiler;
  while (link->load(std::memory_order_relaxed) != profiler) link = &link->load(std::memory_order_relaxed)->next;
  link->store(profiler->next.load(std::memory_order_relaxed), std::memory_order_release);
  LimitHostBytes();
}

}  // namespace hbmprof::internal
