// See text.h.
#include "src/tool/text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

namespace hbmprof::tool {
namespace {

bool IsBytes(std::string_view unit) { return unit == "bytes" || unit == "byte" || unit == "B"; }

// Characters as a terminal counts them, near enough: continuation bytes of UTF-8 take no room.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string FormatValue(int64_t value, std::string_view unit, bool exact) {
  if (!IsBytes(unit)) return unit.empty() || unit == "count" ? std::to_string(value) : Cat(value, " ", unit);
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double scaled = static_cast<double>(value);
  size_t power = 0;
  while (!exact && std::fabs(scaled) >= 1023.995 && power + 1 < std::size(kUnits)) {
    scaled /= 1024;
    ++power;
  }
  if (power == 0) return Cat(value, " B");
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f %s", scaled, kUnits[power]);
  return text;
}

std::string FormatChange(int64_t value, std::string_view unit, bool exact) {
  return Cat(value > 0 ? "+" : "", FormatValue(value, unit, exact));
}

std::string FormatPercent(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string FormatTime(int64_t unix_nanos) {
  if (unix_nanos == 0) return "";
  const auto seconds = static_cast<time_t>(unix_nanos / 1000000000);
  tm parts = {};
  char text[64] = "";
  if (gmtime_r(&seconds, &parts) != nullptr) std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

bool ParseBytes(std::string_view text, int64_t* bytes) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() || !std::isfinite(number) || number < 0) return false;
  std::string unit(end);
  unit.erase(std::remove(unit.begin(), unit.end(), ' '), unit.end());
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  double factor = 1;
  constexpr std::string_view kPrefixes = "kmgt";
  if (!unit.empty() && unit != "b") {
    const size_t power = kPrefixes.find(unit[0]);
    const std::string rest = unit.substr(1);
    if (power == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) return false;
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
  if (number * factor > 9e18) return false;
  *bytes = static_cast<int64_t>(std::llround(number * factor));
  return true;
}

std::string Table::Text() const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - Width(row[i]), ' ');
      line += i == 0 ? "" : "  ";
      line += columns_[i] == Align::kRight ? pad + row[i] : row[i] + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace hbmprof::tool
