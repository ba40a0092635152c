// growing_list DIR: which function's memory grows?
//
// afunction allocates one array; then anotherfunc keeps nine arrays of growing size in a list and saves a profile
// after each: DIR/memory1.pb.gz to DIR/memory9.pb.gz. `pprof -top -diff_base DIR/memory1.pb.gz DIR/memory9.pb.gz` shows
// anotherfunc with the bytes that it added, and does not show afunction.

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "examples/array.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/simulated_device.h"

[[gnu::noinline]] Array afunction(hbmprof::DeviceAllocator& device) {
  return RandomNormal(device, /*seed=*/77, 1, 1000000);
}

[[gnu::noinline]] absl::Status anotherfunc(hbmprof::DeviceAllocator& device, const std::string& directory) {
  std::vector<Array> arrays;
  for (size_t i = 1; i <= 9; ++i) {
    arrays.push_back(RandomNormal(device, /*seed=*/42, i, 10000));
    const absl::Status saved =
        hbmprof::save_device_memory_profile(directory + "/memory" + std::to_string(i) + ".pb.gz");
    if (!saved.ok()) return saved;
  }
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIR\n", argv[0]);
    return 2;
  }
  const absl::StatusOr<std::unique_ptr<hbmprof::SimulatedDevice>> device = hbmprof::SimulatedDevice::Create({});
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 1;
  }
  hbmprof::TrackingAllocator allocator(**device);

  const Array fixed = afunction(allocator);
  const absl::Status saved = anotherfunc(allocator, argv[1]);
  if (!saved.ok()) {
    std::fprintf(stderr, "%s\n", saved.ToString().c_str());
    return 1;
  }
  return 0;
}
