// Locks all future memory under a limit that allows little more memory (an unprivileged real-time program). hbmprof
// must continue without the memory that it cannot get, and the program's own allocations must not fail because of it.
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstring>

#include "tests/hostile/hostile.h"

int main() {
  const rlimit limit = {8 << 20, 8 << 20};
  REQUIRE(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
  BecomeNobody();
  REQUIRE(mlockall(MCL_FUTURE) == 0);
  Churn(1000);
  for (int i = 0; i < 100; ++i) Allocate(100);
  void* own = std::malloc(1 << 20);
  REQUIRE(own != nullptr);
  std::memset(own, 1, 1 << 20);
  std::free(own);
  std::puts("done");
}
