// fork_with_handlers MODE: forks while the program's own handlers record.
//
// MODE early: handlers of fork that were registered before the library's (they run inside its own at a fork).
// MODE late: handlers that were registered after the library's.
// MODE signals: a profiling timer's handler, wherever it interrupts the fork.
// MODE stats: early handlers that take snapshots, name devices and set counters, while a thread does so too.

#include <pthread.h>
#include <sys/wait.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "tests/programs/profiling_timer.h"
#include "tests/programs/program.h"

namespace {

constexpr uint64_t kHandlers = 1;
constexpr uint64_t kSignals = 2;
constexpr uint64_t kChild = 3;

enum class Mode : uint8_t { kNone, kEarly, kLate, kSignals, kStats };
Mode mode = Mode::kNone;
uint64_t prepared = 0;

void UseEverything(uint64_t number) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  profiler.SetCounter("forks", static_cast<int64_t>(number));
  profiler.Device("device " + std::to_string(number % 8));
  hbmprof::ScopedTag tag("number", std::to_string(number));
  CHECK_THAT(profiler.TakeSnapshot().tracker.live_records >= 0);
  profiler.Stats(hbmprof::kDefaultDevice);
}

// Returns whether the handlers that were registered at that time act in this mode.
bool IsMode(Mode registered) { return mode == registered || (mode == Mode::kStats && registered == Mode::kEarly); }

// One buffer per fork, which the handler after the fork frees.
template <Mode kRegistered>
void OnPrepare() {
  if (!IsMode(kRegistered)) return;
  CHECK_THAT(hbmprof::Profiler::Default().RecordAlloc(Buffer(kHandlers, ++prepared), 100));
  if (mode == Mode::kStats) UseEverything(prepared);
}
template <Mode kRegistered>
void OnParent() {
  if (!IsMode(kRegistered)) return;
  CHECK_THAT(hbmprof::Profiler::Default().RecordFree(Buffer(kHandlers, prepared)) == 100);
  if (mode == Mode::kStats) UseEverything(prepared);
}
template <Mode kRegistered>
void OnChild() {
  if (!IsMode(kRegistered)) return;
  // A child is off, whichever call is the first.
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).num_allocs == 0);
  CHECK_THAT(!profiler.RecordAlloc(Buffer(kHandlers, prepared), 7));
  CHECK_THAT(!profiler.RecordFree(Buffer(kHandlers, prepared)));
}

// An ordinary object of the program's.
struct Early {
  Early() { pthread_atfork(&OnPrepare<Mode::kEarly>, &OnParent<Mode::kEarly>, &OnChild<Mode::kEarly>); }
} early;

std::atomic<int64_t> recorded{0};
std::atomic<int64_t> passed{0};

void OnTimer(int) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  if (profiler.RecordAlloc(Buffer(kSignals, 1), 16)) {
    recorded.fetch_add(1);
    CHECK_THAT(profiler.RecordFree(Buffer(kSignals, 1)) == 16);
  } else {
    passed.fetch_add(1);
  }
}

void ForkAndCheck() {
  const pid_t child = fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    LimitTime();
    ProfilingTimer::Stop();
    hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
    CHECK_THAT(!profiler.RecordAlloc(Buffer(kChild, 0), 10));
    CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).bytes_in_use == 0);
    std::_Exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) != child) continue;
  CHECK_THAT(WIFEXITED(status));
  CHECK_THAT(WEXITSTATUS(status) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  LimitTime();
  if (argc < 2) return 2;
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  OnTimer(0);
  const std::string name = argv[1];
  mode = name == "early"     ? Mode::kEarly
         : name == "late"    ? Mode::kLate
         : name == "signals" ? Mode::kSignals
                             : Mode::kStats;
  pthread_atfork(&OnPrepare<Mode::kLate>, &OnParent<Mode::kLate>, &OnChild<Mode::kLate>);
  int forks = 50;
  std::optional<ProfilingTimer> timer;
  std::atomic<bool> stop{false};
  std::thread other;
  if (mode == Mode::kSignals) {
    forks = 2000;
    timer.emplace(OnTimer, 200);
  } else if (mode == Mode::kStats) {
    other = std::thread([&] {
      for (uint64_t i = 0; !stop.load(); ++i) UseEverything(i);
    });
  }
  for (int i = 0; i < forks; ++i) ForkAndCheck();
  timer.reset();
  stop.store(true);
  if (other.joinable()) other.join();

  // No event is lost: it is recorded, or counted as re-entrant.
  const hbmprof::DeviceStats stats = profiler.Stats(hbmprof::kDefaultDevice);
  CHECK_THAT(stats.num_allocs == recorded.load() + static_cast<int64_t>(prepared));
  CHECK_THAT(stats.num_live == 0);
  CHECK_THAT(stats.bytes_in_use == 0);
  CHECK_THAT(prepared == (mode == Mode::kSignals ? 0 : static_cast<uint64_t>(forks)));
  CHECK_THAT(profiler.GetTrackerStats().reentrant_events == passed.load());
  CHECK_THAT(profiler.GetTrackerStats().foreign_frees == 0);
  std::puts("done");
}
