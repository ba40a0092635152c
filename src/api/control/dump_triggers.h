// Profiles that are written at intervals, when a device is nearly full, or when its peak has grown.
#ifndef HBMPROF_SRC_API_CONTROL_DUMP_TRIGGERS_H_
#define HBMPROF_SRC_API_CONTROL_DUMP_TRIGGERS_H_

#include "hbmprof/options.h"

namespace hbmprof::internal {

// Starts the thread that calls write_output() at the interval output_interval, if `options` have an output, and serves
// the triggers dump_in_use_percent and dump_peak_growth, if at least one of these is on. The thread has all signals
// blocked and ends with the process; a forked child has no such thread. For each profile of a trigger it prints a line.
// Prints a message if the thread cannot be started. Called once, when Profiler::Default() was made, which must
// not use the injected library. `write_output` does not throw. Throws std::bad_alloc.
void StartDumpTriggers(const DefaultOptions& options, void (*write_output)());

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_CONTROL_DUMP_TRIGGERS_H_
