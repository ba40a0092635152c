// Cannot start threads or processes (RLIMIT_NPROC) when it first allocates.
#include <sys/resource.h>

#include <thread>

#include "tests/hostile/hostile.h"

int main() {
  const rlimit limit = {1, 1};
  REQUIRE(setrlimit(RLIMIT_NPROC, &limit) == 0);
  BecomeNobody();
  Allocate(1000);
  Churn(100);
  REQUIRE(fork() < 0 || getpid() > 0);
  std::puts("done");
}
