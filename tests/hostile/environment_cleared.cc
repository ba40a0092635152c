// Clears its environment before and after the first allocation, and starts itself with none.
#include <cstdlib>

#include "tests/hostile/hostile.h"

int main(int argc, char**) {
  if (argc == 1) {
    Allocate(1000);
    REQUIRE(clearenv() == 0);
    Churn(10);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      char name[] = "child";
      char* arguments[] = {name, name, nullptr};
      char* nothing[] = {nullptr};
      // The libraries of the build's own folders are found by the path that is in the program.
      execve("/proc/self/exe", arguments, nothing);
      _exit(98);
    }
    WaitFor(child, 0);
  } else {
    REQUIRE(clearenv() == 0);
    Allocate(1000);
    Churn(10);
  }
  std::puts("done");
}
