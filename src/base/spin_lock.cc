#include "src/base/spin_lock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "src/base/kept_errno.h"

namespace hbmprof::internal {

void Backoff::WaitLonger() {
  if (waits_ < kSpins + kYields) {
    ++waits_;
    sched_yield();
    return;
  }
  const KeptErrno kept_errno;
  nanoseconds_ = std::clamp(2 * nanoseconds_, kMinSleep, kMaxSleep);
  timespec duration = {0, nanoseconds_};
  // A system call, because the C library's functions are cancellation points. Not nanosleep: in a thread that was
  // borrowed (tool/attach) it would end the program's own nanosleep with EINTR, because the kernel continues that one
  // from data of the thread, which a second nanosleep replaces.
  syscall(SYS_pselect6, 0, nullptr, nullptr, nullptr, &duration, nullptr);
}

}  // namespace hbmprof::internal
