// What the tracker keeps per thread: its number, and whether it is inside the tracker.
#ifndef HBMPROF_SRC_BASE_THREAD_STATE_H_
#define HBMPROF_SRC_BASE_THREAD_STATE_H_

#include <atomic>
#include <cstdint>

namespace hbmprof::internal {

// Threads are numbered from 1 up to this in the order of first use, and then from 1 again.
inline constexpr uint32_t kThreadNumbers = 64;

struct ThreadState {
  uint32_t number;  // 0: none yet
  bool inside;      // an event of this thread is being recorded
};

// Plain zero-initialised data in the static TLS block: reading it never allocates, and it needs no destructor, so it
// works during thread exit and from signal handlers. __thread, since an extern thread_local might need a constructor,
// which every access would have to ask for.
extern __thread ThreadState thread_state __attribute__((tls_model("initial-exec")));

// This thread's number, which it gets now if it has none.
uint32_t ThreadNumber();

// Marks the thread as inside the tracker while it lives. `entered()` is false if it was inside already: then the event
// comes from the tracker itself (or from a signal handler that interrupted it) and must be passed through. The fences
// keep the compiler from moving what the guard guards out of its reach, as a signal handler would see it.
class ReentryGuard {
 public:
  ReentryGuard() : entered_(!thread_state.inside) {
    thread_state.inside = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~ReentryGuard() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (entered_) thread_state.inside = false;
  }
  ReentryGuard(const ReentryGuard&) = delete;
  ReentryGuard& operator=(const ReentryGuard&) = delete;
  bool entered() const { return entered_; }

 private:
  const bool entered_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_THREAD_STATE_H_
