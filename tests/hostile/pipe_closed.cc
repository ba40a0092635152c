// Writes into a pipe without a reader: first with SIGPIPE ignored, then with its default action, which ends it.
#include <cerrno>
#include <csignal>

#include "tests/hostile/hostile.h"

int main() {
  Allocate(1000);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  std::signal(SIGPIPE, SIG_IGN);
  REQUIRE(write(ends[1], "x", 1) < 0 && errno == EPIPE);
  std::signal(SIGPIPE, SIG_DFL);
  Churn(10);
  static_cast<void>(!write(ends[1], "x", 1));
}
