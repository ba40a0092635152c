// The functions of the C library that end a process without its exit handlers, or replace its program: _exit, _Exit,
// execl, execle, execlp, execv, execve, execvp, execvpe. And kill and raise, by which a program sends a signal to
// itself (HandleOwnSignal).
//
// The replacements of this module write the profile (exit_writer.h) and then call the C library's function. A
// replacement of exec writes a profile only if the program file exists and may be executed, or is searched for in PATH,
// and only in a process that has the thread of the exit writer: a child that is forked in order to call exec writes
// none.
//
// The C library's own calls of these functions are not replaced: posix_spawn, system and popen write no profile.
#ifndef HBMPROF_SRC_API_OUTPUT_END_CALLS_H_
#define HBMPROF_SRC_API_OUTPUT_END_CALLS_H_

namespace hbmprof::internal {

// Finds the C library's functions, so that later calls of the replacements are async-signal-safe.
void FindRealEndCalls();

// Makes all objects that are loaded now call the replacements. Objects that are loaded later, or whose load is not
// complete (with glibc 2.35 or later), call the C library's functions. So does code that contains the address of such a
// function (a text relocation). Has no effect in a static program.
void ReplaceEndCalls();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_END_CALLS_H_
