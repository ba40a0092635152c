// Starts with descriptor 1 closed, and prints text. The text must not be written into a file that a library has
// opened.
#include <cerrno>

#include "tests/hostile/hostile.h"

int main() {
  Allocate(1000);
  for (int i = 0; i < 100; ++i) {
    if (write(1, "this is nobody's file\n", 22) >= 0 || errno != EBADF) return 1;
    Churn(20);
    usleep(1000);
  }
  std::puts("nor this");
  return std::fflush(stdout) == EOF ? 9 : 2;
}
