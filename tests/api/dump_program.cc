// A program that holds as many mebibytes of a simulated device of 64 MiB as each line of its standard input says, and
// prints "held" for each line. Ends at the end of its standard input.
#include <cstdio>
#include <memory>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "hbmprof/simulated_device.h"

int main() {
  hbmprof::SimulatedDevice::Options options;
  options.capacity = size_t{64} << 20;
  auto device = hbmprof::SimulatedDevice::Create(options);
  if (!device.ok()) return 1;
  hbmprof::TrackingAllocator allocator(**device);
  std::vector<void*> held;
  size_t wanted = 0;
  while (std::scanf("%zu", &wanted) == 1) {
    while (held.size() < wanted) {
      const auto block = allocator.Allocate(1 << 20);
      if (!block.ok()) return 1;
      held.push_back(*block);
    }
    while (held.size() > wanted) {
      if (!allocator.Free(held.back()).ok()) return 1;
      held.pop_back();
    }
    std::puts("held");
    std::fflush(stdout);
  }
  return 0;
}
