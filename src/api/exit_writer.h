// Profiles of processes that end without running their exit handlers: by a signal, or by _exit.
//
// The code that writes a profile may not run in a signal handler. So a thread of hbmprof waits for a request and then
// writes the profile. The thread that ends the process makes the request and waits until the profile is written, for
// five seconds at most. Then it continues as it does without hbmprof.
#ifndef HBMPROF_SRC_API_EXIT_WRITER_H_
#define HBMPROF_SRC_API_EXIT_WRITER_H_

namespace hbmprof::internal {

// Starts the thread, which calls `write` once at most. Sets a handler for each of these signals that has its default
// action now: SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL. The handler waits
// until the thread has written the profile, and then restores the default action. So the process ends by the same
// signal, and a core dump shows the same instruction. A handler that the program sets later replaces this handler.
// quick_exit also writes the profile. `write` must not throw.
//
// Call it when Profiler::Default() has an output. A second call does nothing and returns true. Returns false if the
// thread could not be started; then no handler is set.
bool StartExitWriter(void (*write)());

// Requests the profile from the thread, and waits until it is written, for five seconds at most. Does nothing if there
// is no thread, and in the child of a fork or vfork. Async-signal-safe. Does not change errno.
void WriteByExitWriter();

// Called before _exit. Calls WriteByExitWriter; in the child of a fork, which has no such thread, calls `write` of
// StartExitWriter instead.
void WriteBeforeImmediateExit();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_EXIT_WRITER_H_
