// Ends by quick_exit, with a handler that allocates, while threads allocate.
#include <cstdlib>
#include <thread>

#include "tests/hostile/hostile.h"

int main() {
  for (int i = 0; i < 3; ++i) {
    std::thread([] {
      for (;;) Churn(1000);
    }).detach();
  }
  Churn(100);
  std::at_quick_exit([] {
    Churn(100);
    std::puts("ends");
    std::fflush(stdout);
  });
  std::quick_exit(4);
}
