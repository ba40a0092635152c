// Profiles of processes that end without running their exit handlers: by a signal, by _exit, or because exec replaces
// their program.
//
// The code that writes a profile may not run in a signal handler. So a thread of hbmprof waits for a request and then
// writes the profile. The thread that ends the process makes the request and waits until the profile is written, for
// five seconds at most. Then it continues as it does without hbmprof.
#ifndef HBMPROF_SRC_API_EXIT_WRITER_H_
#define HBMPROF_SRC_API_EXIT_WRITER_H_

namespace hbmprof::internal {

struct ExitWriterOptions {
  void (*write_at_end)() = nullptr;        // called once at most; must not throw
  void (*write_before_exec)() = nullptr;   // must not throw; the process continues if exec fails
  void (*write_and_continue)() = nullptr;  // must not throw; for a signal that does not end the process
  // Whether each forked child gets such a thread at once. If not: see StartExitWriterInChild.
  bool in_children = false;
};

// Starts the thread. Sets a handler for each of these signals that has its default action now: SIGTERM, SIGINT, SIGHUP,
// SIGQUIT, SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL. The handler waits until the thread has written the
// profile, and then restores the default action. So the process ends by the same signal, and a core dump shows the same
// instruction. If a signal that was sent interrupts a function of this library, this function may hold a lock that the
// thread needs. So the handler returns, and the signal is sent again a little later. A handler that the program sets
// later replaces this handler. quick_exit also writes the profile.
//
// The kernel never applies the default action of a sent signal to the first process of a container (process id 1). In
// that process the handler waits until the thread has called write_and_continue, and returns: the process continues,
// and the handler stays. A SIGABRT that a thread sends to itself is always taken for the end, because abort() sends it.
//
// Call it when Profiler::Default() has an output or a recording. A second call does nothing and returns true. Returns
// false if the thread could not be started; then no handler is set.
bool StartExitWriter(const ExitWriterOptions& options);

// Starts the thread in a forked child of a process that has the thread, if the child does not have it yet. Does nothing
// in other processes, so it can be called at each event. A child without the thread writes no profile. Does not change
// errno.
void StartExitWriterInChild();

// Calls StartExitWriterInChild in this process, and in each child that is forked from now on. It is needed if the
// program itself records events.
void StartExitWriterInAllChildren();

// Requests the profile from the thread, and waits until it is written, for five seconds at most. Does nothing if this
// process has no such thread. Async-signal-safe. Does not change errno. Signal handlers, quick_exit and _exit call it.
void WriteByExitWriter();

// Called before exec. Does the same with write_before_exec; a later end of the process writes its own profile.
void WriteBeforeExec();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_EXIT_WRITER_H_
