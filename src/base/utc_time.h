// UnixNanos: the present time. UtcTime: a time as text.
#ifndef HBMPROF_SRC_BASE_UTC_TIME_H_
#define HBMPROF_SRC_BASE_UTC_TIME_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/time/civil_time.h"

namespace hbmprof::internal {

// Returns the time, in nanoseconds of Unix time.
inline int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Returns "2026-11-29T02:15:10Z". Does not use gmtime_r or strftime: they take a lock, which another thread can hold
// while the process forks.
inline std::string UtcTime(int64_t unix_nanos) {
  const absl::CivilSecond time = absl::CivilSecond(1970, 1, 1) + unix_nanos / 1000000000;
  char text[64];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02dZ", static_cast<int>(time.year()), time.month(),
                time.day(), time.hour(), time.minute(), time.second());
  return text;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_UTC_TIME_H_
