// Runs from a file that exists only in memory.
#include <sys/mman.h>

#include <cstring>

#include "tests/hostile/hostile.h"

int main(int, char** argv) {
  if (std::strcmp(argv[0], "copy") != 0) {
    const int copy = memfd_create("program", MFD_CLOEXEC);
    CopyProgram(copy);
    char name[] = "copy";
    char* arguments[] = {name, nullptr};
    fexecve(copy, arguments, environ);
    return 98;
  }
  Churn(10);
  Allocate(1000);
  std::puts("done");
}
