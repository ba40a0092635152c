// Sums of counters that only grow, and that must never become negative.
#ifndef HBMPROF_SRC_BASE_SATURATING_H_
#define HBMPROF_SRC_BASE_SATURATING_H_

#include <cstdint>

namespace hbmprof::internal {

// Return the sum, and the difference; the nearest int64_t if it is not in the range of that type.
inline int64_t SaturatingSum(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? INT64_MIN : INT64_MAX;
}

inline int64_t SaturatingDifference(int64_t a, int64_t b) {
  int64_t difference;
  if (!__builtin_sub_overflow(a, b, &difference)) return difference;
  return a < 0 ? INT64_MIN : INT64_MAX;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_SATURATING_H_
