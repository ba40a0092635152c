#include "src/api/control/dump_triggers.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "src/api/output/kept_profiles.h"
#include "src/api/output/out_of_memory.h"
#include "src/api/public/default_profiler.h"
#include "src/base/background_thread.h"
#include "src/base/kept_errno.h"
#include "src/base/message.h"
#include "src/base/monotonic_clock.h"
#include "src/core/joined/injected.h"
#include "src/core/profiler_impl.h"
#include "src/export/device_use.h"
#include "src/recording/recorder/recorder.h"

namespace hbmprof::internal {
namespace {

sem_t wakes;  // posted by the signal handler
std::atomic<bool> is_requested{false};

void RequestDump(int) {
  const KeptErrno kept_errno;
  is_requested.store(true);
  sem_post(&wakes);
}

// Returns the bytes of the device that are not free, of all processes where the device reports that.
int64_t BytesTaken(const DeviceStats& stats) {
  if (stats.bytes_limit && stats.bytes_free) return *stats.bytes_limit - *stats.bytes_free;
  return std::max(stats.driver_bytes_in_use.value_or(0), stats.bytes_in_use);
}

std::string Mebibytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNever = INT64_MAX;

// The state of the triggers and of the profiles at intervals. Used by their thread only.
class DumpTriggers {
 public:
  explicit DumpTriggers(const DefaultOptions& options) : options_(options) {
    SetNextCheck();
    SetNextProfile();
  }

  // Waits and writes profiles until the process ends.
  [[noreturn]] void Run() {
    while (true) {
      const int64_t next = std::min(next_check_, next_profile_);
      const timespec until = {static_cast<time_t>(next / kSecond), static_cast<long>(next % kSecond)};
      sem_clockwait(&wakes, CLOCK_MONOTONIC, &until);
      try {
        if (is_requested.exchange(false)) Dump("received the signal for a profile");
        if (MonotonicNanos() >= next_check_) Check();
        if (MonotonicNanos() >= next_profile_) WriteProfile();
      } catch (const std::exception&) {
        PrintMessage("hbmprof: no profile: the host has no memory to build it");
      }
      if (MonotonicNanos() >= next_check_) SetNextCheck();
      if (MonotonicNanos() >= next_profile_) SetNextProfile();
    }
  }

 private:
  struct OfDevice {
    bool was_above = false;    // whether the last check found more than dump_in_use_percent in use
    int64_t peak_at_dump = 0;  // growth is counted from this value
  };

  void SetNextCheck() {
    const bool is_on = options_.dump_in_use_percent != 0 || options_.dump_peak_growth != 0;
    next_check_ = is_on ? MonotonicNanos() + options_.dump_interval * kSecond : kNever;
  }
  void SetNextProfile() {
    const bool is_on = options_.output_interval != 0;
    next_profile_ = is_on ? MonotonicNanos() + static_cast<int64_t>(options_.output_interval * kSecond) : kNever;
  }

  static void WriteProfile() {
    const absl::Status status = WriteOutput();
    if (!status.ok()) {
      PrintMessage("hbmprof: no profile: ", std::string_view(status.message().data(), status.message().size()));
    }
  }

  // Writes at most one profile.
  void Check() {
    std::string reason;
    Profiler& profiler = Profiler::Default();
    const std::vector<std::string> names = ProfilerAccess::ImplOf(profiler).names.devices.All();
    for (size_t i = 0; i < names.size(); ++i) {
      const DeviceStats stats = profiler.Stats(static_cast<DeviceId>(i));
      if (!IsUsed(stats)) continue;
      CheckShare(stats, names[i], &devices_[i], &reason);
      CheckGrowth(stats, names[i], &devices_[i], &reason);
    }
    if (!reason.empty()) Dump(reason);
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
    *reason = "the peak of " + name + " has grown to " + Mebibytes(peak);
    device->peak_at_dump = peak;
  }

  void Dump(const std::string& reason) {
    const ScopedMark mark(reason);
    const Snapshot snapshot = Profiler::Default().TakeSnapshot();
    const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, &ElfSymbolizer());
    const absl::StatusOr<KeptProfiles::Files> kept =
        bytes.ok() ? kept_.Write(*bytes, options_.dump_output, options_) : bytes.status();
    if (!kept.ok()) {
      const absl::string_view why = kept.status().message();
      return PrintMessage("hbmprof: ", reason, ": no profile: ", std::string_view(why.data(), why.size()));
    }
    RememberProfile(snapshot);
    PrintMessage("hbmprof: ", reason, ": ", kept->flight.empty() ? kept->path : kept->path + ", " + kept->flight);
  }

  const DefaultOptions options_;
  OfDevice devices_[kMaxDevices];
  KeptProfiles kept_;
  int64_t next_check_ = kNever;    // of CLOCK_MONOTONIC
  int64_t next_profile_ = kNever;  // likewise
};

// Returns false if the program handles or ignores the signal.
bool HandleSignal(int number) {
  struct sigaction present = {};
  if (sigaction(number, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return false;
  struct sigaction action = {};
  action.sa_handler = &RequestDump;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  return sigaction(number, &action, nullptr) == 0;
}

}  // namespace

void StartDumpTriggers(const DefaultOptions& given) {
  static std::atomic<bool> is_started{false};
  DefaultOptions options = given;
  if (options.output.empty() && options.output_interval != 0) {
    PrintMessage("hbmprof: no profiles are written at intervals: also set the path of the profile at exit");
    options.output_interval = 0;
  }
  const bool has_triggers =
      options.dump_in_use_percent != 0 || options.dump_peak_growth != 0 || options.dump_signal != 0;
  if (has_triggers && options.dump_output.empty()) {
    PrintMessage("hbmprof: the profile triggers are off: set HBMPROF_DUMP_OUTPUT to the path of their profiles");
    options.dump_in_use_percent = 0;
    options.dump_peak_growth = 0;
    options.dump_signal = 0;
  }
  const bool is_on = options.output_interval != 0 || options.dump_in_use_percent != 0 ||
                     options.dump_peak_growth != 0 || options.dump_signal != 0;
  if (!is_on || is_started.exchange(true)) return;
  sem_init(&wakes, 0, 0);
  auto triggers = std::make_unique<DumpTriggers>(options);
  const auto run = [](void* argument) -> void* { static_cast<DumpTriggers*>(argument)->Run(); };
  if (!StartBackgroundThread(run, triggers.get())) {
    return PrintMessage("hbmprof: the profile triggers and intervals are off: no thread could be started");
  }
  triggers.release();
  if (options.dump_signal != 0 && !HandleSignal(options.dump_signal)) {
    PrintMessage("hbmprof: no profiles at signal ", std::to_string(options.dump_signal),
                 ": the program handles or ignores it");
  }
}

}  // namespace hbmprof::internal
