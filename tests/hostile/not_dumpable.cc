// Is not dumpable (PR_SET_DUMPABLE): /proc/self belongs to root, so that not even the program itself can read it.
#include <sys/prctl.h>

#include "tests/hostile/hostile.h"

int main() {
  BecomeNobody();
  REQUIRE(prctl(PR_SET_DUMPABLE, 0) == 0);
  Allocate(1000);
  Churn(100);
  std::puts("done");
}
