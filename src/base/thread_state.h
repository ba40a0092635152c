// The per-thread state of the tracker: the number of the thread, and whether it is inside the tracker, inside a wrapped
// call or inside a device probe.
#ifndef HBMPROF_SRC_BASE_THREAD_STATE_H_
#define HBMPROF_SRC_BASE_THREAD_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/base/fork.h"

namespace hbmprof::internal {

// Threads are numbered from 1 to kThreadNumbers in the order of their first use, and then from 1 again.
inline constexpr uint32_t kThreadNumbers = 64;

struct ThreadState {
  uint32_t number;    // 0: none yet
  bool inside;        // an event of this thread is being recorded
  bool is_scoped;     // a ScopedCaller is in effect (core/scoped_caller.h)
  uint16_t recorded;  // its number in recordings (core/ledger/event_log.h); 0: none yet
  uint32_t calls;     // the number of wrapped calls of the CUDA driver in progress (nested ones count)
  uint32_t probes;    // the number of calls of device probes in progress
  uint32_t mutexes;   // the number of Mutexes (mutex.h) that it holds or waits for

  // Returns !inside && !is_scoped, by one comparison.
  bool is_common() const {
    uint16_t all;
    std::memcpy(&all, &inside, sizeof(all));
    return all == 0;
  }
};
static_assert(offsetof(ThreadState, recorded) == offsetof(ThreadState, inside) + 2);

// Plain zero-initialized data in the static TLS block. An access never allocates memory, and there is no destructor, so
// it can be used during thread exit and in signal handlers. It is __thread because an extern thread_local might have a
// constructor, so that every access would call a function.
extern __thread ThreadState thread_state __attribute__((tls_model("initial-exec")));

// Returns the number of this thread. A thread gets its number in its first call.
uint32_t ThreadNumber();

// Marks the thread as inside the tracker during its life. `entered()` is false if the thread was inside before: then
// the event comes from the tracker itself, or from a signal handler that interrupted it, and must not be recorded. The
// fences keep the compiler from moving code out of the guarded section, as seen by a signal handler.
class ReentryGuard {
 public:
  ReentryGuard() : entered_(!thread_state.inside) { Enter(); }
  ~ReentryGuard() {
    if (entered_) Leave();
  }
  ReentryGuard(const ReentryGuard&) = delete;
  ReentryGuard& operator=(const ReentryGuard&) = delete;
  bool entered() const { return entered_; }

  // For TrackerSection, and for code that leaves the tracker for a while.
  static void Enter() {
    thread_state.inside = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  static void Leave() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    thread_state.inside = false;
  }

 private:
  const Section section_;
  const bool entered_;
};

// The same as ReentryGuard, for a thread that is not inside the tracker.
class TrackerSection {
 public:
  TrackerSection() { ReentryGuard::Enter(); }
  ~TrackerSection() { ReentryGuard::Leave(); }
  TrackerSection(const TrackerSection&) = delete;
  TrackerSection& operator=(const TrackerSection&) = delete;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_THREAD_STATE_H_
