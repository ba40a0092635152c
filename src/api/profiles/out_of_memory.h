// What ReportOutOfMemory (hbmprof/out_of_memory.h) compares with.
#ifndef HBMPROF_SRC_API_PROFILES_OUT_OF_MEMORY_H_
#define HBMPROF_SRC_API_PROFILES_OUT_OF_MEMORY_H_

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Stores the bytes that each call stack of `snapshot` has in use. The next report shows the growth since then. Any
// thread may call it. If the host has no memory for it, the values of the previous profile are kept.
void RememberProfile(const Snapshot& snapshot) noexcept;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_API_PROFILES_OUT_OF_MEMORY_H_
