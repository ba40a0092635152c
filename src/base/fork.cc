#include "src/base/fork.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {

__thread ForkState fork_state __attribute__((tls_model("initial-exec"))) = {};

namespace {

std::atomic<bool> is_gate_closed{false};
std::atomic<uint32_t> threads_inside{0};  // threads that hold or wait for a Mutex
const ForkLocks* fork_locks = nullptr;
std::atomic<pid_t> forking_process{0};

constexpr int64_t kMillisecond = 1'000'000;
// How long a fork waits for other threads to leave their sections, which take microseconds. The shorter time is for a
// forking thread that is inside the tracker: the other threads may wait for a spin lock that it holds.
constexpr int64_t kMaxWait = 5000 * kMillisecond;
constexpr int64_t kMaxWaitInside = 50 * kMillisecond;

int64_t Nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 * kMillisecond + now.tv_nsec;
}

// Waits until `condition()` is true. Returns false if that takes longer than `max_wait` nanoseconds.
template <typename Condition>
bool WaitUntil(const Condition& condition, int64_t max_wait) {
  const int64_t end = Nanoseconds() + max_wait;
  for (Backoff backoff; !condition(); backoff.Wait()) {
    if (Nanoseconds() > end) return false;
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
  if (thread_state.inside) {
    fork_state.holds_gate = CloseGate(kMaxWaitInside);
    return;
  }
  thread_state.inside = true;
  Fence();
  fork_state.holds_gate = CloseGate(kMaxWait);
  if (!fork_state.holds_gate) {
    Fence();
    thread_state.inside = false;
    return;
  }
  if (fork_locks != nullptr) fork_locks->lock();
  forking_process.store(getpid(), std::memory_order_relaxed);
  Fence();
  fork_state.holds_all = true;
}

void Parent() {
  if (fork_state.forks == 0 || --fork_state.forks != 0) return;
  const bool held_all = fork_state.holds_all;
  fork_state.holds_all = false;
  Fence();
  if (held_all && fork_locks != nullptr) fork_locks->unlock();
  if (fork_state.holds_gate) {
    fork_state.holds_gate = false;
    is_gate_closed.store(false, std::memory_order_release);
  }
  Fence();
  if (held_all) thread_state.inside = false;
}

void Child() {
  if (fork_state.forks == 0) return;  // ForkPause::Begin has done this
  const bool held_all = fork_state.holds_all;
  fork_state = {fork_state.mutexes, 0, false, false};
  threads_inside.store(OwnSections(), std::memory_order_relaxed);
  Fence();
  if (fork_locks != nullptr) {
    if (held_all) {
      fork_locks->reset_in_child();
    } else {
      fork_locks->give_up_in_child();
    }
  }
  is_gate_closed.store(false, std::memory_order_release);
  Fence();
  if (held_all) thread_state.inside = false;
}

// Runs before there are threads, so that no thread is inside.
[[gnu::constructor]] void GuardForks() { pthread_atfork(&Prepare, &Parent, &Child); }

}  // namespace

void HandleForks(const ForkLocks* locks) { fork_locks = locks; }

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

bool ForkPause::Begin() {
  if (getpid() != forking_process.load(std::memory_order_relaxed)) {
    // In the child, before this library's handler has run.
    Child();
    return false;
  }
  fork_state.holds_all = false;
  Fence();
  if (fork_locks != nullptr) fork_locks->unlock();
  Fence();
  thread_state.inside = false;
  return true;
}

void ForkPause::End() {
  thread_state.inside = true;
  Fence();
  if (fork_locks != nullptr) fork_locks->lock();
  Fence();
  fork_state.holds_all = true;
}

}  // namespace hbmprof::internal
