// Lowers the limit of descriptors to the three that are open, so that no file can be opened any more.
#include <sys/resource.h>

#include "tests/hostile/hostile.h"

int main() {
  const rlimit limit = {3, 3};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  Allocate(1000);
  Churn(1000);
  REQUIRE(open("/dev/null", O_RDONLY) < 0);
  std::puts("done");
}
