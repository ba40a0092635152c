// Arithmetic on values from files. On overflow the result wraps around, as in pprof.
#ifndef HBMPROF_SRC_TOOL_UTIL_ARITHMETIC_H_
#define HBMPROF_SRC_TOOL_UTIL_ARITHMETIC_H_

#include <cstdint>

namespace hbmprof::tool {

inline int64_t Plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
inline int64_t Minus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
// Returns the absolute value. Returns INT64_MAX for INT64_MIN.
inline int64_t Magnitude(int64_t value) { return value == INT64_MIN ? INT64_MAX : value < 0 ? -value : value; }

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_ARITHMETIC_H_
