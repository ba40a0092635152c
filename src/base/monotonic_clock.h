// The system clock CLOCK_MONOTONIC.
#ifndef HBMPROF_SRC_BASE_MONOTONIC_CLOCK_H_
#define HBMPROF_SRC_BASE_MONOTONIC_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace hbmprof::internal {

// Returns its time in nanoseconds. On all processors it is one clock, which never goes backwards.
inline int64_t MonotonicNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_MONOTONIC_CLOCK_H_
