// A program that allocates through the double of PyTorch's libraries, which lies as argv[1] says.
#include <cstdio>

#include "tests/inject/torch_double.h"

int main(int argc, char** argv) {
  const int made = torch_double_allocate(argc > 1 ? argv[1] : "");
  const int got = torch_double_reports();
  std::printf("made %d got %d\n", made, got);
  return made == got ? 0 : 1;
}
