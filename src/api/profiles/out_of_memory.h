// Preparations for ReportOutOfMemory (hbmprof/out_of_memory.h).
#ifndef HBMPROF_SRC_API_PROFILES_OUT_OF_MEMORY_H_
#define HBMPROF_SRC_API_PROFILES_OUT_OF_MEMORY_H_

#include <string>

#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Reserves the host memory that a report may need. Called when Profiler::Default() is made.
void ReserveForOutOfMemoryReports();

// Returns the name of a device of `profiler`; "" if no call has requested its number. Any thread may call it. Throws
// std::bad_alloc.
std::string DeviceName(Profiler& profiler, DeviceId device);

// Stores the bytes that each call stack of `snapshot` has in use. The next report shows the growth since then. Any
// thread may call it. If the host has no memory for it, the values of the previous profile are kept.
void RememberProfile(const Snapshot& snapshot) noexcept;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_PROFILES_OUT_OF_MEMORY_H_
