// What the programs share: checks that end the process, a time limit, buffers that nobody really allocated.
#ifndef HBMPROF_TESTS_PROGRAMS_PROGRAM_H_
#define HBMPROF_TESTS_PROGRAMS_PROGRAM_H_

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "hbmprof/hbmprof.h"

// Kills a program that hangs, and so fails its test.
inline void LimitTime() { alarm(60); }

// Ends the process with exit code 1 and a line on stderr unless `holds`.
inline void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::_Exit(1);
}
#define CHECK_THAT(condition) Check(static_cast<bool>(condition), #condition)

// Buffer `i` of `owner`; all distinct.
inline hbmprof::BufferId Buffer(uint64_t owner, uint64_t i) {
  return hbmprof::BufferId((owner + 1) << 40 | (i + 1) << 8);
}

// The threads in AllocateForEver that have done so often enough to need no host memory any more.
inline std::atomic<int> settled_threads{0};

// Allocates and frees for ever, about `live` buffers at a time.
[[noreturn]] inline void AllocateForEver(uint64_t owner, uint64_t live) {
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  for (uint64_t i = 0;; ++i) {
    if (i == 2 * live) settled_threads.fetch_add(1);
    hbmprof::ScopedTag tag("round", i % 2 == 0 ? "even" : "odd");
    profiler.RecordAlloc(Buffer(owner, i), 1 + i % 300);
    if (i >= live) profiler.RecordFree(Buffer(owner, i - live));
  }
}

#endif  // HBMPROF_TESTS_PROGRAMS_PROGRAM_H_
