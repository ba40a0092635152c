// Starts itself with every combination of the standard descriptors closed. They must stay closed for as long as it
// runs.
#include <cstdlib>

#include "tests/hostile/hostile.h"

int main(int argc, char** argv) {
  if (argc == 2) {
    const int closed = std::atoi(argv[1]);
    Allocate(1000);
    for (int round = 0; round < 200; ++round) {
      Churn(10);
      for (int descriptor = 0; descriptor < 3; ++descriptor) {
        if ((closed & 1 << descriptor) != 0 && fcntl(descriptor, F_GETFD) >= 0) _exit(97);
      }
      usleep(200);
    }
    return 10 + closed;
  }
  for (int closed = 1; closed < 8; ++closed) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int descriptor = 0; descriptor < 3; ++descriptor) {
        if ((closed & 1 << descriptor) != 0) close(descriptor);
      }
      const char number[] = {static_cast<char>('0' + closed), '\0'};
      execl("/proc/self/exe", "child", number, nullptr);
      _exit(98);
    }
    WaitFor(child, (10 + closed) << 8);
  }
  std::puts("done");
}
