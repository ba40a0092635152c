// exit_while_allocating: one of four threads that allocate calls exit(3); the others continue while the process ends.

#include <atomic>
#include <thread>

#include "tests/programs/program.h"

int main() {
  LimitTime();
  hbmprof::Profiler::Default();
  for (uint64_t i = 0; i < 3; ++i) std::thread(AllocateForEver, i, 500).detach();
  std::thread([] {
    for (uint64_t i = 0; i < 2000; ++i) hbmprof::Profiler::Default().RecordAlloc(Buffer(9, i), 100);
    std::exit(3);
  }).detach();
  for (;;) pause();
}
