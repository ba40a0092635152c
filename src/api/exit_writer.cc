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
#include "src/base/fork.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {
namespace {

constexpr time_t kMaxWaitSeconds = 5;
constexpr pid_t kFirstProcess = 1;  // of a process id name space: a container's first process
constexpr int64_t kSecond = 1'000'000'000;
// How long, and in which steps, a signal is delayed because its thread may hold a lock of this library.
constexpr int64_t kMaxDelay = kSecond;
constexpr long kDelayStep = 200'000;
constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

// The requests to write a profile in a process that may continue.
struct Writes {
  std::atomic<uint64_t> requested{0};  // their number
  std::atomic<uint64_t> completed{0};  // the number of those that are completed
};

ExitWriterOptions writer;               // set before `thread_process`
std::atomic<pid_t> thread_process{0};   // the process that has the thread
std::atomic<bool> needs_thread{false};  // whether this process is a forked child that gets the thread on request
std::atomic<bool> in_children{false};   // whether a forked child gets the thread at once
sem_t requested;                        // posted for each request
std::atomic<bool> is_ending{false};     // whether a request is for the end of the process
std::atomic<uint32_t> completed{0};     // a futex: the number of completed requests
std::atomic<bool> is_ended{false};      // whether the request for the end is completed
Writes before_exec;
Writes at_ignored_signal;
std::atomic<int> delayed_signal{0};   // a signal that the thread sends to the process again; 0: none
std::atomic<int64_t> first_delay{0};  // when a signal was first delayed: nanoseconds of CLOCK_MONOTONIC; 0: never
static_assert(sizeof(completed) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

void Complete() {
  completed.fetch_add(1);
  syscall(SYS_futex, &completed, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// Completes the requests that were made before this call.
void Serve(Writes& writes, void (*write)()) {
  const uint64_t requested = writes.requested.load();
  if (requested == writes.completed.load()) return;
  write();
  writes.completed.store(requested);
  Complete();
}

void* WaitAndWrite(void*) {
  while (true) {
    while (sem_wait(&requested) != 0) continue;
    if (is_ending.load()) break;
    if (const int number = delayed_signal.exchange(0); number != 0) {
      const timespec step = {0, kDelayStep};
      nanosleep(&step, nullptr);
      kill(getpid(), number);
      continue;
    }
    Serve(at_ignored_signal, writer.write_and_continue);
    Serve(before_exec, writer.write_before_exec);
  }
  writer.write_at_end();
  is_ended.store(true);
  Complete();
  return nullptr;
}

// Posts a request, and waits until is_done() or for five seconds.
template <typename IsDone>
void RequestAndWait(const IsDone& is_done) {
  sem_post(&requested);
  timespec deadline;
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += kMaxWaitSeconds;
  // FUTEX_WAIT_BITSET takes an absolute time, not a duration.
  for (uint32_t seen = completed.load(); !is_done(); seen = completed.load()) {
    const long result =
        syscall(SYS_futex, &completed, FUTEX_WAIT_BITSET_PRIVATE, seen, &deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
    if (result != 0 && errno == ETIMEDOUT) break;
  }
}

// Requests a write, and waits until it is completed, until the profile at the end is written, or for five seconds.
void RequestWrite(Writes& writes) {
  const uint64_t number = writes.requested.fetch_add(1) + 1;
  RequestAndWait([&] { return writes.completed.load() >= number || is_ended.load(); });
}

// Returns whether the thread may hold a lock that the exit writer needs.
bool MayHoldLock() { return thread_state.inside || fork_state.mutexes != 0; }

// Makes the exit writer send the signal to the process again a little later. Returns false if it does not, because a
// signal was first delayed kMaxDelay ago. A process can continue after a delayed signal, if it has set its own handler
// meanwhile. So a delay that began long ago does not count.
bool Delay(int number) {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = time.tv_sec * kSecond + time.tv_nsec;
  int64_t first = first_delay.load();
  const bool is_new = first == 0 || now - first > 2 * kMaxDelay;
  if (is_new && first_delay.compare_exchange_strong(first, now)) first = now;
  if (now - first > kMaxDelay) return false;
  // If another signal is delayed already, that one has the same effect.
  int none = 0;
  if (delayed_signal.compare_exchange_strong(none, number)) sem_post(&requested);
  return true;
}

void EndBySignal(int number, siginfo_t* info, void*) {
  const int error = errno;
  // A fault of the processor occurs again when this function returns. A signal that was sent does not, so it is raised
  // again. The kernel also sends signals with si_code > 0: SIGINT for Ctrl-C, SIGHUP when a terminal closes, SIGXCPU.
  const bool can_be_fault = number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
  const bool is_sent = !can_be_fault || info->si_code <= 0;
  // While this function waits for the exit writer, the thread keeps its locks. abort() does not return to the thread;
  // it sends the signal with tgkill.
  const bool can_return = is_sent && !(number == SIGABRT && info->si_code == SI_TKILL);
  const bool has_writer = thread_process.load() == getpid() && !is_ending.load();
  if (can_return && has_writer && MayHoldLock() && Delay(number)) {
    errno = error;
    return;
  }
  if (can_return && getpid() == kFirstProcess) {
    // Without this handler, the kernel would ignore the signal.
    first_delay.store(0);
    if (has_writer) RequestWrite(at_ignored_signal);
    errno = error;
    return;
  }
  WriteByExitWriter();
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigaction(number, &by_default, nullptr);
  if (is_sent) raise(number);
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

bool StartThread() {
  sem_init(&requested, 0, 0);
  if (!StartBackgroundThread(&WaitAndWrite, nullptr)) return false;
  thread_process.store(getpid());
  return true;
}

// A fork handler of the child.
void StartInChild() {
#if !defined(__SANITIZE_THREAD__)  // the thread sanitizer ends a forked child that starts a thread
  needs_thread.store(true);
  if (in_children.load()) StartExitWriterInChild();
#endif
}

}  // namespace

bool StartExitWriter(const ExitWriterOptions& options) {
  static std::atomic<bool> is_started{false};
  if (is_started.exchange(true)) return true;
  writer = options;
  if (options.in_children) in_children.store(true);
  if (!StartThread()) return false;
  pthread_atfork(nullptr, nullptr, &StartInChild);
  at_quick_exit(&WriteByExitWriter);
  HandleSignals();
  return true;
}

void StartExitWriterInChild() {
  if (!needs_thread.load(std::memory_order_relaxed) || !needs_thread.exchange(false)) return;
  const int error = errno;
  is_ending.store(false);
  is_ended.store(false);
  before_exec.completed.store(before_exec.requested.load());
  at_ignored_signal.completed.store(at_ignored_signal.requested.load());
  delayed_signal.store(0);
  first_delay.store(0);
  StartThread();
  errno = error;
}

void StartExitWriterInAllChildren() {
  in_children.store(true);
  StartExitWriterInChild();
}

void WriteByExitWriter() {
  if (thread_process.load() != getpid()) return;
  const int error = errno;
  is_ending.store(true);
  RequestAndWait([] { return is_ended.load(); });
  errno = error;
}

void WriteBeforeExec() {
  if (thread_process.load() != getpid()) return;
  const int error = errno;
  RequestWrite(before_exec);
  errno = error;
}

}  // namespace hbmprof::internal
