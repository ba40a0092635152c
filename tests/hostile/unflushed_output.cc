// Ends with _exit while stdio's buffers contain text, which must not be flushed; a forked child has a copy of them.
#include "tests/hostile/hostile.h"

int main() {
  std::printf("never seen");
  Allocate(1000);
  Churn(10);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Allocate(1000);
    Churn(10);
    _exit(2);
  }
  WaitFor(child, 2 << 8);
  Linger();
  _exit(3);
}
