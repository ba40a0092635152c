// How a program that links hbmprof::cuda finds the driver's calls: as any program does.
#include <dlfcn.h>

#include "src/backends/cuda/driver_queries.h"

namespace hbmprof::internal {

void* FindDriverSymbol(void* library, const char* name) { return dlsym(library, name); }

}  // namespace hbmprof::internal
