// The end of a process: return from main and exit, a signal, _exit, quick_exit, and exec, which replaces the program.
//
// The code that writes a profile may not run in a signal handler, and it may wait for a device or a disk that does not
// answer. So it runs in a thread of hbmprof. The thread of the program that ends the process waits until the profile is
// written: for five seconds, and for 30 seconds while the thread of hbmprof uses the processor, as on a loaded machine.
// Then it continues as it does without hbmprof.
#ifndef HBMPROF_SRC_API_OUTPUT_EXIT_WRITER_H_
#define HBMPROF_SRC_API_OUTPUT_EXIT_WRITER_H_

namespace hbmprof::internal {

// The end of this process.
struct ProcessEnd {
  bool is_exit;   // by return from main or exit
  void* context;  // the driver's context of the thread that ends the process; null: none
};

// What the end of this process calls. No function may throw.
struct EndFunctions {
  void (*write_at_end)(const ProcessEnd& end);  // called once at most
  void (*write_before_exec)();                  // the process continues if exec fails
  void (*write_and_continue)();                 // for a signal that does not end the process
  void (*thread_starts)();                      // the process gets the thread of WriteAtEveryEnd
};
// `functions` must stay valid, and must be set before the calls of the functions below.
void SetEndFunctions(const EndFunctions& functions);

// Called in write_at_end when the profile is written: what follows gets no more time than the present wait.
void ProfileIsWritten();

// Registers an exit handler that lets a thread call write_at_end. If that cannot be started, the thread that calls exit
// calls write_at_end, without a time limit. Only the first call has an effect. A process that is off (fork.h) calls
// none of the functions.
//
// With glibc before version 2.41, several threads can be in exit at once: each calls the next of the exit handlers, and
// the last one ends the process. So a thread that enters exit while write_at_end runs waits in this handler until it
// has returned, and one second longer, in which the first one ends the process. If write_at_end takes too long, the
// handler prints a message.
void WriteAtExit();

// Registers that exit handler again, if it is registered. It then runs before the exit handlers that were registered
// meanwhile, such as those of the CUDA driver. write_at_end is called only once.
void WriteBeforeOlderExitHandlers();

// Calls WriteAtExit. If DefaultOptions::output_on_signals is set, also starts the thread that ends other than exit
// need. Sets a handler for each of these signals that has its default action now: SIGTERM, SIGINT, SIGHUP, SIGQUIT,
// SIGXCPU, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL. The handler waits until the thread has written the profile, and
// then restores the default action. So the process ends by the same signal, and a core dump shows the same instruction.
// If a signal that was sent interrupts a function of this library, a probe or a wrapped call of the driver, the thread
// may hold a lock that the writing thread needs. So the handler returns, and the signal is sent again a little later. A
// handler that the program sets later replaces this handler; see HandleOwnSignal. quick_exit also writes the profile.
//
// The kernel never applies the default action of a sent signal to the first process of a container (process id 1). In
// that process the handler waits until the thread has called write_and_continue, and returns: the process continues,
// and the handler stays. A SIGABRT that a thread sends to itself is always taken for the end, because abort() sends it.
//
// A forked child gets such a thread at once, unless it is off (fork.h).
//
// Prints a message if the thread cannot be started; then no handler is set. Called when the process gets a file of
// which each end must know: a profile, a recording, or any file that takes long to write. Only the first call has an
// effect.
void WriteAtEveryEnd();

// Requests the profile from the thread, and waits until it is written, with these limits after the first end of this
// process has begun. Does nothing if this process has no such thread. Async-signal-safe. Does not change errno. Signal
// handlers, quick_exit and _exit call it.
void WriteByExitWriter();

// Called before the process or the thread sends this signal to itself. If WriteAtEveryEnd handles the signal, and it
// has its default action now, sets the handler again: programs that have handled a signal themselves often end so, as
// Python does after KeyboardInterrupt. Async-signal-safe. Does not change errno.
void HandleOwnSignal(int number);

// Called before exec. Does the same as WriteByExitWriter with write_before_exec; a later end of the process writes its
// own profile.
void WriteBeforeExec();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_EXIT_WRITER_H_
