// Opens no more files after its start: a filter makes such calls fail.
#include <cerrno>

#include "tests/hostile/seccomp_filter.h"

int main() {
  Churn(10);
  ForbidOpening(SECCOMP_RET_ERRNO | EPERM);
  Allocate(1000);
  Churn(1000);
  std::puts("done");
}
