// Blocks a signal in its threads and waits for it in one of them. If a thread of a library did not block the signal,
// this thread would get it, and the default action would end the process.
#include <csignal>
#include <thread>

#include "tests/hostile/hostile.h"

int main() {
  Churn(10);  // a library's threads start here, with no signal blocked
  Linger();
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &one, nullptr) == 0);
  std::thread waiting([&] {
    for (int i = 0; i < 20; ++i) {
      int number = 0;
      REQUIRE(sigwait(&one, &number) == 0 && number == SIGUSR1);
      REQUIRE(kill(getppid(), 0) == 0);
      if (i < 19) REQUIRE(kill(getpid(), SIGUSR1) == 0);
    }
  });
  REQUIRE(kill(getpid(), SIGUSR1) == 0);
  waiting.join();
  std::puts("done");
}
