// BytesText: a number of bytes as people read it.
#ifndef HBMPROF_SRC_BASE_BYTES_TEXT_H_
#define HBMPROF_SRC_BASE_BYTES_TEXT_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>

namespace hbmprof::internal {

// Returns text such as "512 B" or "1.50 GiB". What would be rounded to 1024.00 of a unit is 1.00 of the next one.
inline std::string BytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; std::fabs(value) >= 1023.995 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_BYTES_TEXT_H_
