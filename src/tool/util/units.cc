// See units.h.
#include "src/tool/util/units.h"

#include <cctype>

#include "absl/strings/str_split.h"

namespace hbmprof::tool {
namespace {

struct KnownUnit {
  const char* names;  // lower case, singular, separated by spaces
  Unit unit;
};
constexpr std::string_view kMemory = "memory";
constexpr std::string_view kTime = "time";
constexpr Unit kByte = {1, kMemory, "B"};
constexpr Unit kSecond = {1000000000, kTime, "s"};
constexpr KnownUnit kUnits[] = {{"b byte", kByte},
                                {"kb kbyte kilobyte", {int64_t{1} << 10, kMemory, "kB"}},
                                {"mb mbyte megabyte", {int64_t{1} << 20, kMemory, "MB"}},
                                {"gb gbyte gigabyte", {int64_t{1} << 30, kMemory, "GB"}},
                                {"tb tbyte terabyte", {int64_t{1} << 40, kMemory, "TB"}},
                                {"pb pbyte petabyte", {int64_t{1} << 50, kMemory, "PB"}},
                                {"ns nanosecond", {1, kTime, "ns"}},
                                {"us \xCE\xBCs microsecond", {1000, kTime, "us"}},
                                {"ms millisecond", {1000000, kTime, "ms"}},
                                {"s sec second", kSecond},
                                {"hour hr", {int64_t{3600} * 1000000000, kTime, "hrs"}}};

}  // namespace

Unit UnitOf(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.size() > 2 && lower.back() == 's') lower.pop_back();
  for (const KnownUnit& known : kUnits) {
    for (const auto known_name : absl::StrSplit(known.names, ' ')) {
      if (known_name == lower) return known.unit;
    }
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
