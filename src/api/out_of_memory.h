// What ReportOutOfMemory (hbmprof/out_of_memory.h) needs beforehand.
#ifndef HBMPROF_SRC_API_OUT_OF_MEMORY_H_
#define HBMPROF_SRC_API_OUT_OF_MEMORY_H_

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Reserves the host memory that a report may need. Called when Profiler::Default() is made.
void ReserveForOutOfMemoryReports();

// Keeps what each call stack of `snapshot` holds, for the growth that the next report shows. Any thread. Keeps nothing
// if the host has no memory for it.
void RememberProfile(const Snapshot& snapshot) noexcept;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_OUT_OF_MEMORY_H_
