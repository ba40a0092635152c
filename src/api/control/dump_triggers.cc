#include "src/api/control/dump_triggers.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "src/api/profiles/out_of_memory.h"
#include "src/api/profiles/profile_writer.h"
#include "src/base/background_thread.h"
#include "src/base/bytes_text.h"
#include "src/base/message.h"
#include "src/base/monotonic_clock.h"
#include "src/base/try_run.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/export/device_stats.h"
#include "src/recording/recorder/recorder.h"

namespace hbmprof::internal {
namespace {

// Returns the bytes of the device that are not free, of all processes where the device reports that.
int64_t BytesTaken(const DeviceStats& stats) {
  if (stats.bytes_limit && stats.bytes_free) return *stats.bytes_limit - *stats.bytes_free;
  return std::max(stats.driver_bytes_in_use.value_or(0), stats.bytes_in_use);
}

constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kCheckInterval = kNanosPerSecond;
constexpr int64_t kPauseAfterProfile = 10 * kNanosPerSecond;

// The state of the triggers and of the profiles at intervals. Used by their thread only.
class DumpTriggers {
 public:
  DumpTriggers(const DefaultOptions& options, void (*write_output)()) : options_(options), write_output_(write_output) {
    if (HasTriggers(options)) next_check_ = MonotonicNanos() + kCheckInterval;
    SetNextProfile();
  }

  static bool HasTriggers(const DefaultOptions& options) {
    return options.dump_in_use_percent != 0 || options.dump_peak_growth != 0;
  }
  static bool HasInterval(const DefaultOptions& options) {
    return options.output_interval != 0 && !options.output.empty();
  }

  // Waits and writes profiles until the process ends.
  [[noreturn]] void Run() {
    while (true) {
      const int64_t next = std::min(next_check_, next_profile_);
      const timespec until = {static_cast<time_t>(next / kNanosPerSecond), static_cast<long>(next % kNanosPerSecond)};
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
      if (MonotonicNanos() >= next_check_) {
        bool had_reason = true;
        if (!TryRun([&] { had_reason = Check(); })) {
          PrintMessage("hbmprof: no profile: the host has no memory to build it");
        }
        next_check_ = MonotonicNanos() + (had_reason ? kPauseAfterProfile : kCheckInterval);
      }
      if (MonotonicNanos() >= next_profile_) {
        write_output_();
        SetNextProfile();
      }
    }
  }

 private:
  struct OfDevice {
    bool was_above = false;    // whether the last check found more than dump_in_use_percent in use
    int64_t peak_at_dump = 0;  // growth is counted from this value
  };
  using OfDevices = std::array<OfDevice, kMaxDevices>;

  void SetNextProfile() {
    if (!HasInterval(options_)) return;
    next_profile_ = MonotonicNanos() + static_cast<int64_t>(options_.output_interval * kNanosPerSecond);
  }

  // Writes at most one profile, and returns whether there was a reason for one. If it cannot be written, a later check
  // finds the same reason.
  bool Check() {
    std::string reason;
    OfDevices now = devices_;
    Profiler& profiler = Profiler::Default();
    const std::vector<std::string> names = ProfilerAccess::ImplOf(profiler).names.devices.All();
    for (size_t i = 0; i < names.size(); ++i) {
      const DeviceStats stats = profiler.Stats(static_cast<DeviceId>(i));
      if (!IsUsed(stats)) continue;
      CheckShare(stats, names[i], &now[i], &reason);
      CheckGrowth(stats, names[i], &now[i], &reason);
    }
    if (reason.empty() || Dump(reason)) devices_ = now;
    return !reason.empty();
  }

  void CheckShare(const DeviceStats& stats, const std::string& name, OfDevice* device, std::string* reason) const {
    if (options_.dump_in_use_percent == 0 || stats.bytes_limit.value_or(0) <= 0) return;
    const double percent = 100.0 * static_cast<double>(BytesTaken(stats)) / static_cast<double>(*stats.bytes_limit);
    const bool is_above = percent > options_.dump_in_use_percent;
    if (is_above && !device->was_above) {
      char share[64];
      std::snprintf(share, sizeof(share), " has %.1f %% of its memory in use", percent);
      *reason = name + share;
    }
    device->was_above = is_above;
  }

  void CheckGrowth(const DeviceStats& stats, const std::string& name, OfDevice* device, std::string* reason) const {
    if (options_.dump_peak_growth == 0) return;
    const int64_t peak = stats.peak_bytes_in_use;
    device->peak_at_dump = std::min(device->peak_at_dump, peak);  // the peak was reset
    if (peak - device->peak_at_dump < options_.dump_peak_growth) return;
    *reason = "the peak of " + name + " has grown to " + BytesText(peak);
    device->peak_at_dump = peak;
  }

  // Returns whether the profile was written. Of failures that follow each other, prints the first one.
  bool Dump(const std::string& reason) {
    const ScopedMark mark(reason);
    const Snapshot snapshot = Profiler::Default().TakeSnapshot();
    ProfilePlace place;
    place.pattern = options_.dump_output;
    place.kept = &kept_;
    const absl::StatusOr<ProfileFiles> files = WriteProfile(SerializePprof(snapshot, &ElfSymbolizer()), place);
    if (!files.ok()) {
      if (!std::exchange(has_failed_, true)) {
        PrintMessage("hbmprof: ", reason, ": no profile: ", TextOf(files.status()));
      }
      return false;
    }
    has_failed_ = false;
    RememberProfile(snapshot);
    PrintMessage("hbmprof: ", reason, ": ", files->flight.empty() ? files->path : files->path + ", " + files->flight);
    return true;
  }

  const DefaultOptions options_;
  void (*const write_output_)();
  OfDevices devices_;  // when the last profile was written
  bool has_failed_ = false;
  KeptProfiles kept_;
  int64_t next_check_ = kNever;    // of CLOCK_MONOTONIC
  int64_t next_profile_ = kNever;  // likewise
};

}  // namespace

void StartDumpTriggers(const DefaultOptions& options, void (*write_output)()) {
  if (!DumpTriggers::HasTriggers(options) && !DumpTriggers::HasInterval(options)) return;
  auto triggers = std::make_unique<DumpTriggers>(options, write_output);
  const auto run = [](void* argument) -> void* { static_cast<DumpTriggers*>(argument)->Run(); };
  if (!StartBackgroundThread(run, triggers.get())) {
    return PrintMessage("hbmprof: the profile triggers and intervals are off: no thread could be started");
  }
  triggers.release();
}

}  // namespace hbmprof::internal
