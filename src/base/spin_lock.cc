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
  const timespec duration = {0, nanoseconds_};
  // The function nanosleep is not used because it is a cancellation point.
  syscall(SYS_nanosleep, &duration, nullptr);
  errno = saved_errno;
}

}  // namespace hbmprof::internal
