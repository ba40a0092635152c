#include "src/base/thread_state.h"

#include <atomic>

namespace hbmprof::internal {

__thread ThreadState thread_state __attribute__((tls_model("initial-exec"))) = {};

uint32_t AssignThreadIndex() {
  static std::atomic<uint32_t> next{0};
  const uint32_t index = next.fetch_add(1, std::memory_order_relaxed);
  thread_state.index_plus_one = index + 1;
  return index;
}

}  // namespace hbmprof::internal
