#include "src/api/output/exit_writer.h"

#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "hbmprof/profiler.h"
#include "src/api/output/enough_stack.h"
#include "src/base/background_thread.h"
#include "src/base/delayed_signals.h"
#include "src/base/fork.h"
#include "src/base/kept_errno.h"
#include "src/base/message.h"
#include "src/base/monotonic_clock.h"
#include "src/base/thread_state.h"
#include "src/core/device_driver.h"

namespace hbmprof::internal {
namespace {

// A wait for the write of a profile ends after kMaxWait. At the end of the process it begins anew, for kMaxEnd in all,
// if the thread that writes has used kLeastProgress of processor time: one that only waits or polls uses less.
constexpr int64_t kMaxWait = 5 * kNanosPerSecond;
constexpr int64_t kMaxEnd = 30 * kNanosPerSecond;
constexpr int64_t kLeastProgress = kNanosPerSecond / 10;
constexpr pid_t kFirstProcess = 1;  // of a process id name space: a container's first process
// How long, and in which steps, a signal is delayed because its thread may hold a lock that the exit writer needs.
constexpr int64_t kMaxDelay = kNanosPerSecond;
constexpr long kDelayStep = 200'000;
constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

// The requests to write a profile in a process that may continue.
enum Write : int { kBeforeExec = 1, kAtIgnoredSignal = 2 };
std::atomic<int> wanted_writes{0};          // bits: what the requests ask for
std::atomic<uint64_t> requested_writes{0};  // their number
std::atomic<uint64_t> completed_writes{0};  // the number of those that are completed

std::atomic<const EndFunctions*> end_functions{nullptr};
std::atomic<bool> is_registered{false};  // the exit handler
std::atomic<pid_t> thread_process{0};    // the process that has the thread
sem_t requested;                         // posted for each request
std::atomic<uint32_t> completed{0};      // a futex: the number of completed requests
std::atomic<int> delayed_signal{0};      // a signal that the thread sends to the process again; 0: none
std::atomic<int64_t> first_delay{0};     // when a signal was first delayed: nanoseconds of CLOCK_MONOTONIC; 0: never
static_assert(sizeof(completed) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

// The end of this process. A forked child has an end of its own.
std::atomic<int64_t> ending{0};       // twice the id of the process whose end has begun, plus 1 if it is by exit
std::atomic<int64_t> end_begin{0};    // the time when it began
std::atomic<pid_t> stuck_process{0};  // the process in which a thread saw no progress for kMaxWait
std::atomic<void*> context_at_exit{nullptr};  // of the first thread in exit
std::atomic<pid_t> ended_process{0};          // the process in which write_at_end has returned
std::atomic<clockid_t> writing_clock{-1};     // the processor time of the thread in write_at_end; -1: not known

bool HasThread() { return thread_process.load() == getpid(); }
bool IsEnding() { return ending.load() / 2 == getpid(); }

// Returns whether write_at_end has returned, or has taken too long.
bool IsEnded() {
  const pid_t process = getpid();
  return ended_process.load() == process || stuck_process.load() == process ||
         (IsEnding() && MonotonicNanos() >= end_begin.load() + kMaxEnd);
}

void Complete() {
  completed.fetch_add(1);
  syscall(SYS_futex, &completed, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void* WriteAtEnd(void*) {
  if (clockid_t own = -1; pthread_getcpuclockid(pthread_self(), &own) == 0) writing_clock.store(own);
  const bool is_exit = ending.load() % 2 != 0;
  end_functions.load()->write_at_end({is_exit, is_exit ? context_at_exit.load() : nullptr});
  ended_process.store(getpid());
  Complete();
  return nullptr;
}

// Completes the requests that were made before this call. The profile at the end must remain the last one.
void ServeWrites() {
  const uint64_t number = requested_writes.load();
  if (number == completed_writes.load()) return;
  const int wanted = wanted_writes.exchange(0);
  if ((wanted & kAtIgnoredSignal) != 0 && !IsEnded()) end_functions.load()->write_and_continue();
  if ((wanted & kBeforeExec) != 0 && !IsEnded()) end_functions.load()->write_before_exec();
  completed_writes.store(number);
  Complete();
}

void* WaitAndWrite(void*) {
  while (true) {
    while (sem_wait(&requested) != 0) continue;
    if (IsEnding() && ended_process.load() != getpid()) WriteAtEnd(nullptr);
    ServeWrites();
    if (const int number = delayed_signal.exchange(0); number != 0) {
      const timespec step = {0, kDelayStep};
      nanosleep(&step, nullptr);
      syscall(SYS_kill, getpid(), number);  // kill() may be the replacement of end_calls.h
    }
  }
}

// Waits until is_done(), or until `deadline`.
template <typename IsDone>
void WaitUntil(int64_t deadline, const IsDone& is_done) {
  const timespec until = {deadline / kNanosPerSecond, deadline % kNanosPerSecond};
  // FUTEX_WAIT_BITSET takes an absolute time, not a duration.
  for (uint32_t seen = completed.load(); !is_done(); seen = completed.load()) {
    const long result =
        syscall(SYS_futex, &completed, FUTEX_WAIT_BITSET_PRIVATE, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
    if (result != 0 && errno == ETIMEDOUT) break;
  }
}

// Returns 0 if the thread has not begun.
int64_t WritingNanos() { return ClockNanos(writing_clock.load()); }

// Waits until write_at_end has returned, or has taken too long.
void AwaitEnd() {
  for (int64_t before = WritingNanos(); !IsEnded();) {
    const int64_t step_end = MonotonicNanos() + kMaxWait;
    WaitUntil(std::min(step_end, end_begin.load() + kMaxEnd), [] { return IsEnded(); });
    const int64_t used = WritingNanos();
    if (used - before < kLeastProgress && MonotonicNanos() >= step_end) stuck_process.store(getpid());
    before = used;
  }
}

// Requests a write, and waits until it is completed, until the profile at the end is written, or for five seconds.
void RequestWrite(Write write) {
  wanted_writes.fetch_or(write);
  const uint64_t number = requested_writes.fetch_add(1) + 1;
  sem_post(&requested);
  WaitUntil(MonotonicNanos() + kMaxWait, [&] { return completed_writes.load() >= number || IsEnded(); });
}

// Returns whether this call is the first one of this process. Async-signal-safe.
bool BeginEnd(bool is_exit) {
  const int64_t own = int64_t{2} * getpid();
  int64_t before = ending.load();
  if (before / 2 == getpid()) return false;
  end_begin.store(MonotonicNanos());
  return ending.compare_exchange_strong(before, own + (is_exit ? 1 : 0));
}

void EndByExit() {
  if (IsOff() || IsEnded()) return;
  // Another thread in exit also finds this handler. And the C library, if it has a handler more when this one returns,
  // reads its list from the start, because that thread may have freed the part in which this handler was.
  std::atexit(&EndByExit);
  // A handler of a signal would wait for the write.
  const DelayedSignals delayed;
  if (const DeviceDriver* const driver = device_driver.load(); driver != nullptr && !IsEnding()) {
    context_at_exit.store(driver->context());
  }
  if (!BeginEnd(/*is_exit=*/true)) {
    AwaitEnd();
    sleep(1);
    return;
  }
  if (HasThread()) {
    sem_post(&requested);
  } else if (!StartBackgroundThread(&WriteAtEnd, nullptr)) {
    if (WithEnoughStack([] { WriteAtEnd(nullptr); })) return;
    PrintMessage("hbmprof: no profile at exit: the stack is small and no thread can be started");
    ended_process.store(getpid());
  }
  AwaitEnd();
  if (ended_process.load() != getpid()) {
    PrintMessage(
        "hbmprof: the process ends before its profile or recording is complete: no progress for 5 seconds, or 30 in "
        "all; HBMPROF_OUTPUT_INTERVAL=60 (hbmprof run --interval 60) also writes profiles before");
  }
}

// Makes the exit writer send the signal to the process again a little later, or after the profile at the end, if it is
// being written. Returns false if it does not, because a signal was first delayed kMaxDelay ago. A process can continue
// after a delayed signal, if it has set its own handler meanwhile. So a delay that began long ago does not count.
bool Delay(int number) {
  const int64_t now = MonotonicNanos();
  int64_t first = first_delay.load();
  const bool is_new = first == 0 || (now - first > 2 * kMaxDelay && delayed_signal.load() == 0);
  if (is_new && first_delay.compare_exchange_strong(first, now)) first = now;
  if (!IsEnding() && now - first > kMaxDelay) return false;
  // If another signal is delayed already, that one has the same effect.
  int none = 0;
  if (delayed_signal.compare_exchange_strong(none, number)) sem_post(&requested);
  return true;
}

void EndBySignal(int number, siginfo_t* info, void*) {
  const KeptErrno kept_errno;
  // A fault of the processor occurs again when this function returns. A signal that was sent does not, so it is raised
  // again. The kernel also sends signals with si_code > 0: SIGINT for Ctrl-C, SIGHUP when a terminal closes, SIGXCPU.
  const bool can_be_fault = number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
  const bool is_sent = !can_be_fault || info->si_code <= 0;
  // While this function waits for the exit writer, the thread keeps its locks. abort() does not return to the thread;
  // it sends the signal with tgkill.
  const bool can_return = is_sent && !(number == SIGABRT && info->si_code == SI_TKILL);
  const bool has_writer = HasThread() && !IsEnded();
  // The exit writer may need a lock that this thread holds.
  const bool may_hold_lock =
      thread_state.inside || thread_state.calls != 0 || thread_state.probes != 0 || thread_state.mutexes != 0;
  if (can_return && has_writer && may_hold_lock && Delay(number)) return;
  if (can_return && getpid() == kFirstProcess) {
    // Without this handler, the kernel would ignore the signal.
    first_delay.store(0);
    if (has_writer) RequestWrite(kAtIgnoredSignal);
    return;
  }
  WriteByExitWriter();
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigaction(number, &by_default, nullptr);
  if (is_sent) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);  // not raise(): see HandleOwnSignal
}

// Sets the handler of the signal, if it has its default action now.
void Handle(int number) {
  struct sigaction present = {};
  const bool is_default = sigaction(number, nullptr, &present) == 0 && (present.sa_flags & SA_SIGINFO) == 0 &&
                          present.sa_handler == SIG_DFL;
  if (!is_default) return;
  struct sigaction action = {};
  action.sa_sigaction = &EndBySignal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

bool StartWriterThread() {
  sem_init(&requested, 0, 0);
  if (!StartBackgroundThread(&WaitAndWrite, nullptr)) return false;
  thread_process.store(getpid());
  return true;
}

// A child that begins like a new process gets the thread of its parent.
void StartInChild() {
#if !defined(__SANITIZE_THREAD__)  // the thread sanitizer ends a forked child that starts a thread
  if (IsOff()) return;
  const KeptErrno kept_errno;
  completed_writes.store(requested_writes.load());
  delayed_signal.store(0);
  first_delay.store(0);
  StartWriterThread();
#endif
}

}  // namespace

void SetEndFunctions(const EndFunctions& functions) { end_functions.store(&functions); }

void ProfileIsWritten() { writing_clock.store(-1); }

void WriteAtExit() {
  if (!is_registered.exchange(true)) std::atexit(&EndByExit);
}

void WriteBeforeOlderExitHandlers() {
  if (is_registered.load()) std::atexit(&EndByExit);
}

void WriteAtEveryEnd() {
  if (IsOff()) return;
  WriteAtExit();
  static std::atomic<bool> is_started{false};
  if (!Profiler::OptionsOfDefault().output_on_signals || is_started.exchange(true)) return;
  if (!StartWriterThread()) {
    return PrintMessage("hbmprof: cannot start the thread that writes the files when a signal ends the process");
  }
  // Not when this library is loaded: a new thread needs malloc, whose own handler must run first.
  pthread_atfork(nullptr, nullptr, &StartInChild);
  at_quick_exit(&WriteByExitWriter);
  for (const int number : kSignals) Handle(number);
  end_functions.load()->thread_starts();
}

void WriteByExitWriter() {
  if (!HasThread()) return;
  const KeptErrno kept_errno;
  BeginEnd(/*is_exit=*/false);
  sem_post(&requested);
  AwaitEnd();
}

void HandleOwnSignal(int number) {
  if (!HasThread() || IsEnded()) return;
  const KeptErrno kept_errno;
  if (std::find(std::begin(kSignals), std::end(kSignals), number) != std::end(kSignals)) Handle(number);
}

void WriteBeforeExec() {
  if (!HasThread()) return;
  const KeptErrno kept_errno;
  RequestWrite(kBeforeExec);
}

}  // namespace hbmprof::internal
