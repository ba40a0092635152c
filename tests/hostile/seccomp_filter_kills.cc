// Opens no more files after its start: a filter kills the process for such a call.
#include "tests/hostile/seccomp_filter.h"

int main() {
  Allocate(1000);
  Churn(100);
  ForbidOpening(SECCOMP_RET_KILL_PROCESS);
  Churn(1000);
  std::puts("done");
}
