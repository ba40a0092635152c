#include "src/base/fork.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {

__thread ForkState fork_state __attribute__((tls_model("initial-exec"))) = {};

namespace {

std::atomic<bool> is_gate_closed{false};
std::atomic<uint32_t> threads_inside{0};  // that hold or wait for a Mutex
const ForkLocks* fork_locks = nullptr;
std::atomic<pid_t> forking_process{0};

// Waits until `holds()`; false if that takes too long.
template <typename Condition>
bool WaitUntil(const Condition& holds) {
  timespec start;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (Backoff backoff; !holds(); backoff.Wait()) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec - start.tv_sec > kForkPatienceSeconds) return false;
  }
  return true;
}

uint32_t OwnSections() { return fork_state.mutexes != 0 ? 1 : 0; }

// Keeps the compiler from moving what a signal handler must see in order.
void Fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

void Prepare() {
  if (fork_state.forks++ != 0) return;  // inside another fork of this thread, which has or has not taken the locks
  if (thread_state.inside) return;
  thread_state.inside = true;
  Fence();
  bool is_guarded = WaitUntil([] { return !is_gate_closed.exchange(true, std::memory_order_seq_cst); });
  if (is_guarded) {
    const uint32_t own = OwnSections();
    is_guarded = WaitUntil([own] { return threads_inside.load(std::memory_order_seq_cst) <= own; });
    if (!is_guarded) is_gate_closed.store(false, std::memory_order_release);
  }
  if (!is_guarded) {
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
  if (fork_state.forks == 0 || --fork_state.forks != 0 || !fork_state.holds_all) return;
  fork_state.holds_all = false;
  Fence();
  if (fork_locks != nullptr) fork_locks->unlock();
  is_gate_closed.store(false, std::memory_order_release);
  Fence();
  thread_state.inside = false;
}

void Child() {
  if (fork_state.forks == 0) return;  // an event has done this already
  fork_state.forks = 0;
  threads_inside.store(OwnSections(), std::memory_order_relaxed);
  if (fork_state.holds_all) {
    fork_state.holds_all = false;
    Fence();
    if (fork_locks != nullptr) fork_locks->reset_in_child();
    Fence();
    thread_state.inside = false;
  } else if (fork_locks != nullptr) {
    fork_locks->give_up_in_child();
  }
  is_gate_closed.store(false, std::memory_order_release);
}

// Before there are threads, so that none is inside.
[[gnu::constructor]] void GuardForks() { pthread_atfork(&Prepare, &Parent, &Child); }

}  // namespace

void HandleForks(const ForkLocks* locks) { fork_locks = locks; }

void EnterMutexSection() {
  if (fork_state.mutexes == 0) {
    for (;;) {
      threads_inside.fetch_add(1, std::memory_order_seq_cst);
      // The forking thread itself may come in: it is the only one then.
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
    // In the child, before its handler of ours.
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
