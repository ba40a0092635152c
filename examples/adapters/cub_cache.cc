// A pool of CUB with recorded blocks: what a request has allocated, and what the pool keeps for later.
#include <hbmprof/adapters/cub.h>
#include <hbmprof/hbmprof.h>

#include <cstdio>
#include <vector>

using hbmprof::adapters::TrackingCachingAllocator;

// The functions of the program, by which the profile shows the memory.
[[gnu::noinline]] void* AllocateKeys(TrackingCachingAllocator& pool) {
  void* memory = nullptr;
  return pool.DeviceAllocate(&memory, 1 << 20) == cudaSuccess ? memory : nullptr;
}
[[gnu::noinline]] void* AllocateScratch(TrackingCachingAllocator& pool) {
  void* memory = nullptr;
  return pool.DeviceAllocate(&memory, 100 << 10) == cudaSuccess ? memory : nullptr;
}

int main(int argc, char** argv) {
  TrackingCachingAllocator pool;
  for (int request = 0; request < 3; ++request) {
    void* const keys = AllocateKeys(pool);  // kept
    void* const scratch = AllocateScratch(pool);
    if (keys == nullptr || scratch == nullptr || pool.DeviceFree(scratch) != cudaSuccess) return 1;
  }

  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const hbmprof::DeviceStats stats = profiler.Stats(profiler.Device("GPU:0"));
  std::printf("in use %lld B, idle in the pool %lld B\n", static_cast<long long>(stats.bytes_in_use),
              static_cast<long long>(stats.idle_bytes));
  return hbmprof::save_device_memory_profile(argc > 1 ? argv[1] : "cub.pb.gz").ok() ? 0 : 1;
}
