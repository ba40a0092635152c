// A plugin that contains a static copy of the library and records with it.

#include "hbmprof/hbmprof.h"

extern "C" [[gnu::visibility("default")]] void RecordInPlugin(uint64_t first, int count) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  for (int i = 0; i < count; ++i) {
    const hbmprof::ScopedTag tag("where", "plugin");
    profiler.RecordAlloc(hbmprof::BufferId((first + static_cast<uint64_t>(i)) << 8), 10);
    if (i > 0) profiler.RecordFree(hbmprof::BufferId((first + static_cast<uint64_t>(i)) << 8));
  }
}
