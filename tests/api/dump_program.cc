// A program that holds as many mebibytes of a simulated device of 64 MiB as each line of its standard input says, and
// prints "held" for each line. Ends at the end of its standard input. With DUMP_PROGRAM_HANGS=1, the disk never answers
// the first thread that has written a file; the program then prints "hangs".
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "hbmprof/hbmprof.h"
#include "hbmprof/simulated_device.h"

namespace {
std::atomic<bool> hangs{false};
}

// Takes the place of the C library's function.
extern "C" int fsync(int fd) {
  if (!hangs.exchange(false)) return static_cast<int>(syscall(SYS_fsync, fd));
  std::puts("hangs");
  std::fflush(stdout);
  while (true) pause();
}

int main() {
  hangs = std::getenv("DUMP_PROGRAM_HANGS") != nullptr;
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
