// A program with a static runtime, which has the driver's functions in pointers of its own. It holds memory and leaks,
// from its start on. After a line feed it frees what it held.
#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "tests/support/check.h"
#include "tests/support/mini_runtime/mini_runtime.h"

using mini_runtime::CUdeviceptr;
using mini_runtime::kSuccess;

[[gnu::noinline]] CUdeviceptr LeakOneStep(size_t bytes) {
  CUdeviceptr ptr = 0;
  CHECK_THAT(mini_runtime::cudaMalloc(&ptr, bytes) == kSuccess);
  return ptr;
}

int main() {
  constexpr size_t kStep = 64 << 10;
  CHECK_THAT(mini_runtime::cudaSetDevice(0) == kSuccess);
  CUdeviceptr held = 0;
  CHECK_THAT(mini_runtime::cudaMalloc(&held, 64 << 20) == kSuccess);
  for (int i = 0; i < 4; ++i) LeakOneStep(kStep);
  std::printf("ready\n");
  std::fflush(stdout);
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  char byte = 0;
  while (poll(&input, 1, 20) == 0 || read(STDIN_FILENO, &byte, 1) == 1) {
    LeakOneStep(kStep);
    if (byte != '\n') continue;
    byte = 0;
    CHECK_THAT(mini_runtime::cudaFree(held) == kSuccess);
    std::printf("freed\n");
    std::fflush(stdout);
  }
  return 0;
}
