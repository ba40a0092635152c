#include "src/base/thread_state.h"

#include <atomic>

namespace hbmprof::internal {

__thread ThreadState thread_state __attribute__((tls_model("initial-exec"))) = {};

uint32_t ThreadNumber() {
  static std::atomic<uint32_t> numbered{0};
  if (thread_state.number == 0) {
    thread_state.number = 1 + numbered.fetch_add(1, std::memory_order_relaxed) % kThreadNumbers;
  }
  return thread_state.number;
}

}  // namespace hbmprof::internal
