#include "src/api/live.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "hbmprof/profiler.h"
#include "src/base/descriptor.h"
#include "src/core/injected.h"
#include "src/core/profiler_impl.h"
#include "src/export/metrics.h"
#include "src/export/stats_json.h"

namespace hbmprof::internal {
namespace {

absl::string_view Abseil(std::string_view text) { return {text.data(), text.size()}; }

// Calls visit(device) for each device of the profiler that has a live buffer or a peak.
template <typename Visit>
void ForEachUsedDevice(const Profiler& profiler, const Visit& visit) {
  for (int i = 0; i < kMaxDevices; ++i) {
    const auto device = static_cast<DeviceId>(i);
    bool is_used = false;
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      const DeviceStats stats = profiler.Stats(device, static_cast<MemorySpace>(space));
      is_used = is_used || stats.num_live != 0 || stats.peak_bytes_in_use != 0;
    }
    if (is_used) visit(device);
  }
}

}  // namespace

std::string ProcessName() {
  std::string name = ReadProcFile("/proc/self/comm");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  std::replace(name.begin(), name.end(), '\n', ' ');
  return name;
}

std::string LiveStats(int64_t seconds) {
  Profiler& profiler = Profiler::Default();
  ProcessState state;
  state.name = ProcessName();
  state.seconds = seconds;
  state.tracking = profiler.enabled();
  if (ProfilerAccess::JoinedBy(profiler) == nullptr) state.tags = ProfilerAccess::ImplOf(profiler).Tags();
  return StatsJson(profiler.TakeSnapshot(), state);
}

std::string LiveMetrics(std::optional<std::string_view> tags) {
  const Profiler& profiler = Profiler::Default();
  const std::vector<std::string> keys =
      tags.has_value() ? MetricsTags(*tags) : Profiler::OptionsOfDefault().metrics_tags;
  return PrometheusText(profiler.TakeSnapshot(), keys, profiler.enabled());
}

void ResetPeaks() {
  Profiler& profiler = Profiler::Default();
  ForEachUsedDevice(profiler, [&](DeviceId device) { profiler.ResetPeak(device); });
}

absl::Status SetProcessTag(std::string_view tag) {
  const size_t equals = tag.find('=');
  if (equals == 0 || equals == std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("a tag is KEY=VALUE, not '", Abseil(tag), "'"));
  }
  Profiler& profiler = Profiler::Default();
  if (ProfilerAccess::JoinedBy(profiler) != nullptr) {
    return absl::FailedPreconditionError("the tags of this process belong to the injected library");
  }
  ProfilerAccess::ImplOf(profiler).SetTag(tag.substr(0, equals), tag.substr(equals + 1));
  return absl::OkStatus();
}

void SetTracking(bool on) {
  Profiler& profiler = Profiler::Default();
  if (on == profiler.enabled()) return;
  if (on) {
    ForEachUsedDevice(profiler, [&](DeviceId device) {
      profiler.DropDevice(device);
      profiler.ResetPeak(device);
    });
  }
  profiler.SetEnabled(on);
}

absl::Status ReadPprofLimit(std::string_view name, std::string_view value, PprofOptions* options) {
  size_t* const limit = name == "max_samples" ? &options->max_samples
                        : name == "max_bytes" ? &options->max_bytes
                                              : nullptr;
  if (limit == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a profile has the options max_samples and max_bytes, not '", Abseil(name), "'"));
  }
  uint64_t number = 0;
  if (!absl::SimpleAtoi(Abseil(value), &number)) {
    return absl::InvalidArgumentError(absl::StrCat(Abseil(name), "='", Abseil(value), "' is not a number"));
  }
  *limit = number;
  return absl::OkStatus();
}

}  // namespace hbmprof::internal
