// Starts two processes one after the other that have the same id, each the first in a name space of its own, as in
// containers. Neither's profile may replace the other's.
#include <sched.h>

#include "tests/hostile/hostile.h"

int main() {
  for (int i = 0; i < 2; ++i) {
    const pid_t outer = fork();
    REQUIRE(outer >= 0);
    if (outer == 0) {
      REQUIRE(unshare(CLONE_NEWPID) == 0);
      const pid_t inner = fork();
      REQUIRE(inner >= 0);
      if (inner == 0) {
        REQUIRE(getpid() == 1);
        Allocate(1000);
        std::exit(7);
      }
      WaitFor(inner, 7 << 8);
      _exit(0);
    }
    WaitFor(outer, 0);
  }
  std::puts("done");
}
