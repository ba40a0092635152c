// Starts itself with every combination of the standard descriptors closed. For as long as it runs, nothing can be read
// from them or written to them.
#include <cerrno>
#include <cstdlib>

#include "tests/hostile/hostile.h"

int main(int argc, char** argv) {
  if (argc == 2) {
    const int closed = std::atoi(argv[1]);
    Allocate(1000);
    for (int round = 0; round < 200; ++round) {
      Churn(10);
      for (int descriptor = 0; descriptor < 3; ++descriptor) {
        char byte = 'x';
        if ((closed & 1 << descriptor) == 0) continue;
        if (write(descriptor, &byte, 1) >= 0 || errno != EBADF) _exit(97);
        if (read(descriptor, &byte, 1) >= 0 || errno != EBADF) _exit(96);
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
