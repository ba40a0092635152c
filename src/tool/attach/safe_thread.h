// Finds a thread of another process that may load a library now.
#ifndef HBMPROF_SRC_TOOL_ATTACH_SAFE_THREAD_H_
#define HBMPROF_SRC_TOOL_ATTACH_SAFE_THREAD_H_

#include "absl/status/statusor.h"
#include "src/tool/attach/borrowed_thread.h"
#include "src/tool/attach/target.h"

namespace hbmprof::tool {

// Returns a stopped thread that holds no lock of the C library, the dynamic linker or an allocator: it waits in a
// function of the C library (poll, pthread_cond_wait, ...) that its program has called, so its call stack has no other
// function of these. Such a thread can load a library: it can only wait for other threads, which run.
//
// Each thread that could be one is stopped for some microseconds, to copy its stack. The copy is unwound while the
// thread runs. Then the thread is stopped again; it is taken if it still waits, with the same stack.
//
// Errors: kUnavailable (no such thread within `seconds`; the message says what the threads do; or the process has
// ended, or runs another program).
absl::StatusOr<StoppedThread> StopSafeThread(const Target& target, double seconds);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ATTACH_SAFE_THREAD_H_
