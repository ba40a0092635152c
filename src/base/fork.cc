#include "src/base/fork.h"

#include <linux/kcmp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/base/kept_errno.h"

#if !defined(MADV_WIPEONFORK)
#define MADV_WIPEONFORK 18  // since Linux 4.14
#endif

namespace hbmprof::internal {

ProcessPage process_page{};
std::atomic<bool> has_recorded{false};
std::atomic<uint32_t> Section::open_{0};

namespace {

bool is_emptied_by_kernel = false;
std::atomic<void (*)(bool)> in_child[4] = {};

void Child() {
  if (!is_emptied_by_kernel) process_page.records.store(ProcessPage::kNothing);
  if (Section::open() != 0) has_recorded.store(true);
  const bool is_off = IsOff();
  for (const auto& function : in_child) {
    if (auto* const call = function.load(std::memory_order_relaxed)) call(is_off);
  }
}

[[gnu::constructor]] void WatchForks() {
  const KeptErrno kept_errno;
  is_emptied_by_kernel = madvise(&process_page, sizeof(process_page), MADV_WIPEONFORK) == 0;
  pthread_atfork(nullptr, nullptr, &Child);
}

}  // namespace

bool BeginFirstEvent() {
  // In a child of a process that had recorded, only the second word is set. Here the first one is set before.
  if (!has_recorded.load(std::memory_order_acquire)) {
    uint32_t nothing = ProcessPage::kNothing;
    process_page.records.compare_exchange_strong(nothing, ProcessPage::kBegins);
    has_recorded.store(true);
  }
  if (process_page.records.load() == ProcessPage::kNothing) return false;
  process_page.records.store(ProcessPage::kRecords);
  return true;
}

void HandleForks(void (*function)(bool is_off)) {
  for (auto& free : in_child) {
    void (*none)(bool) = nullptr;
    if (free.compare_exchange_strong(none, function)) return;
  }
}

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

}  // namespace hbmprof::internal
