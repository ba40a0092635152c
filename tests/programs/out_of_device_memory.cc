// out_of_device_memory FILE: fills a device until an allocation fails, then writes the profile to FILE and prints the
// bytes that were allocated.

#include <string>

#include "hbmprof/simulated_device.h"
#include "tests/programs/program.h"

int main(int argc, char** argv) {
  LimitTime();
  if (argc < 2) return 2;
  hbmprof::SimulatedDevice::Options options;
  options.capacity = size_t{8} << 20;
  auto device = hbmprof::SimulatedDevice::Create(options);
  CHECK_THAT(device.ok());
  hbmprof::TrackingAllocator allocator(**device, "cache");
  int64_t bytes = 0;
  for (size_t size = 1000;; size += 1000) {
    const absl::StatusOr<void*> buffer = allocator.Allocate(size);
    if (!buffer.ok()) {
      CHECK_THAT(buffer.status().code() == absl::StatusCode::kResourceExhausted);
      break;
    }
    bytes += static_cast<int64_t>(size);
  }
  CHECK_THAT(hbmprof::Profiler::Default().Stats(allocator.device()).bytes_in_use == bytes);
  CHECK_THAT(hbmprof::save_device_memory_profile(argv[1]).ok());
  // Dumping allocated and freed no device memory.
  CHECK_THAT(!allocator.Allocate(size_t{4} << 20).ok());
  CHECK_THAT(hbmprof::Profiler::Default().Stats(allocator.device()).bytes_in_use == bytes);
  std::printf("%lld\n", static_cast<long long>(bytes));
}
