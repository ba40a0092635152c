// Settings of ReportOutOfMemory (hbmprof/out_of_memory.h) for the process, and what it compares with.
#ifndef HBMPROF_SRC_API_OUT_OF_MEMORY_H_
#define HBMPROF_SRC_API_OUT_OF_MEMORY_H_

#include "hbmprof/options.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Applies oom_report and oom_output of `options`, and reserves the host memory that a report may need. For
// Profiler::Default(), once. Throws std::bad_alloc.
void PrepareOutOfMemoryReports(const Options& options);

// Keeps what each call stack of `snapshot` holds, for the growth that the next report shows. Any thread. Keeps nothing
// if the host has no memory for it.
void RememberProfile(const Snapshot& snapshot) noexcept;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUT_OF_MEMORY_H_
