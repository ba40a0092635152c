// Profiles of processes that end without running their exit handlers: by a signal, or by _exit.
//
// What writes a profile may not run in a signal handler. So a thread waits for such an end and writes it; whoever ends
// the process waits for that thread, five seconds at most, and then goes on as without hbmprof.
#ifndef HBMPROF_SRC_API_EXIT_WRITER_H_
#define HBMPROF_SRC_API_EXIT_WRITER_H_

namespace hbmprof::internal {

// Starts the thread, which calls `write` once at most. Sets a handler for each signal that ends a process by default
// (SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL) and has its default action now.
// The handler has the profile written and then lets the default action happen: the process ends by the same signal,
// with a core dump of the same instruction. A program that sets its own handler later replaces this one. Has quick_exit
// write the profile too. `write` must not throw.
//
// To be called when Profiler::Default() has an output; a second call does nothing. Returns false if no thread could be
// started; then nothing is set.
bool StartExitWriter(void (*write)());

// Has the thread write the profile, and waits until it has, five seconds at most. Does nothing without the thread, and
// in the child of a fork or vfork. Async-signal-safe; keeps errno.
void WriteByExitWriter();

// For _exit: WriteByExitWriter; in the child of a fork, which has no such thread, calls `write`.
void WriteBeforeImmediateExit();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_EXIT_WRITER_H_
