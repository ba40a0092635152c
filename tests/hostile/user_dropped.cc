// Becomes an ordinary user after it has allocated as root: the folder for profiles is not writable any more.
#include "tests/hostile/hostile.h"

int main() {
  Allocate(1000);
  BecomeNobody();
  Churn(100);
  std::puts("done");
}
