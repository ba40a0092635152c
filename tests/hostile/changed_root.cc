// Changes the root directory to an empty one after it has allocated: the folder for profiles cannot be reached.
#include <sys/stat.h>

#include "tests/hostile/hostile.h"

int main() {
  Allocate(1000);
  REQUIRE(mkdir("root", 0755) == 0 && chroot("root") == 0 && chdir("/") == 0);
  Churn(100);
  std::puts("done");
  return 0;
}
