#include "src/api/control/live.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "hbmprof/profiler.h"
#include "hbmprof/recording.h"
#include "src/base/descriptor.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/snapshot_builder.h"
#include "src/export/metrics.h"
#include "src/export/stats_json.h"
#include "src/recording/recorder/recorder.h"
#include "src/recording/recording.h"

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

std::string LiveStats(int64_t seconds) {
  Profiler& profiler = Profiler::Default();
  ProcessState state;
  state.name = NameInProc("self");
  state.seconds = seconds;
  state.tracking = profiler.enabled();
  if (ProfilerAccess::HasImpl(profiler)) state.tags = ProfilerAccess::ImplOf(profiler).names.tags.All();
  return StatsJson(SnapshotOf(profiler, SnapshotParts::kDevices), state);
}

std::string LiveMetrics(std::string_view tags) {
  Profiler& profiler = Profiler::Default();
  return PrometheusText(SnapshotOf(profiler, SnapshotParts::kSums), MetricsTags(tags), profiler.enabled());
}

void ResetPeaks() {
  Profiler& profiler = Profiler::Default();
  ForEachUsedDevice(profiler, [&](DeviceId device) { profiler.ResetPeak(device); });
}

absl::Status ControlRecording(std::string_view arguments) {
  constexpr std::string_view kMaxBytes = "max_bytes=";
  const std::string_view action = arguments.substr(0, arguments.find(' '));
  std::string_view path = arguments.substr(std::min(action.size() + 1, arguments.size()));
  RecordingOptions options;
  if (action == "start" && path.substr(0, kMaxBytes.size()) == kMaxBytes) {
    const std::string_view value = path.substr(kMaxBytes.size(), path.find(' ') - kMaxBytes.size());
    path.remove_prefix(std::min(kMaxBytes.size() + value.size() + 1, path.size()));
    if (!absl::SimpleAtoi(Abseil(value), &options.max_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("max_bytes='", Abseil(value), "' is not a number"));
    }
  }
  if (action == "stop" && path.empty()) return StopRecording();
  if (action == "start" && !path.empty()) return StartRecording(path, options);
  if (action == "flight" && !path.empty()) return SaveFlightRecording(path);
  return absl::InvalidArgumentError("the arguments of record are: start [max_bytes=N] PATH; stop; flight PATH");
}

absl::Status SetProcessTag(std::string_view tag) {
  const size_t equals = tag.find('=');
  if (equals == 0 || equals == std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("a tag is KEY=VALUE, not '", Abseil(tag), "'"));
  }
  Profiler& profiler = Profiler::Default();
  if (!ProfilerAccess::HasImpl(profiler)) return absl::FailedPreconditionError(kOffText);
  ProfilerAccess::ImplOf(profiler).names.tags.Set(tag.substr(0, equals), tag.substr(equals + 1));
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
  if (!on) RecordMark(kOffMark);
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
