// thread_exit: a thousand threads end with live buffers; some events come from the destructors of thread_local objects.

#include <thread>
#include <vector>

#include "tests/programs/program.h"

namespace {

constexpr uint64_t kThreads = 1000;

struct AtThreadExit {
  uint64_t owner = 0;
  ~AtThreadExit() {
    hbmprof::ScopedTag tag("when", "thread_exit");
    hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
    CHECK_THAT(profiler.RecordFree(Buffer(owner, 1)));
    CHECK_THAT(profiler.RecordAlloc(Buffer(owner, 2), 5));
  }
};
thread_local AtThreadExit at_thread_exit;

void RunThread(uint64_t owner) {
  at_thread_exit.owner = owner;
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  hbmprof::ScopedTag tag("when", "thread");
  CHECK_THAT(profiler.RecordAlloc(Buffer(owner, 0), 100));
  CHECK_THAT(profiler.RecordAlloc(Buffer(owner, 1), 1000));
}

}  // namespace

int main() {
  LimitTime();
  for (uint64_t first = 0; first < kThreads; first += 20) {
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 20; ++i) threads.emplace_back(RunThread, first + i);
    for (std::thread& thread : threads) thread.join();
  }
  const hbmprof::DeviceStats stats = hbmprof::Profiler::Default().Stats(hbmprof::kDefaultDevice);
  CHECK_THAT(stats.bytes_in_use == 105 * kThreads);
  CHECK_THAT(stats.num_live == 2 * kThreads);
  CHECK_THAT(stats.num_allocs == 3 * kThreads);
  std::puts("done");
}
