// Cannot write any file (RLIMIT_FSIZE). The signal that the system sends for this must not reach the program.
#include <sys/resource.h>

#include <csignal>

#include "tests/hostile/hostile.h"

int main() {
  Allocate(1000);
  std::puts("done");
  std::fflush(stdout);
  const rlimit limit = {0, 0};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  Churn(100);
  Linger();
}
