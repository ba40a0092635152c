// TrackedCall: a call of the driver that is tracked, and the number of those in progress.
#ifndef HBMPROF_SRC_BACKENDS_CALLS_TRACKED_CALL_H_
#define HBMPROF_SRC_BACKENDS_CALLS_TRACKED_CALL_H_

#include <atomic>
#include <cstdint>

#include "hbmprof/caller.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {

// One tracked call on the calling thread. Only the outermost call is recorded. A call that the driver, or a wrapper
// above it, makes within a tracked call is not recorded.
class TrackedCall {
 public:
  explicit TrackedCall(const Caller& caller) : outermost_(thread_state.calls++ == 0), caller_(caller) {
    if (outermost_) count_.fetch_add(1, std::memory_order_relaxed);
  }
  ~TrackedCall() {
    --thread_state.calls;
    constexpr uint64_t kEnded = uint64_t{1} << 32;
    if (outermost_) count_.fetch_add(kEnded - 1, std::memory_order_relaxed);
  }
  TrackedCall(const TrackedCall&) = delete;
  TrackedCall& operator=(const TrackedCall&) = delete;

  bool outermost() const { return outermost_; }
  const Caller& caller() const { return caller_; }

  // A number that each start and each end of an outermost call changes, on all threads.
  static uint64_t Count() { return count_.load(std::memory_order_seq_cst); }
  // The number of outermost calls in progress when Count() was `count`, and of those that had ended, modulo 2^32.
  static uint32_t InProgress(uint64_t count) { return static_cast<uint32_t>(count); }
  static uint32_t Ended(uint64_t count) { return static_cast<uint32_t>(count >> 32); }

 private:
  inline static std::atomic<uint64_t> count_{0};
  const bool outermost_;
  const Caller& caller_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CALLS_TRACKED_CALL_H_
