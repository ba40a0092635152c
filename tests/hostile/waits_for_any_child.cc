// Waits for all its children, of which it has started one, and counts SIGCHLD. It would detect children that a library
// starts.
#include <cerrno>
#include <csignal>

#include "tests/hostile/hostile.h"

namespace {
std::atomic<int> ended{0};
}

int main() {
  std::signal(SIGCHLD, [](int) { ++ended; });
  Allocate(1000);
  Linger();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(0);
  while (wait(nullptr) < 0 && errno == EINTR) continue;
  REQUIRE(wait(nullptr) < 0 && errno == ECHILD);
  REQUIRE(ended == 1);
  return 6;
}
