// What keeps a fork from leaving the library's locks held for ever in the child.
//
// A child has the one thread that forked. A lock that another thread held would never be released there, and what it
// protects would stay half changed. So while a process forks, no other thread is inside a section under a lock of ours:
// - Mutex (mutex.h): a thread passes a gate before its first one. A fork closes the gate and waits until no other
//   thread holds a Mutex. This needs no order among them; a thread that holds one may take more.
// - SpinLock: passes no gate. The forking thread takes all of the tables' (ForkLocks), after the gate has been closed.
//
// The program's own handlers of fork (pthread_atfork) and signal handlers may run between. They run on the thread that
// holds everything, so their events can be recorded: ForkPause releases the spin locks for so long.
//
// Where the forking thread is inside the tracker (a signal handler that interrupted it, or a probe), or other threads
// hold a Mutex for too long, the spin locks are not taken. Such a child records nothing (ForkLocks::give_up_in_child).
//
// Not here: the dynamic linker's lock (forked_child.h). _fork, vfork and clone run no handlers.
#ifndef HBMPROF_SRC_BASE_FORK_H_
#define HBMPROF_SRC_BASE_FORK_H_

#include <cstdint>

namespace hbmprof::internal {

// What the owner of the tables does with all their spin locks, always on the thread that forks.
struct ForkLocks {
  void (*lock)();
  void (*unlock)();
  // In the child, with the locks held: empties the tables and releases the locks.
  void (*reset_in_child)();
  // In the child, with no lock taken before the fork: turns recording off and releases every lock, whoever held it.
  void (*give_up_in_child)();
};
// Once, before there are threads. `locks` must live for ever.
void HandleForks(const ForkLocks* locks);

// Of the calling thread. Plain data in the static TLS block.
struct ForkState {
  uint32_t mutexes;  // Mutexes that it holds or waits for
  uint32_t forks;    // forks in progress, one inside the other
  bool holds_gate;   // it has closed the gate
  bool holds_all;    // it holds all spin locks for a fork, and is in no function of the library's
};
extern __thread ForkState fork_state __attribute__((tls_model("initial-exec")));

// Around a section under one or more Mutexes.
void EnterMutexSection();
void LeaveMutexSection();

// While it lives, the tables' spin locks are not held by a fork of this thread, so that the thread may use the tables.
// Elsewhere it does nothing. Comes before the ReentryGuard.
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
