// signal_handler: the handler of a profiling timer allocates and frees at the point where it interrupts the program.
// Inside the tracker its events are counted as re-entrant, otherwise they are recorded.

#include <atomic>
#include <string>

#include "tests/programs/profiling_timer.h"
#include "tests/programs/program.h"

namespace {

constexpr int64_t kWantedReentries = kTimerInterruptsTheTracker ? 20 : 0;

std::atomic<int64_t> recorded{0};
std::atomic<int64_t> passed{0};

void OnTimer(int) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  if (profiler.RecordAlloc(Buffer(1, 1), 16)) {
    recorded.fetch_add(1);
    CHECK_THAT(profiler.RecordFree(Buffer(1, 1)) == 16);
  } else {
    passed.fetch_add(1);
  }
}

}  // namespace

int main() {
  LimitTime();
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  // Makes the thread's first capture, and every site that the handler needs, outside of the handler.
  OnTimer(0);
  CHECK_THAT(recorded.load() == 1);

  int64_t allocations = 0;
  {
    const ProfilingTimer timer(OnTimer, 1000);
    for (int round = 0; round < 300 || passed.load() < kWantedReentries; ++round) {
      hbmprof::ScopedTag tag("round", std::to_string(round % 50));
      for (uint64_t i = 0; i < 2000; ++i) {
        CHECK_THAT(profiler.RecordAlloc(Buffer(2, i), 1 + i % 100));
        ++allocations;
      }
      // All other calls that take a lock which an event needs.
      for (int i = 0; i < 20; ++i) {
        profiler.Stats(hbmprof::kDefaultDevice);
        profiler.ResetPeak(hbmprof::kDefaultDevice);
        profiler.GetTrackerStats();
        for (uint64_t b = 0; b < 200; ++b) CHECK_THAT(profiler.FindBuffer(Buffer(2, b)).has_value());
      }
      if (round % 10 == 0) profiler.TakeSnapshot();
      for (uint64_t i = 0; i < 2000; ++i) CHECK_THAT(profiler.RecordFree(Buffer(2, i)));
    }
  }

  const hbmprof::DeviceStats stats = profiler.Stats(hbmprof::kDefaultDevice);
  CHECK_THAT(stats.num_allocs == allocations + recorded.load());
  CHECK_THAT(stats.num_live == 0);
  CHECK_THAT(stats.bytes_in_use == 0);
  CHECK_THAT(profiler.GetTrackerStats().reentrant_events == passed.load());
  CHECK_THAT(profiler.GetTrackerStats().foreign_frees == 0);
  std::puts("done");
}
