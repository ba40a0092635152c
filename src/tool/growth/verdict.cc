// See verdict.h.
#include "src/tool/growth/verdict.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "src/tool/util/arithmetic.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {

Sites SitesWith(Verdict verdict, const ProfileSet& profiles, const std::vector<SiteGrowth>& sites) {
  Sites found;
  std::set<std::string> functions;
  for (const SiteGrowth& site : sites) {
    if (site.verdict != verdict) continue;
    found.growth = Plus(found.growth, site.growth);
    const std::string name = NameOf(profiles, site);
    if (!functions.insert(name).second) continue;
    if (functions.size() <= 2) found.names += (found.names.empty() ? "" : " and ") + name;
  }
  found.function_count = functions.size();
  if (functions.size() > 2) {
    found.names += Cat(" and ", functions.size() - 2, functions.size() == 3 ? " other function" : " other functions");
  }
  return found;
}

std::string NameOf(const ProfileSet& profiles, const SiteGrowth& site) {
  const std::vector<ProfileSet::ShownFrame> stack = profiles.ShownStack(site.stack);
  return stack.empty() ? "[no stack]" : stack[0].name;
}

std::string DeviceOf(const ProfileSet& profiles, const ProfileSet::File& file, size_t type, uint32_t stack) {
  std::map<std::string, int64_t> sums;
  for (size_t s = 0; s < file.samples.size(); ++s) {
    if (file.samples[s].stack != stack) continue;
    int64_t& sum = sums[profiles.LabelText(file.samples[s].labels, "device")];
    sum = Plus(sum, profiles.Value(file, s, type));
  }
  const auto most =
      std::max_element(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == sums.end() ? "" : most->first;
}

std::string LeakSentence(const ProfileSet& profiles, const ProfileSet::File& now, size_t type,
                         const std::vector<SiteGrowth>& sites) {
  const Sites leaks = SitesWith(Verdict::kLeak, profiles, sites);
  if (leaks.function_count == 0) return "";
  double per_second = 0;
  std::map<std::string, double> rates;  // by device
  for (const SiteGrowth& site : sites) {
    if (site.verdict != Verdict::kLeak) continue;
    per_second += site.per_second;
    rates[DeviceOf(profiles, now, type, site.stack)] += site.per_second;
  }
  const std::string unit = profiles.types()[type].unit;
  std::string text = Cat(leaks.names, leaks.function_count == 1 ? " leaks " : " leak ");
  if (per_second > 0) {
    text += Cat(FormatValue(static_cast<int64_t>(per_second), unit), " each second (", FormatChange(leaks.growth, unit),
                ")");
  } else {
    text += FormatValue(leaks.growth, unit);
  }
  double least = -1;
  std::string first;
  for (const ProfileInfo::Device& device : now.info.devices) {
    const auto rate = rates.find(device.name);
    const std::optional<int64_t> limit = device.Number("limit");
    if (!device.is_device_memory() || unit != "bytes" || rate == rates.end() || rate->second <= 0 ||
        !limit.has_value()) {
      continue;
    }
    const double left = static_cast<double>(Minus(*limit, device.Number("in_use").value_or(0))) / rate->second;
    if (left < 0 || (least >= 0 && left >= least)) continue;
    least = left;
    first = device.name;
  }
  if (least >= 0) text += Cat("; ", first, " reaches its limit in ", FormatDuration(least));
  return text + ".";
}

}  // namespace hbmprof::tool
