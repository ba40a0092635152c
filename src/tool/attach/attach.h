// Loads the injected library into a running process: finds a thread that may load it now, and borrows it.
#ifndef HBMPROF_SRC_TOOL_ATTACH_ATTACH_H_
#define HBMPROF_SRC_TOOL_ATTACH_ATTACH_H_

#include "src/tool/attach/borrowed_thread.h"

namespace hbmprof::tool {

// Returns kFailedPrecondition with a message for the user if the process cannot be attached to. Stops nothing.
absl::Status CheckCanAttach(const Target& target);

// Returns kFailedPrecondition with a message for the user if system calls that the process does not make itself can end
// it: if it, or its service, has set up filters of system calls (seccomp). The filter of a container's runtime does not
// count, because it gives errors. Stops nothing.
absl::Status CheckSystemCalls(const Target& target);

bool HasInjectedLibrary(const Target& target);

// The version in the name of the driver's file, as in libcuda.so.550.163.01; "" if it has none.
std::string DriverVersion(const Target& target);

// Returns a stopped thread that holds no lock of the C library, the dynamic linker or an allocator: it waits in a
// function of the C library (poll, pthread_cond_wait, ...) that its program has called, so its call stack has no other
// function of these. Such a thread can load a library: it can only wait for other threads, which run.
//
// Each thread that could be one is stopped while its stack is unwound: for some milliseconds while the files' unwind
// tables are read, then for less. The functions are looked up while it runs. Then it is stopped again; it is taken if
// it still waits, with the same stack.
//
// Errors: kUnavailable (no such thread within `seconds`; the message says what the threads do; or the process has
// ended, or runs another program).
absl::StatusOr<StoppedThread> StopSafeThread(const Target& target, double seconds);

// Makes the process load the file `library`, unless it has loaded the injected library, and call
// hbmprof_attach(options) of that, whose code it returns. REQUIRES: CheckCanAttach(target). Errors: those of
// StopSafeThread and LoadInThread.
absl::StatusOr<int> LoadLibrary(const Target& target, const std::string& library, const std::string& options);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ATTACH_ATTACH_H_
