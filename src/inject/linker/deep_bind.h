// A library that is loaded with RTLD_DEEPBIND looks for a function in its own dependencies first. So it finds the C
// library's dlsym and the driver's functions, not the preloaded ones. The functions here change its references after it
// is loaded.
#ifndef HBMPROF_SRC_INJECT_LINKER_DEEP_BIND_H_
#define HBMPROF_SRC_INJECT_LINKER_DEEP_BIND_H_

#include "src/backends/calls/driver.h"

namespace hbmprof::internal {

// Hides the wrappers of the functions that the drivers of the process lack from the dynamic linker (dynamic_linker.cc).
// Returns whether the process has loaded `driver`.
bool HideLackingFunctions(const Driver* driver = nullptr);

// Returns whether this library was loaded after the program's start. Then nothing is recorded before hbmprof_attach.
bool WasLoadedLate();

// Like dlopen, for a `file` that is a path and for `flags` with RTLD_DEEPBIND. Then changes the references of the
// library and of all its dependencies: references to the C library's dlsym and to the driver's functions become
// references to this library's dlsym and wrappers. Thread-safe.
void* OpenDeepBound(const char* file, int flags);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_LINKER_DEEP_BIND_H_
