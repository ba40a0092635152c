// Locks all present and future memory. What hbmprof reserves but does not use must not become resident.
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/hostile/hostile.h"

int main() {
  REQUIRE(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
  Churn(1000);
  Allocate(1000);
  rusage usage = {};
  REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
  REQUIRE(usage.ru_maxrss < 256 << 10);  // KiB
  std::puts("done");
}
