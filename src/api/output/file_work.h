// Work with files that threads of the program need. A thread of hbmprof does it, because a disk can take very long, and
// the program must not wait for it.
#ifndef HBMPROF_SRC_API_OUTPUT_FILE_WORK_H_
#define HBMPROF_SRC_API_OUTPUT_FILE_WORK_H_

#include <functional>

#include "absl/status/status.h"

namespace hbmprof::internal {

// Calls work() in the thread for files, after the work of all earlier calls, and waits for its end for a quarter of a
// second at most. While no work has ended for two seconds, it does not wait at all. Work that is not done when the
// process ends delays the end, within the limit of exit_writer.h.
//
// Errors: kDeadlineExceeded (`work` is called, or will be, and has not ended), kResourceExhausted (`work` is never
// called: no thread can be started, or too much other work waits). The thread ends when no work is left. In a forked
// child that has no exit writer, a new thread could wait for ever (forked_child.h), so the calling thread calls work().
//
// Device probes in `work` have the DriverContext of the calling thread, and the time limit of ProbeLimit.
//
// `work` does not throw. It prints its own errors, takes no lock that the caller holds, and uses no data of the calling
// thread. Any thread may call this function, except from `work`. Throws std::bad_alloc, before `work` is called.
absl::Status DoFileWork(std::function<void()> work);

// Waits until the work of all earlier calls in this process has ended, for five seconds at most.
void FinishFileWork();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_FILE_WORK_H_
