// A SIGPROF handler allocates device memory in threads that only call malloc and free. So the first device allocation
// of most threads interrupts malloc.
#include <sys/time.h>

#include <csignal>
#include <thread>
#include <vector>

#include "tests/hostile/hostile.h"

namespace {

std::atomic<int> signals{0};
thread_local volatile int seen = 0;

void Handle(int) {
  Churn(3);
  seen = seen + 1;
  signals.fetch_add(1);
}

}  // namespace

int main() {
  Churn(10);  // makes the profiler: the program's first allocation is not in a handler
  std::signal(SIGPROF, &Handle);
  itimerval often = {};
  often.it_interval.tv_usec = often.it_value.tv_usec = 500;
  setitimer(ITIMER_PROF, &often, nullptr);
  for (int round = 0; round < 40; ++round) {
    std::thread([] {
      std::vector<void*> held(64, nullptr);
      // Until the handler has run in this thread three times; at most for about a second.
      for (int i = 0; i < 10'000'000 && seen < 3; ++i) {
        void*& slot = held[static_cast<size_t>(i) % held.size()];
        std::free(slot);
        slot = std::malloc(static_cast<size_t>(1 + i % 5000));
      }
      for (void* block : held) std::free(block);
    }).join();
  }
  REQUIRE(signals > 0);
  std::puts("done");
}
