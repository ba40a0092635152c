// fork_at_first_use: each of 300 processes forks while another thread uses the library for the first time. The child
// uses it, too: it records everything or nothing.

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/programs/program.h"

namespace {

// Returns whether this process records.
bool Use() {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  const bool records = profiler.RecordAlloc(Buffer(1, 0), 512);
  CHECK_THAT(profiler.TakeSnapshot().samples.size() == (records ? 1u : 0u));
  return records;
}

void Await(pid_t child) {
  int status = 0;
  CHECK_THAT(child >= 0 && waitpid(child, &status, 0) == child);
  CHECK_THAT(status == 0);
}

[[noreturn]] void RunProcess(int delay) {
  std::thread thread([] { CHECK_THAT(Use()); });
  usleep(static_cast<useconds_t>(delay));
  const pid_t child = fork();
  if (child == 0) {
    LimitTime();
    Use();
    std::_Exit(0);
  }
  Await(child);
  thread.join();
  std::_Exit(0);
}

}  // namespace

int main() {
  for (int i = 0; i < 300; ++i) {
    const pid_t process = fork();
    if (process == 0) RunProcess(i % 60 * 5);
    Await(process);
  }
  std::puts("done");
}
