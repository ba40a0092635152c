// Ends by _exit while other threads allocate.
#include <thread>

#include "tests/hostile/hostile.h"

int main() {
  for (int i = 0; i < 3; ++i) {
    std::thread([] {
      for (;;) Churn(1000);
    }).detach();
  }
  Churn(1000);
  Linger();
  std::puts("ends");
  std::fflush(stdout);
  _exit(5);
}
