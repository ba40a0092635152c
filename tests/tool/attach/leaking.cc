// A program on the fake driver that holds memory and leaks, from its start on. After "free" it frees what it held.
#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "tests/inject/driver_calls.h"
#include "tests/inject/driver_program.h"

[[gnu::noinline]] void LeakOneStep() {
  driver_program::Allocate(64 << 10);
  asm volatile("" ::: "memory");  // no tail call
}

int main() {
  driver_program::UseDevice(0);
  const auto held = driver_program::Allocate(64 << 20);
  for (int i = 0; i < 4; ++i) LeakOneStep();
  std::printf("ready\n");
  std::fflush(stdout);
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  char byte = 0;
  while (poll(&input, 1, 20) == 0 || read(STDIN_FILENO, &byte, 1) == 1) {
    LeakOneStep();
    if (byte != '\n') continue;
    byte = 0;
    CHECK_THAT(hbmprof::internal::cuda_driver::cuMemFree_v2(held) == hbmprof::internal::cuda_driver::kSuccess);
    std::printf("freed\n");
    std::fflush(stdout);
  }
  return 0;
}
