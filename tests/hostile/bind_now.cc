// Every symbol is resolved at the start (LD_BIND_NOW).
#include "tests/hostile/hostile.h"

int main() {
  Churn(100);
  Allocate(1000);
  std::puts("done");
}
