// A program with early_library.cc.
#include <cstdio>

int EarlyNumber();

int main() {
  std::puts(EarlyNumber() == 3 ? "done" : "not done");
  return 0;
}
