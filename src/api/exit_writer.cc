#include "src/api/exit_writer.h"

#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

#include "src/base/background_thread.h"

namespace hbmprof::internal {
namespace {

constexpr time_t kMaxWaitSeconds = 5;
constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

void (*write_profile)() = nullptr;     // set before `thread_process`
std::atomic<pid_t> thread_process{0};  // the process that has the thread
std::atomic<pid_t> forked_process{0};  // set by a fork handler: the id of the forked child
sem_t requested;                       // posted when the process is about to end
std::atomic<uint32_t> is_written{0};   // a futex
static_assert(sizeof(is_written) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

void* WaitAndWrite(void*) {
  while (sem_wait(&requested) != 0) continue;
  write_profile();
  is_written.store(1);
  syscall(SYS_futex, &is_written, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  return nullptr;
}

void EndBySignal(int number, siginfo_t* info, void*) {
  const int error = errno;
  WriteByExitWriter();
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigaction(number, &by_default, nullptr);
  // A fault of the processor occurs again when this function returns. A signal that was sent does not, so it is raised
  // again. The kernel also sends signals with si_code > 0: SIGINT for Ctrl-C, SIGHUP when a terminal closes, SIGXCPU.
  const bool can_be_fault = number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
  if (!can_be_fault || info->si_code <= 0) raise(number);
  errno = error;
}

void HandleSignals() {
  struct sigaction action = {};
  action.sa_sigaction = &EndBySignal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigfillset(&action.sa_mask);
  for (const int number : kSignals) {
    struct sigaction present = {};
    const bool is_default = sigaction(number, nullptr, &present) == 0 && (present.sa_flags & SA_SIGINFO) == 0 &&
                            present.sa_handler == SIG_DFL;
    if (is_default) sigaction(number, &action, nullptr);
  }
}

}  // namespace

bool StartExitWriter(void (*write)()) {
  static std::atomic<bool> is_started{false};
  if (is_started.exchange(true)) return true;
  write_profile = write;
  sem_init(&requested, 0, 0);
  if (!StartBackgroundThread(&WaitAndWrite, nullptr)) return false;
  thread_process.store(getpid());
  pthread_atfork(nullptr, nullptr, [] { forked_process.store(getpid()); });
  at_quick_exit(&WriteByExitWriter);
  HandleSignals();
  return true;
}

void WriteByExitWriter() {
  if (thread_process.load() != getpid()) return;
  const int error = errno;
  sem_post(&requested);
  timespec deadline;
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += kMaxWaitSeconds;
  // FUTEX_WAIT_BITSET takes an absolute time, not a duration.
  while (is_written.load() == 0) {
    const long result =
        syscall(SYS_futex, &is_written, FUTEX_WAIT_BITSET_PRIVATE, 0, &deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
    if (result != 0 && errno == ETIMEDOUT) break;
  }
  errno = error;
}

void WriteBeforeImmediateExit() {
  if (forked_process.load() == getpid()) {
    write_profile();
  } else {
    WriteByExitWriter();
  }
}

}  // namespace hbmprof::internal
