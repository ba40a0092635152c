// Ensures that after a fork the locks of this library are free in the child, and that the data they protect are
// consistent.
//
// The child has only the thread that forked. A lock that another thread held would never be released there, and its
// data would stay in an intermediate state. So during a fork no other thread is inside a section under a lock of this
// library:
// - Mutex (mutex.h): a thread passes a gate before it takes its first Mutex. A fork closes the gate and waits until no
//   other thread holds a Mutex. This needs no order among mutexes; a thread that holds one may take more.
// - SpinLock: there is no gate. The forking thread takes the spin locks of all tables (ForkLocks) after the gate is
//   closed.
//
// The program's own fork handlers (pthread_atfork) and signal handlers may run while the locks are held. They run on
// the thread that holds all locks. Their events can be recorded, because ForkPause releases the spin locks during such
// an event.
//
// The spin locks are not taken if the forking thread is inside the tracker (in a signal handler that interrupted it, or
// in a probe), or if other threads hold a Mutex for too long. The child then records nothing
// (ForkLocks::give_up_in_child).
//
// Not in this file: the dynamic linker's lock (forked_child.h). _Fork, vfork and clone run no fork handlers, so these
// locks are not taken for them.
#ifndef HBMPROF_SRC_BASE_FORK_H_
#define HBMPROF_SRC_BASE_FORK_H_

#include <cstdint>

namespace hbmprof::internal {

// Operations on the spin locks of all tables. They are called on the thread that forks.
struct ForkLocks {
  void (*lock)();
  void (*unlock)();
  // In the child, with the locks held: empties the tables and releases the locks.
  void (*reset_in_child)();
  // In the child, if `lock` was not called before the fork: turns recording off and releases every lock, even if
  // another thread held it.
  void (*give_up_in_child)();
};
// Sets the operations. To be called once, before there are threads. `*locks` must never be destroyed.
void HandleForks(const ForkLocks* locks);

// State of one thread. Plain data in the static TLS block.
struct ForkState {
  uint32_t mutexes;  // Mutexes that it holds or waits for
  uint32_t forks;    // nested forks in progress
  bool holds_gate;   // it has closed the gate
  bool holds_all;    // it holds all spin locks for a fork, and is in no function of this library
};
extern __thread ForkState fork_state __attribute__((tls_model("initial-exec")));

// To be called before and after a section under one or more Mutexes.
void EnterMutexSection();
void LeaveMutexSection();

// If this thread holds the spin locks of the tables for a fork, they are released during the life of this object, so
// that the thread may use the tables. Otherwise it has no effect. Must be constructed before the ReentryGuard.
class ForkPause {
 public:
  ForkPause() : is_paused_(fork_state.holds_all && Begin()) {}
  ~ForkPause() {
    if (is_paused_) End();
  }
  ForkPause(const ForkPause&) = delete;
  ForkPause& operator=(const ForkPause&) = delete;

 private:
  static bool Begin();
  static void End();

  const bool is_paused_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FORK_H_
