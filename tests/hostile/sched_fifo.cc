// A real-time thread and an ordinary thread allocate on one processor. If the real-time thread only yielded while it
// waits for a lock, the ordinary thread, which holds the lock, would never run.
#include <pthread.h>
#include <sched.h>

#include <thread>

#include "tests/hostile/hostile.h"

int main() {
  cpu_set_t one;
  CPU_ZERO(&one);
  REQUIRE(sched_getaffinity(0, sizeof(one), &one) == 0);
  for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &one) && kept++ > 0) CPU_CLR(cpu, &one);
  }
  REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
  std::atomic<bool> done{false};
  std::thread ordinary([&] {
    while (!done) Churn(100);
  });
  std::thread real_time([&] {
    sched_param priority = {};
    priority.sched_priority = 20;
    REQUIRE(pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) == 0);
    for (int i = 0; i < 3000; ++i) {
      Churn(20);
      usleep(50);  // so that it interrupts the ordinary one anywhere
    }
    done = true;
  });
  real_time.join();
  ordinary.join();
  std::puts("done");
}
