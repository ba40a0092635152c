// Its working directory is removed.
#include <sys/stat.h>

#include "tests/hostile/hostile.h"

int main() {
  REQUIRE(mkdir("gone", 0755) == 0 && chdir("gone") == 0 && rmdir("../gone") == 0);
  Allocate(1000);
  Churn(10);
  std::puts("done");
}
