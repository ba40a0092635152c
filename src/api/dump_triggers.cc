#include "src/api/dump_triggers.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "src/api/out_of_memory.h"
#include "src/api/output_file.h"
#include "src/api/recorder.h"
#include "src/api/recording.h"
#include "src/base/atomic_file.h"
#include "src/base/background_thread.h"
#include "src/base/message.h"
#include "src/core/injected.h"
#include "src/core/profiler_impl.h"

namespace hbmprof::internal {
namespace {

sem_t wakes;  // posted by the handler of the signal
std::atomic<bool> is_requested{false};

void RequestDump(int) {
  const int error = errno;
  is_requested.store(true);
  sem_post(&wakes);
  errno = error;
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

// The state of the triggers. Used by their thread only.
class DumpTriggers {
 public:
  explicit DumpTriggers(const DefaultOptions& options) : options_(options) {}

  // Waits and writes profiles until the process ends.
  [[noreturn]] void Run() {
    timespec next = Later();
    while (true) {
      const bool is_due = sem_clockwait(&wakes, CLOCK_MONOTONIC, &next) != 0 && errno == ETIMEDOUT;
      try {
        if (is_requested.exchange(false)) Dump("a signal asked for it");
        if (is_due) Check();
      } catch (const std::exception&) {
        PrintMessage("hbmprof: no profile: the host has no memory to build it");
      }
      if (is_due) next = Later();
    }
  }

 private:
  struct OfDevice {
    bool was_above = false;    // the share of its limit
    int64_t peak_at_dump = 0;  // what growth is counted from
  };

  timespec Later() const {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += options_.dump_interval;
    return time;
  }

  // Writes at most one profile.
  void Check() {
    std::string reason;
    Profiler& profiler = Profiler::Default();
    const std::vector<std::string> names = ProfilerAccess::ImplOf(profiler).devices().All();
    for (size_t i = 0; i < names.size(); ++i) {
      const DeviceStats stats = profiler.Stats(static_cast<DeviceId>(i));
      if (stats.num_allocs == 0) continue;
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
    if (!HasFreeDisk(options_.dump_output)) {
      return PrintMessage("hbmprof: ", reason, ": no profile, because less than 64 MiB of the disk are free");
    }
    const ScopedMark mark(reason);
    const Snapshot snapshot = Profiler::Default().TakeSnapshot();
    const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, &ElfSymbolizer());
    std::string path;
    const absl::Status status =
        bytes.ok() ? WriteToPattern(options_.dump_output, static_cast<mode_t>(options_.output_mode), *bytes, &path)
                   : bytes.status();
    if (!status.ok()) {
      return PrintMessage("hbmprof: ", reason,
                          ": no profile: ", std::string_view(status.message().data(), status.message().size()));
    }
    RememberProfile(snapshot);
    const std::string flight = SaveFlightBeside(path);
    Keep(path, flight);
    PrintMessage("hbmprof: ", reason, ": ", flight.empty() ? path : path + ", " + flight);
  }

  // Removes the oldest profiles that are too many, with their flight recordings.
  void Keep(const std::string& path, const std::string& flight) {
    if (!OutputPattern(options_.dump_output).has_number()) return;
    kept_.push_back({std::make_pair(path, IdentityOf(path)), std::make_pair(flight, IdentityOf(flight))});
    while (kept_.size() > static_cast<size_t>(options_.dump_keep)) {
      for (const auto& [oldest, identity] : kept_.front()) {
        if (!oldest.empty() && IdentityOf(oldest) == identity) unlink(oldest.c_str());
      }
      kept_.pop_front();
    }
  }

  const DefaultOptions& options_;
  OfDevice devices_[kMaxDevices];
  std::deque<std::array<std::pair<std::string, FileIdentity>, 2>> kept_;  // the profile and the flight recording
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

void StartDumpTriggers(const DefaultOptions& options) {
  static std::atomic<bool> is_started{false};
  if (options.dump_in_use_percent == 0 && options.dump_peak_growth == 0 && options.dump_signal == 0) return;
  if (is_started.exchange(true)) return;
  if (options.dump_output.empty()) {
    return PrintMessage("hbmprof: no profiles at growth or signals: HBMPROF_DUMP_OUTPUT must name their path");
  }
  sem_init(&wakes, 0, 0);
  auto triggers = std::make_unique<DumpTriggers>(options);
  const auto run = [](void* argument) -> void* { static_cast<DumpTriggers*>(argument)->Run(); };
  if (!StartBackgroundThread(run, triggers.get())) {
    return PrintMessage("hbmprof: no profiles at growth or signals: no thread could be started");
  }
  triggers.release();
  if (options.dump_signal != 0 && !HandleSignal(options.dump_signal)) {
    PrintMessage("hbmprof: no profiles at signal ", std::to_string(options.dump_signal),
                 ": the program handles or ignores it");
  }
}

}  // namespace hbmprof::internal
