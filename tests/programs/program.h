// Functions of the test programs: checks and a time limit (check.h), and records of buffers that are not allocated.
#ifndef HBMPROF_TESTS_PROGRAMS_PROGRAM_H_
#define HBMPROF_TESTS_PROGRAMS_PROGRAM_H_

#include <atomic>
#include <cstdint>
#include <cstdio>

#include "hbmprof/hbmprof.h"
#include "tests/support/check.h"

// Buffer `i` of `owner`; all distinct.
inline hbmprof::BufferId Buffer(uint64_t owner, uint64_t i) {
  return hbmprof::BufferId((owner + 1) << 40 | (i + 1) << 8);
}

// The number of threads in AllocateForEver that need no more host memory.
inline std::atomic<int> settled_threads{0};

// Allocates and frees without end; about `live` buffers are live at a time.
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
