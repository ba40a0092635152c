// See units.h.
#include "src/tool/util/units.h"

#include <algorithm>
#include <cctype>

namespace hbmprof::tool {
namespace {

struct Alias {
  std::string_view alias;  // lower case, singular
  Unit unit;
};
constexpr std::string_view kMemory = "memory";
constexpr std::string_view kTime = "time";
constexpr Unit kByte = {1, kMemory, "B"};
constexpr Unit kSecond = {1000000000, kTime, "s"};
constexpr Alias kUnits[] = {{"b", kByte},
                            {"byte", kByte},
                            {"kb", {int64_t{1} << 10, kMemory, "kB"}},
                            {"kbyte", {int64_t{1} << 10, kMemory, "kB"}},
                            {"kilobyte", {int64_t{1} << 10, kMemory, "kB"}},
                            {"mb", {int64_t{1} << 20, kMemory, "MB"}},
                            {"mbyte", {int64_t{1} << 20, kMemory, "MB"}},
                            {"megabyte", {int64_t{1} << 20, kMemory, "MB"}},
                            {"gb", {int64_t{1} << 30, kMemory, "GB"}},
                            {"gbyte", {int64_t{1} << 30, kMemory, "GB"}},
                            {"gigabyte", {int64_t{1} << 30, kMemory, "GB"}},
                            {"tb", {int64_t{1} << 40, kMemory, "TB"}},
                            {"tbyte", {int64_t{1} << 40, kMemory, "TB"}},
                            {"terabyte", {int64_t{1} << 40, kMemory, "TB"}},
                            {"pb", {int64_t{1} << 50, kMemory, "PB"}},
                            {"pbyte", {int64_t{1} << 50, kMemory, "PB"}},
                            {"petabyte", {int64_t{1} << 50, kMemory, "PB"}},
                            {"ns", {1, kTime, "ns"}},
                            {"nanosecond", {1, kTime, "ns"}},
                            {"us", {1000, kTime, "us"}},
                            {"\xCE\xBCs", {1000, kTime, "us"}},
                            {"microsecond", {1000, kTime, "us"}},
                            {"ms", {1000000, kTime, "ms"}},
                            {"millisecond", {1000000, kTime, "ms"}},
                            {"s", kSecond},
                            {"sec", kSecond},
                            {"second", kSecond},
                            {"hour", {int64_t{3600} * 1000000000, kTime, "hrs"}},
                            {"hr", {int64_t{3600} * 1000000000, kTime, "hrs"}}};

}  // namespace

Unit UnitOf(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.size() > 2 && lower.back() == 's') lower.pop_back();
  for (const Alias& known : kUnits) {
    if (known.alias == lower) return known.unit;
  }
  return {};
}

ScaledValue Scale(int64_t value, std::string_view from, std::string_view to) {
  const Unit source = UnitOf(from);
  if (source.factor == 0) {
    const bool is_count = to == "count" || to == "sample" || to == "unit" || to == "minimum" || to == "auto";
    return {static_cast<double>(value), is_count ? "" : std::string(to)};
  }
  Unit target = UnitOf(to);
  if (target.family != source.family) target = source.family == kMemory ? kByte : kSecond;
  return {static_cast<double>(value) * static_cast<double>(source.factor) / static_cast<double>(target.factor),
          std::string(target.name)};
}

}  // namespace hbmprof::tool
