// A library that records its allocations.
#include <hbmprof/hbmprof.h>

void ParentAllocates(void* ptr, size_t bytes) { hbmprof::Profiler::Default().RecordAlloc(ptr, bytes); }
