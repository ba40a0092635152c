// See summary.h.
#include "src/tool/report/summary.h"

#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr int64_t kIdlePercent = 10;        // of the pools' bytes
constexpr int64_t kFragmentedPercent = 50;  // of the free bytes that are outside of the largest free block
constexpr size_t kEnoughDumps = 6;          // fewer do not show a leak that grows in bursts

using Device = ProfileInfo::Device;

std::string Bytes(int64_t bytes) { return FormatValue(bytes, "bytes"); }

// Returns the end of the sentence on the change if no site has the verdict kLeak.
std::string EndWithoutLeak(const ProfileSet& profiles, size_t type, const std::vector<SiteGrowth>& sites,
                           const DumpSeries& series) {
  if (sites.empty()) return ".";
  const Sites perhaps = SitesWith(Verdict::kPerhaps, profiles, sites);
  if (perhaps.function_count > 0) {
    return Cat(". The data does not show whether ", perhaps.names, perhaps.function_count == 1 ? " leaks (" : " leak (",
               FormatChange(perhaps.growth, profiles.types()[type].unit), "): ", sites[0].more_dumps, ".");
  }
  const size_t judged = series.end - series.begin;
  if (!series.has_ages && judged < kEnoughDumps) return Cat(". ", judged, " dumps are too few to exclude a leak.");
  return ", and no leak was found.";
}

// Returns the sentence on the device with the least headroom, and on pools and fragments; or "".
std::string DeviceSentence(const std::vector<Device>& devices) {
  const Device* fullest = nullptr;
  const auto share = [](const Device& device) {
    return static_cast<double>(device.Number("peak").value_or(0)) / static_cast<double>(*device.Number("limit"));
  };
  for (const Device& device : devices) {
    if (!device.is_device_memory() || device.Number("limit").value_or(0) <= 0) continue;
    if (fullest == nullptr || share(device) > share(*fullest)) fullest = &device;
  }
  std::string text;
  const auto add = [&text](const std::string& part) { text += text.empty() ? part : "; " + part; };
  if (fullest != nullptr && fullest->Number("peak").has_value()) {
    const int64_t limit = *fullest->Number("limit");
    const int64_t peak = *fullest->Number("peak");
    const int64_t headroom = Minus(limit, peak);
    add(Cat(fullest->name, " used up to ", Bytes(peak), " of ", Bytes(limit), ": headroom ", Bytes(headroom), " (",
            FormatPercent(headroom, limit), ")"));
  }
  for (const Device& device : devices) {
    if (!device.is_device_memory()) continue;
    const int64_t pool = device.Number("pool").value_or(0);
    const int64_t idle = device.Number("reserved").value_or(0);
    if (pool > 0 && idle > pool / 100 * kIdlePercent) {
      add(Cat(Bytes(idle), " (", FormatPercent(idle, pool), ") of the pools on ", device.name, " are idle"));
    }
    const std::optional<int64_t> limit = device.Number("limit");
    const std::optional<int64_t> in_use = device.Number("driver_in_use");
    const std::optional<int64_t> largest = device.Number("largest_free_block");
    if (!limit.has_value() || !in_use.has_value() || !largest.has_value()) continue;
    const int64_t free = Minus(*limit, *in_use);
    if (free > 0 && Minus(free, *largest) > free / 100 * kFragmentedPercent) {
      add(Cat("the largest free block of ", device.name, " is ", Bytes(*largest), " of ", Bytes(free),
              " free: its memory is fragmented"));
    }
  }
  return text.empty() ? "" : text + ".";
}

}  // namespace

std::vector<std::string> Summary(const ProfileSet& profiles, const ProfileSet::File& now, const ProfileSet::File* base,
                                 size_t type, const std::vector<SiteGrowth>& sites, const DumpSeries& series) {
  std::vector<std::string> sentences;
  const std::string leaks = LeakSentence(profiles, now, type, sites);
  if (base != nullptr) {
    const SampleType& of = profiles.types()[type];
    const int64_t before = SumOf(profiles, *base, type);
    const int64_t after = SumOf(profiles, now, type);
    std::string text = of.type.rfind("inuse", 0) == 0 ? "Memory in use" : of.type;
    text += before == after
                ? Cat(" did not change: ", FormatValue(after, of.unit))
                : Cat(after > before ? " grew by " : " fell by ", FormatValue(Magnitude(Minus(after, before)), of.unit),
                      " to ", FormatValue(after, of.unit));
    sentences.push_back(leaks.empty() ? text + EndWithoutLeak(profiles, type, sites, series) : Cat(text, ": ", leaks));
  } else if (!leaks.empty()) {
    sentences.push_back(leaks);
  }
  if (const std::string device = DeviceSentence(now.info.devices); !device.empty()) sentences.push_back(device);
  return sentences;
}

}  // namespace hbmprof::tool
