#include "src/base/forked_child.h"

#include <pthread.h>

#include <atomic>

namespace hbmprof::internal {
namespace {

std::atomic<bool> is_forked_child{false};

[[gnu::constructor]] void WatchForks() {
  pthread_atfork(nullptr, nullptr, [] { is_forked_child.store(true, std::memory_order_relaxed); });
}

}  // namespace

bool IsForkedChild() { return is_forked_child.load(std::memory_order_relaxed); }

}  // namespace hbmprof::internal
