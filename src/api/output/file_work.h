// Work with files that threads of the program need. A thread of hbmprof does it, because a disk can take very long, and
// the program must not wait for it.
#ifndef HBMPROF_SRC_API_OUTPUT_FILE_WORK_H_
#define HBMPROF_SRC_API_OUTPUT_FILE_WORK_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace hbmprof::internal {

// How long a thread of the program waits for files, in nanoseconds. A recording that begins later than the program goes
// on would lack events, so its start gets more time.
inline constexpr int64_t kMostWait = 250'000'000;
inline constexpr int64_t kMostWaitForStart = 5'000'000'000;

// Calls work() in the thread for files, after the work of all earlier calls, and waits for its end for `most_wait`
// nanoseconds at most. After a call that has waited in vain, no call waits until the work in progress has ended. Work
// that is not done when the process ends delays the end, within the limit of exit_writer.h.
//
// Errors: kDeadlineExceeded (`work` is called, or will be, and has not ended), kResourceExhausted (`work` is never
// called: no thread can be started, or too much other work waits). The thread ends when no work is left.
//
// Device probes in `work` have the driver's context of the calling thread, and the time limit of ProbeLimit.
//
// `work` does not throw. It prints its own errors, takes no lock that the caller holds, and uses no data of the calling
// thread. Any thread may call this function, except from `work`. Throws std::bad_alloc, before `work` is called.
absl::Status DoFileWork(std::function<void()> work, int64_t most_wait = kMostWait);

// Waits until the work of all earlier calls in this process has ended, for five seconds at most.
void FinishFileWork();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUTPUT_FILE_WORK_H_
