// Starts itself by vfork and exec, by posix_spawn and by system(), while it has allocations.
#include <spawn.h>

#include <cstdlib>

#include "tests/hostile/hostile.h"

int main(int argc, char** argv) {
  Allocate(1000);
  if (argc == 2) return std::atoi(argv[1]);
  char path[4096] = {};
  REQUIRE(readlink("/proc/self/exe", path, sizeof(path) - 10) > 0);
  for (int i = 0; i < 2; ++i) {
    const pid_t child = vfork();
    REQUIRE(child >= 0);
    if (child == 0) {
      execl(path, "child", "11", nullptr);
      _exit(98);
    }
    WaitFor(child, 11 << 8);
    Churn(10);
  }
  for (int i = 0; i < 2; ++i) {
    pid_t child = 0;
    char name[] = "child";
    char code[] = "12";
    char* arguments[] = {name, code, nullptr};
    REQUIRE(posix_spawn(&child, path, nullptr, nullptr, arguments, environ) == 0);
    WaitFor(child, 12 << 8);
    Churn(10);
  }
  for (char* end = path;; ++end) {
    if (*end != '\0') continue;
    std::snprintf(end, 4, " 13");
    break;
  }
  REQUIRE(std::system(path) == 13 << 8);
  std::puts("done");
}
