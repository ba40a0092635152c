// A filter ends the thread that makes a socket, or waits with pselect.
#include "tests/hostile/seccomp_filter.h"

int main() {
  Allocate(1000);
  Forbid({SYS_socket, SYS_pselect6}, SECCOMP_RET_KILL_THREAD);
  Churn(1000);
  std::puts("done");
}
