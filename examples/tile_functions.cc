// tile_functions FILE: which function holds how much device memory?
//
// Two functions keep one array of 1000 x 10000 float32 (38.15 MB) each and free their temporaries. Then a profile
// is saved. `pprof -top -cum FILE` shows 38.15MB under func1 and 76.29MB under func2, which calls it.

#include <cstdio>
#include <memory>
#include <utility>

#include "examples/array.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/simulated_device.h"

[[gnu::noinline]] Array func1(const Array& x) { return Tile(x, 10) * 0.5f; }

[[gnu::noinline]] std::pair<Array, Array> func2(const Array& x) {
  Array y = func1(x);
  return {std::move(y), Tile(x, 10) + 1.0f};
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 2;
  }
  const absl::StatusOr<std::unique_ptr<hbmprof::SimulatedDevice>> device = hbmprof::SimulatedDevice::Create({});
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 1;
  }
  hbmprof::TrackingAllocator allocator(**device);

  const Array x = RandomNormal(allocator, /*seed=*/42, 1000, 1000);
  const std::pair<Array, Array> kept = func2(x);

  const absl::Status saved = hbmprof::save_device_memory_profile(argv[1]);
  if (!saved.ok()) {
    std::fprintf(stderr, "%s\n", saved.ToString().c_str());
    return 1;
  }
  return 0;
}
