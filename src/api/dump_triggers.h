// Profiles that are written when a device is nearly full, when its peak has grown, or at a signal.
#ifndef HBMPROF_SRC_API_DUMP_TRIGGERS_H_
#define HBMPROF_SRC_API_DUMP_TRIGGERS_H_

#include "hbmprof/options.h"

namespace hbmprof::internal {

// Starts the thread that serves the triggers of `options` (dump_in_use_percent, dump_peak_growth, dump_signal), if at
// least one is on, and sets the handler of the signal. The thread has all signals blocked and ends with the process; a
// forked child has no triggers. For each profile it prints a line. Prints a message if there is a trigger but no
// dump_output, if the program uses the signal, or if the thread cannot be started. Call it after Profiler::Default()
// was made, which must not have joined the injected library's profiler; a second call does nothing. `options` must live
// until the process ends. Throws std::bad_alloc.
void StartDumpTriggers(const DefaultOptions& options);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_DUMP_TRIGGERS_H_
