// A library whose constructor runs before those of the preloaded library. An allocation in it fails.
#include "tests/inject/driver_program.h"

[[gnu::constructor]] static void Early() {
  using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
  driver_program::UseDevice(0);
  CUdeviceptr ptr = 0;
  CHECK_THAT(cuMemAlloc_v2(&ptr, size_t{1} << 40) == kErrorOutOfMemory);
}

// The program calls it, so that it needs the library.
[[gnu::visibility("default")]] int EarlyNumber() { return 3; }
