// Units of sizes and times, with pprof's names and rules.
#ifndef HBMPROF_SRC_TOOL_UTIL_UNITS_H_
#define HBMPROF_SRC_TOOL_UTIL_UNITS_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

struct Unit {
  int64_t factor = 0;       // as a multiple of the smallest unit of its family; 0 for an unknown unit
  std::string_view family;  // "memory" or "time"; "" for an unknown unit
  std::string_view name;    // pprof's name: "B", "kB", "ns"
};

// Returns the unit `name`. Accepts upper and lower case, singular and plural. kB, MB, ... are multiples of 1024.
Unit UnitOf(std::string_view name);

struct ScaledValue {
  double value;
  std::string unit;
};
// Converts `value` from the unit `from` to the unit `to`, as pprof does. If `to` is not a unit of the same family,
// converts to bytes or seconds. If `from` is unknown, returns the value unchanged, with the unit `to`.
ScaledValue Scale(int64_t value, std::string_view from, std::string_view to);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_UTIL_UNITS_H_
