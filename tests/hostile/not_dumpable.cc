// May not be looked into (PR_SET_DUMPABLE), not even by itself: /proc/self belongs to root.
#include <sys/prctl.h>

#include "tests/hostile/hostile.h"

int main() {
  BecomeNobody();
  REQUIRE(prctl(PR_SET_DUMPABLE, 0) == 0);
  Allocate(1000);
  Churn(100);
  std::puts("done");
}
