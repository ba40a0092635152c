// Starts itself without arguments and without the program's name.
#include "tests/hostile/hostile.h"

int main(int argc, char** argv) {
  if (argc > 0 && argv[0][0] != '\0') {
    char* nothing[] = {nullptr};
    execv("/proc/self/exe", nothing);
    return 98;
  }
  Allocate(1000);
  std::puts("done");
}
