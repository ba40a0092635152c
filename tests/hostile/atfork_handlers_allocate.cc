// The program's own fork handlers allocate. They are registered before main(), and so before those of most libraries.
// They run while those libraries hold their locks.
#include <pthread.h>

#include "tests/hostile/hostile.h"

namespace {

bool forking = false;

void Handle() {
  if (forking) Churn(10);
}

const struct Registered {
  Registered() { pthread_atfork(&Handle, &Handle, &Handle); }
} registered;

}  // namespace

int main() {
  Allocate(1000);
  pthread_atfork(&Handle, &Handle, &Handle);
  forking = true;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      Allocate(1000);
      std::exit(7);
    }
    WaitFor(child, 7 << 8);
  }
  std::puts("done");
}
