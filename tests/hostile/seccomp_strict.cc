// May only read, write and end: any other call of the system kills it. Recording makes none, once it has seen the
// stack.
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "tests/hostile/hostile.h"

int main() {
  // The tables have their pages before the limit. Volatile: no copy of the loop, which would be another call stack.
  for (volatile int round = 0; round < 2; round = round + 1) {
    Churn(round == 0 ? 200'000 : 2000);
    if (round == 0) REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
  }
  static_cast<void>(!write(1, "done\n", 5));
  syscall(SYS_exit, 7);
}
