#include "src/base/forked_child.h"

#include <linux/kcmp.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "src/base/kept_errno.h"

namespace hbmprof::internal {
namespace {

std::atomic<bool> was_only_thread{false};
std::atomic<bool> is_forked_child{false};

// Whether this process has only the calling thread. (__libc_single_threaded does not become true again after the other
// threads have ended.)
bool IsOnlyThread() {
  const KeptErrno kept_errno;
  struct stat threads;
  constexpr nlink_t kLinksOfAFolder = 2;  // plus one for each folder in it
  const bool is_only = stat("/proc/self/task", &threads) == 0 && threads.st_nlink == kLinksOfAFolder + 1;
  return is_only;
}

[[gnu::constructor]] void WatchForks() {
  // If two threads fork at the same time, both find that the process has other threads.
  pthread_atfork([] { was_only_thread.store(IsOnlyThread(), std::memory_order_relaxed); }, nullptr,
                 [] {
                   if (!was_only_thread.load(std::memory_order_relaxed)) {
                     is_forked_child.store(true, std::memory_order_relaxed);
                   }
                 });
}

}  // namespace

bool SharesParentsMemory() {
  const KeptErrno kept_errno;
  // The C library keeps the thread's id in memory, and tells it as a part of the number of the thread's clock, which
  // the kernel defines: the complement of the id, and three bits. In a child of vfork it is a thread of the parent.
  clockid_t clock = 0;
  if (pthread_getcpuclockid(pthread_self(), &clock) != 0) return false;
  const pid_t thread = ~(clock >> 3);
  if (thread == syscall(SYS_gettid) || syscall(SYS_tgkill, getpid(), thread, 0) == 0) return false;
  // A child of clone without CLONE_VM has memory of its own. If that cannot be asked, it counts as its parent's.
  return syscall(SYS_kcmp, getpid(), getppid(), KCMP_VM, 0, 0) <= 0;
}

bool IsForkedChild() { return is_forked_child.load(std::memory_order_relaxed); }

}  // namespace hbmprof::internal
