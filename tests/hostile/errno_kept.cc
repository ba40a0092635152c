// Requires that no allocation or free changes errno, the rounding mode or the signal mask.
#include <cerrno>
#include <cfenv>
#include <csignal>

#include "tests/hostile/hostile.h"

int main() {
  sigset_t before;
  sigemptyset(&before);
  sigaddset(&before, SIGUSR1);
  REQUIRE(sigprocmask(SIG_SETMASK, &before, nullptr) == 0);
  REQUIRE(std::fesetround(FE_UPWARD) == 0);
  for (int i = 0; i < 1000; ++i) {
    errno = 4711;
    void* memory = Allocate(1000);
    REQUIRE(errno == 4711);
    if (i > 0) Free(memory);
    REQUIRE(errno == 4711);
  }
  REQUIRE(std::fegetround() == FE_UPWARD);
  sigset_t after;
  REQUIRE(sigprocmask(SIG_SETMASK, nullptr, &after) == 0);
  for (int number = 1; number < 32; ++number) REQUIRE(sigismember(&after, number) == (number == SIGUSR1 ? 1 : 0));
  std::puts("done");
}
