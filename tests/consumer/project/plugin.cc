// A plugin that records through its own copy of the library.
#include <hbmprof/hbmprof.h>

// Records `bytes` bytes at `ptr`, and returns the bytes in use of this copy.
extern "C" int64_t RecordInPlugin(void* ptr, size_t bytes) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::DeviceId device = profiler.Device("GPU:0");
  hbmprof::Attributes attributes;
  attributes.device = device;
  profiler.RecordAlloc(ptr, bytes, attributes);
  return profiler.Stats(device).bytes_in_use;
}
