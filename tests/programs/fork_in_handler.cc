// fork_in_handler: the handler of a profiling timer forks at the point where it interrupts the program, which can be
// inside the tracker. The child is off. No process hangs, and the parent loses no records.

#include <sys/wait.h>

#include <atomic>
#include <cerrno>

#include "tests/programs/profiling_timer.h"
#include "tests/programs/program.h"

namespace {

std::atomic<int> forked{0};

void OnTimer(int) {
  const int saved_errno = errno;
  const pid_t child = fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    LimitTime();
    hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
    CHECK_THAT(!profiler.RecordAlloc(Buffer(1, 1), 16) && !profiler.enabled());
    // Queries return.
    profiler.Device("child");
    profiler.Stats(hbmprof::kDefaultDevice);
    profiler.FindBuffer(Buffer(2, 1));
    profiler.DropDevice(hbmprof::kDefaultDevice);
    std::_Exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) != child) continue;
  CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  forked.fetch_add(1);
  errno = saved_errno;
}

}  // namespace

int main() {
  LimitTime();
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  CHECK_THAT(profiler.RecordAlloc(Buffer(2, 0), 10) && profiler.RecordFree(Buffer(2, 0)) == 10);
  uint64_t allocations = 1;
  {
    const ProfilingTimer timer(OnTimer, 1000);
    while (forked.load() < 200) {
      CHECK_THAT(profiler.RecordAlloc(Buffer(2, allocations % 100), 10));
      CHECK_THAT(profiler.RecordFree(Buffer(2, allocations % 100)) == 10);
      ++allocations;
    }
  }
  CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).num_allocs == static_cast<int64_t>(allocations));
  CHECK_THAT(profiler.Stats(hbmprof::kDefaultDevice).bytes_in_use == 0);
  std::puts("done");
}
