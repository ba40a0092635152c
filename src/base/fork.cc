#include "src/base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "src/base/monotonic_clock.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {

__thread ForkState fork_state __attribute__((tls_model("initial-exec"))) = {};

namespace {

std::atomic<bool> is_gate_closed{false};
std::atomic<uint32_t> threads_inside{0};  // threads that hold or wait for a Mutex
std::atomic<bool> is_without_gate{false};
void (*in_child)(bool is_usable) = nullptr;
std::atomic<pid_t> forking_process{0};

constexpr int64_t kMillisecond = 1'000'000;
// How long a fork waits for other threads to leave their sections, which take microseconds. The shorter time is for a
// forking thread that is inside the tracker: the other threads may wait for a lock that it holds.
constexpr int64_t kMaxWait = 5000 * kMillisecond;
constexpr int64_t kMaxWaitInside = 50 * kMillisecond;

// Waits until `condition()` is true. Returns false if that takes longer than `max_wait` nanoseconds.
template <typename Condition>
bool WaitUntil(const Condition& condition, int64_t max_wait) {
  const int64_t end = MonotonicNanos() + max_wait;
  for (Backoff backoff; !condition(); backoff.Wait()) {
    if (MonotonicNanos() > end) return false;
  }
  return true;
}

uint32_t OwnSections() { return fork_state.mutexes != 0 ? 1 : 0; }

// Keeps the compiler from reordering accesses that a signal handler must see in order.
void Fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Closes the gate and waits until no other thread holds a Mutex. At most one thread at a time has the gate closed.
// Returns false, with the gate open, if this takes longer than `max_wait` nanoseconds.
bool CloseGate(int64_t max_wait) {
  if (!WaitUntil([] { return !is_gate_closed.exchange(true, std::memory_order_seq_cst); }, max_wait)) return false;
  const uint32_t own = OwnSections();
  if (WaitUntil([own] { return threads_inside.load(std::memory_order_seq_cst) <= own; }, max_wait)) return true;
  is_gate_closed.store(false, std::memory_order_release);
  return false;
}

void Prepare() {
  if (fork_state.forks++ != 0) return;  // a nested fork: the outer one has done all this
  const bool is_outside = !thread_state.inside && fork_state.mutexes == 0;
  fork_state.holds_gate =
      !is_without_gate.load(std::memory_order_relaxed) && CloseGate(is_outside ? kMaxWait : kMaxWaitInside);
  forking_process.store(getpid(), std::memory_order_relaxed);
  if (!is_outside) return;
  thread_state.inside = true;
  Fence();
  fork_state.is_outside = true;
}

void OpenGate() {
  fork_state.holds_gate = false;
  is_gate_closed.store(false, std::memory_order_release);
}

void Parent() {
  if (fork_state.forks == 0 || --fork_state.forks != 0) return;
  if (fork_state.holds_gate) OpenGate();
  if (!fork_state.is_outside) return;
  fork_state.is_outside = false;
  Fence();
  thread_state.inside = false;
}

void Child() {
  if (fork_state.forks == 0) return;  // a ReentryGuard has done this
  const bool was_outside = fork_state.is_outside;
  const bool is_usable = was_outside && fork_state.holds_gate;
  fork_state = {fork_state.mutexes, 0, false, false};
  Fence();
  BeginLockGeneration();
  threads_inside.store(OwnSections(), std::memory_order_relaxed);
  if (in_child != nullptr) in_child(is_usable);
  OpenGate();
  Fence();
  if (was_outside) thread_state.inside = false;
}

// Runs before there are threads, so that no thread is inside.
[[gnu::constructor]] void GuardForks() { pthread_atfork(&Prepare, &Parent, &Child); }

}  // namespace

void ForkWithoutGate() { is_without_gate.store(true, std::memory_order_relaxed); }

void HandleForks(void (*function)(bool is_usable)) { in_child = function; }

void EnterMutexSection() {
  if (fork_state.mutexes == 0) {
    for (;;) {
      threads_inside.fetch_add(1, std::memory_order_seq_cst);
      // The forking thread itself may pass the closed gate, because no other thread is inside.
      if (!is_gate_closed.load(std::memory_order_seq_cst) || fork_state.forks != 0) break;
      threads_inside.fetch_sub(1, std::memory_order_seq_cst);
      for (Backoff backoff; is_gate_closed.load(std::memory_order_acquire);) backoff.Wait();
    }
  }
  ++fork_state.mutexes;
}

void LeaveMutexSection() {
  if (--fork_state.mutexes == 0) threads_inside.fetch_sub(1, std::memory_order_release);
}

bool ReentryGuard::EnterDuringFork() {
  if (!fork_state.is_outside) return false;
  if (getpid() != forking_process.load(std::memory_order_relaxed)) {
    Child();
    return false;
  }
  fork_state.is_outside = false;
  return true;
}

void ReentryGuard::LeaveDuringFork() {
  Fence();
  if (fork_state.forks == 0) return Leave();  // this thread has forked again, and this is the child
  fork_state.is_outside = true;
}

}  // namespace hbmprof::internal
