// Forks of a process that uses this library.
//
// The child has only the thread that forked. Other threads of the parent may have been inside any function of this
// library. Their events are not delayed by a fork. What this means for the child:
// - Every SpinLock is free (spin_lock.h).
// - The tables of events (live table, ledger, pools, event log) and the site caches are made anew. Their memory of the
//   parent is returned to the kernel; only pointers and sizes are read, which are right at every instant.
// - Tables that only grow are kept: sites, stacks, paths, names, tags. Whoever writes to such a table stores the data
//   first, then takes the number or the space, and then makes it visible. So the table is complete at every instant,
//   except that an entry may be missing, or a number may be used by nothing.
// - Data under a Mutex (mutex.h) are complete, because a fork waits until no other thread holds a Mutex. Each thread
//   passes a gate before it takes its first Mutex, and a fork closes the gate. This needs no order among mutexes; a
//   thread that holds one may take more. No function that records takes a Mutex, so a signal handler that interrupted
//   malloc does not wait at the gate.
//
// The program's own fork handlers (pthread_atfork) and signal handlers may record during a fork. In the child they may
// do so before this library's own handler has run: until then the forking thread counts as inside the tracker, and the
// first ReentryGuard does what the handler would do.
//
// If the forking thread is inside the tracker (in a signal handler that interrupted it) or holds a Mutex, or if other
// threads hold one for too long (five seconds), the child records nothing and keeps the tables, because the interrupted
// function may continue in the child.
//
// Not in this file: the dynamic linker's lock (forked_child.h). _Fork, vfork and clone run no fork handlers.
#ifndef HBMPROF_SRC_BASE_FORK_H_
#define HBMPROF_SRC_BASE_FORK_H_

#include <cstdint>

namespace hbmprof::internal {

// Sets the function that is called in each forked child, on its only thread. `is_usable`: the tables can be made anew
// and used; otherwise nothing may be recorded. It must not call malloc, whose own fork handler may run later. To be
// called once, before there are threads.
void HandleForks(void (*in_child)(bool is_usable));

// From now on a fork does not wait for other threads, and its child records nothing. For a library that was loaded
// after the program's start: its handler runs before those of the program. If it closed the gate, a thread could wait
// at the gate while it holds a lock that a handler of the program waits for.
void ForkWithoutGate();

// State of one thread. Plain data in the static TLS block.
struct ForkState {
  uint32_t mutexes;  // Mutexes that it holds or waits for
  uint32_t forks;    // nested forks in progress
  bool holds_gate;   // it has closed the gate
  bool is_outside;   // it forks and is in no function of this library, although ThreadState::inside is set
};
extern __thread ForkState fork_state __attribute__((tls_model("initial-exec")));

// To be called before and after a section under one or more Mutexes.
void EnterMutexSection();
void LeaveMutexSection();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FORK_H_
