// The end of a process: return from main and exit, a signal, _exit, quick_exit, and exec, which replaces the program.
//
// The code that writes a profile may not run in a signal handler, and it may wait for a device or a disk that does not
// answer. So it runs in a thread of hbmprof. The thread of the program that ends the process waits until the profile is
// written, for five seconds at most. Then it continues as it does without hbmprof.
#ifndef HBMPROF_SRC_API_OUTPUT_EXIT_WRITER_H_
#define HBMPROF_SRC_API_OUTPUT_EXIT_WRITER_H_

namespace hbmprof::internal {

// The end of this process.
struct ProcessEnd {
  bool is_exit;   // by return from main or exit
  void* context;  // the driver's context of the thread that ends the process; null: none
};

// No function may throw.
struct ExitWriterOptions {
  void (*write_at_end)(const ProcessEnd& end) = nullptr;  // called once at most
  void (*write_before_exec)() = nullptr;                  // the process continues if exec fails
  void (*write_and_continue)() = nullptr;                 // for a signal that does not end the process
  // Whether exit starts a thread for write_at_end, if the process has none. If not, or if it cannot be started, the
  // thread that calls exit calls write_at_end, without a time limit.
  bool starts_thread_at_exit = true;
};

// Sets the functions, and registers an exit handler that calls write_at_end. Only the first call has an effect. A
// process that is off (fork.h) calls none of them.
//
// With glibc before version 2.41, several threads can be in exit at once: each takes the next exit handler from one
// list, and the last one frees the list and ends the process. So while write_at_end runs, each further thread in exit
// waits in this handler, and one second longer, so that the first one can end the process. If write_at_end takes too
// long, the handler prints a message.
void WriteAtExit(const ExitWriterOptions& options);

// Registers that exit handler again, if it is registered. It then runs before the exit handlers that were registered
// meanwhile, such as those of the CUDA driver. write_at_end is called only once.
void WriteBeforeOlderExitHandlers();

// Starts the thread that ends other than exit need. Sets a handler for each of these signals that has its default
// action now: SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL. The handler waits
// until the thread has written the profile, and then restores the default action. So the process ends by the same
// signal, and a core dump shows the same instruction. If a signal that was sent interrupts a function of this library,
// a probe or a wrapped call of the driver, the thread may hold a lock that the writing thread needs. So the handler
// returns, and the signal is sent again a little later. A handler that the program sets later replaces this handler;
// see HandleOwnSignal. quick_exit also writes the profile.
//
// The kernel never applies the default action of a sent signal to the first process of a container (process id 1). In
// that process the handler waits until the thread has called write_and_continue, and returns: the process continues,
// and the handler stays. A SIGABRT that a thread sends to itself is always taken for the end, because abort() sends it.
//
// A forked child gets such a thread at once, unless it is off (fork.h).
//
// A second call does nothing and returns true. Returns false if the thread could not be started; then no handler is
// set. REQUIRES: WriteAtExit was called.
bool StartExitWriter();
// Returns whether this process has the thread.
bool HasExitWriter();

// Requests the profile from the thread, and waits until it is written, for five seconds at most after the first end of
// this process has begun. Does nothing if this process has no such thread. Async-signal-safe. Does not change errno.
// Signal handlers, quick_exit and _exit call it.
void WriteByExitWriter();

// Called before the process or the thread sends this signal to itself. If StartExitWriter handles the signal, and it
// has its default action now, sets the handler again: programs that have handled a signal themselves often end so, as
// Python does after KeyboardInterrupt. Async-signal-safe. Does not change errno.
void HandleOwnSignal(int number);

// Called before exec. Does the same as WriteByExitWriter with write_before_exec; a later end of the process writes its
// own profile.
void WriteBeforeExec();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_EXIT_WRITER_H_
