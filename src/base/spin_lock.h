// SpinLock: four bytes, for sections of some ten instructions on the path of an event. Also its scoped guard.
// Not here: locks for slow paths (mutex.h).
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

// Zero-filled memory is an unlocked SpinLock. Waiters spin briefly, then yield: a holder that was preempted is the
// common reason to wait when there are more threads than cores.
class ABSL_LOCKABLE SpinLock {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (held_.exchange(1, std::memory_order_acquire) != 0) LockSlow();
  }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    return held_.load(std::memory_order_relaxed) == 0 && held_.exchange(1, std::memory_order_acquire) == 0;
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { held_.store(0, std::memory_order_release); }

 private:
  [[gnu::noinline]] void LockSlow() {
    int spins = 0;
    do {
      while (held_.load(std::memory_order_relaxed) != 0) {
        if (++spins < 200) {
          CpuRelax();
        } else {
          sched_yield();
        }
      }
    } while (held_.exchange(1, std::memory_order_acquire) != 0);
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
