// Allocates through the parent's library, and writes the profile to argv[1].
#include <hbmprof/hbmprof.h>

void ParentAllocates(void* ptr, size_t bytes);

int main(int argc, char** argv) {
  static char buffer[64];
  if (argc != 2) return 2;
  ParentAllocates(buffer, sizeof(buffer));
  if (hbmprof::Profiler::Default().GetTrackerStats().live_records != 1) return 1;
  return hbmprof::save_device_memory_profile(argv[1]).ok() ? 0 : 1;
}
