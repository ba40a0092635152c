// The time of system clocks in nanoseconds.
#ifndef HBMPROF_SRC_BASE_MONOTONIC_CLOCK_H_
#define HBMPROF_SRC_BASE_MONOTONIC_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace hbmprof::internal {

inline constexpr int64_t kNanosPerSecond = 1'000'000'000;

// Returns the time of a system clock in nanoseconds, or 0 if that clock does not exist.
inline int64_t ClockNanos(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return now.tv_sec * kNanosPerSecond + now.tv_nsec;
}

// Returns the time of CLOCK_MONOTONIC in nanoseconds. On all processors it is one clock, which never goes backwards.
inline int64_t MonotonicNanos() { return ClockNanos(CLOCK_MONOTONIC); }

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_MONOTONIC_CLOCK_H_
