// SpinLock: a lock of four bytes that is used while events are recorded. Its sections have about ten instructions, with
// a few exceptions. The longest is that of a snapshot (Ledger::reading_lock_), for which no event waits.
// SpinLockHolder: its scoped guard. Backoff: waits in a loop. Not in this file: locks for slow paths (mutex.h).
#ifndef HBMPROF_SRC_BASE_SPIN_LOCK_H_
#define HBMPROF_SRC_BASE_SPIN_LOCK_H_

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"

namespace hbmprof::internal {

inline void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for another thread in a loop: spins first, then yields, then sleeps for at most 0.25 ms at a time. Yielding
// helps if the other thread was preempted, which is the common case if there are more threads than processors. The
// sleeps are necessary because a thread under SCHED_FIFO could otherwise keep the other thread off its processor for
// ever. Does not change errno, is no cancellation point, and may be used in signal handlers.
class Backoff {
 public:
  void Wait() {
    if (waits_ >= kSpins) return WaitLonger();
    ++waits_;
    CpuRelax();
  }

 private:
  static constexpr int kSpins = 200;
  static constexpr int kYields = 200;
  static constexpr long kMinSleep = 10'000;  // nanoseconds
  static constexpr long kMaxSleep = 250'000;

  [[gnu::noinline]] void WaitLonger();

  int waits_ = 0;
  long nanoseconds_ = 0;
};

// Zero-filled memory is an unlocked SpinLock.
class ABSL_LOCKABLE SpinLock {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!TryLock()) LockSlow();
  }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return held_.exchange(1, std::memory_order_acquire) == 0; }
  void Unlock() ABSL_UNLOCK_FUNCTION() { held_.store(0, std::memory_order_release); }

 private:
  [[gnu::noinline]] void LockSlow() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Backoff backoff;
    do {
      while (held_.load(std::memory_order_relaxed) != 0) backoff.Wait();
    } while (!TryLock());
  }

  std::atomic<uint32_t> held_{0};
};

class ABSL_SCOPED_LOCKABLE SpinLockHolder {
 public:
  explicit SpinLockHolder(SpinLock& lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) { lock_.Lock(); }
  ~SpinLockHolder() ABSL_UNLOCK_FUNCTION() { lock_.Unlock(); }
  SpinLockHolder(const SpinLockHolder&) = delete;
  SpinLockHolder& operator=(const SpinLockHolder&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_SPIN_LOCK_H_
