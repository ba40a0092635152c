// Profiles that are written at intervals, when a device is nearly full, when its peak has grown, or at a signal.
#ifndef HBMPROF_SRC_API_CONTROL_DUMP_TRIGGERS_H_
#define HBMPROF_SRC_API_CONTROL_DUMP_TRIGGERS_H_

#include "hbmprof/options.h"

namespace hbmprof::internal {

// Starts the thread that writes the profiles of output_interval and serves the triggers of `options`
// (dump_in_use_percent, dump_peak_growth, dump_signal), if at least one is on, and sets the handler of the signal. The
// thread has all signals blocked and ends with the process; a forked child has no such thread. For each profile of a
// trigger it prints a line. Prints a message if there is an interval but no output, if there is a trigger but no
// dump_output, if the program uses the signal, or if the thread cannot be started. Call it after Profiler::Default()
// was made, which must not have joined the injected library's profiler; a second call does nothing. Throws
// std::bad_alloc.
void StartDumpTriggers(const DefaultOptions& options);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_CONTROL_DUMP_TRIGGERS_H_
