// Runs from a file that is deleted before the first allocation.

#include <cstring>

#include "tests/hostile/hostile.h"

int main(int, char** argv) {
  if (std::strcmp(argv[0], "copy") != 0) {
    const int copy = open("copy", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
    CopyProgram(copy);
    close(copy);
    execl("./copy", "copy", nullptr);
    return 98;
  }
  REQUIRE(unlink("copy") == 0);
  Churn(10);
  Allocate(1000);
  std::puts("done");
}
