#include "src/base/spin_lock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hbmprof::internal {

std::atomic<uint32_t> lock_generation{kLockedBit};

void Backoff::WaitLonger() {
  if (waits_ < kSpins + kYields) {
    ++waits_;
    sched_yield();
    return;
  }
  const int saved_errno = errno;
  nanoseconds_ = std::clamp(2 * nanoseconds_, kMinSleep, kMaxSleep);
  timespec duration = {0, nanoseconds_};
  // The C library's functions are cancellation points. The system call nanosleep would end a nanosleep of the program
  // in whose place this runs, when a thread was borrowed (tool/attach): the kernel continues it from data of the
  // thread.
  syscall(SYS_pselect6, 0, nullptr, nullptr, nullptr, &duration, nullptr);
  errno = saved_errno;
}

}  // namespace hbmprof::internal
