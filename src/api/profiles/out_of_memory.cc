#include "hbmprof/out_of_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "src/api/output/enough_stack.h"
#include "src/api/output/file_work.h"
#include "src/api/profiles/out_of_memory.h"
#include "src/api/profiles/profile_writer.h"
#include "src/base/descriptor.h"
#include "src/base/fork.h"
#include "src/base/kept_errno.h"
#include "src/base/lazy.h"
#include "src/base/lines.h"
#include "src/base/message.h"
#include "src/base/monotonic_clock.h"
#include "src/base/mutex.h"
#include "src/base/no_cancellation.h"
#include "src/base/try_run.h"
#include "src/core/device_driver.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/snapshot_builder.h"
#include "src/core/tables/tags.h"
#include "src/export/out_of_memory_report.h"
#include "src/recording/recorder/recorder.h"
#include "src/recording/recording.h"

namespace hbmprof {
namespace internal {
namespace {

constexpr int64_t kInterval = 60'000'000'000;

// The reports of each device, of all profilers.
struct Limiter {
  std::atomic<int64_t> next_nanos{0};  // the earliest time of the next report (CLOCK_MONOTONIC)
  std::atomic<int64_t> unreported{0};
};
Limiter limiters[kMaxDevices];

// Returns the device that has the most bytes of `space` in use.
DeviceId LargestDevice(const Profiler& profiler, MemorySpace space) {
  DeviceId largest = kDefaultDevice;
  int64_t most = -1;
  for (int i = 0; i < kMaxDevices; ++i) {
    const auto device = static_cast<DeviceId>(i);
    const int64_t in_use = profiler.Stats(device, space).bytes_in_use;
    if (in_use > most) largest = device;
    most = std::max(most, in_use);
  }
  return largest;
}

// Returns whether to report this failure. If so, no other failure of the device is reported for a minute, and
// `*unreported` is set to the number of failures since the last report.
bool MayReport(DeviceId device, int64_t* unreported) {
  Limiter& limiter = limiters[static_cast<size_t>(device) % kMaxDevices];
  const int64_t now = MonotonicNanos();
  int64_t next = limiter.next_nanos.load();
  if (now < next || !limiter.next_nanos.compare_exchange_strong(next, now + kInterval)) {
    limiter.unreported.fetch_add(1);
    return false;
  }
  *unreported = limiter.unreported.exchange(0);
  return true;
}

// The bytes in use in the last written profile, by HolderKey.
using LastProfile = std::unordered_map<uint64_t, int64_t>;
struct LastProfileSlot {
  Mutex mutex;
  std::shared_ptr<const LastProfile> profile ABSL_GUARDED_BY(mutex);
};
Lazy<LastProfileSlot> last_profile;

// Returns the tags of the calling thread, such as "model=llama, phase=decode".
std::string ThreadTags() {
  std::string text;
  for (const auto& [key, value] : TagsOf(current_tags)) {
    text.append(text.empty() ? "" : ", ").append(key).append("=").append(value);
  }
  return text;
}

std::optional<int64_t> NumberIn(const std::string& path) {
  const std::string text = ReadProcFile(path.c_str());
  int64_t number = 0;
  const bool is_number = std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc();
  return is_number ? std::optional<int64_t>(number) : std::nullopt;
}

// Returns the soft limit of a resource of this process; nullopt if there is none.
std::optional<int64_t> LimitOf(__rlimit_resource_t resource) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
}

// Returns the directory of the process's control group of version 2; "" if it has none.
std::string ControlGroup() {
  std::string group;
  ForEachLine(ReadProcFile("/proc/self/cgroup"), [&group](const std::string& line) {
    if (line.rfind("0::", 0) == 0) group = "/sys/fs/cgroup" + line.substr(3);
  });
  return group;
}

// Reads the limits of the process, of the host and of the device that apply to the failure's memory space. The limit of
// a control group is read only for the process's own group of version 2.
void ReadLimits(OutOfMemory* failure) {
  failure->address_space_limit = LimitOf(RLIMIT_AS);
  if (failure->address_space_limit) {
    if (const std::optional<int64_t> pages = NumberIn("/proc/self/statm")) {
      failure->address_space_in_use = *pages * sysconf(_SC_PAGESIZE);
    }
  }
  const std::string group = ControlGroup();
  if (failure->space == MemorySpace::kDevice) {
    const DeviceDriver* const driver = device_driver.load();
    if (driver == nullptr) return;
    const DeviceFacts facts = driver->facts(failure->device, group);
    failure->uses_host_memory = facts.uses_host_memory;
    failure->device_group_limit = facts.group_limit;
    failure->device_group_in_use = facts.group_in_use;
    return;
  }
  if (failure->space == MemorySpace::kPinnedHost && geteuid() != 0) {
    failure->memory_lock_limit = LimitOf(RLIMIT_MEMLOCK);
  }
  if (group.empty()) return;
  failure->cgroup_limit = NumberIn(group + "/memory.max");
  failure->cgroup_in_use = NumberIn(group + "/memory.current");
}

std::string NoProfile(const absl::Status& why) {
  return std::string("  profile    none: ").append(TextOf(why)).append("\n");
}

// Writes the profile that goes with a report. Returns the last lines of the report: about this profile, and how to see
// more.
std::string WriteOutOfMemoryProfile(const absl::StatusOr<std::string>& bytes, const std::string& pattern) {
  static Lazy<KeptProfiles> profiles;
  ProfilePlace place;
  place.pattern = pattern;
  place.kept = &profiles.Get();
  const absl::StatusOr<ProfileFiles> files = WriteProfile(bytes, place);
  if (!files.ok()) return NoProfile(files.status());
  return "  profile    " + files->path + "\n" + (files->flight.empty() ? "" : "  events     " + files->flight + "\n") +
         "  more       hbmprof top " + files->path + "\n";
}

// The last lines of a report. The thread for files writes them. Of the two threads, the second one that sets
// `is_decided` prints them.
struct LastLines {
  std::string text;
  std::atomic<bool> is_decided{false};
};

// As WriteOutOfMemoryProfile. If the disk does not answer in time, the lines are printed later.
std::string WriteProfileInTime(const Snapshot& snapshot, std::string_view device, const DefaultOptions& options) {
  if (options.oom_output.empty()) {
    return "  more       with HBMPROF_OOM_OUTPUT=oom.%p.%n.pb.gz, each report writes a profile for `hbmprof top`\n";
  }
  const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, &ElfSymbolizer());
  const auto lines = std::make_shared<LastLines>();
  const absl::Status status = DoFileWork([lines, device = std::string(device), bytes, pattern = options.oom_output] {
    if (!TryRun([&] { lines->text = WriteOutOfMemoryProfile(bytes, pattern); })) lines->text.clear();
    if (!lines->is_decided.exchange(true)) return;
    if (!lines->text.empty()) lines->text.pop_back();  // PrintMessage adds a line feed
    PrintMessage("hbmprof: out of memory on ", device, ", as reported before:\n", lines->text);
  });
  if (absl::IsResourceExhausted(status)) return NoProfile(status);
  if (lines->is_decided.exchange(true)) return lines->text;
  return "  profile    the disk is slow: a later line names the profile\n";
}

// Returns the index of the device with this name in the snapshot; nullopt if there is none.
std::optional<uint32_t> DeviceIn(const Snapshot& snapshot, std::string_view name) {
  for (size_t i = 0; i < snapshot.devices.size(); ++i) {
    if (snapshot.devices[i].name == name) return static_cast<uint32_t>(i);
  }
  return std::nullopt;
}

// Returns the part of a report that needs a snapshot. Throws std::bad_alloc.
std::string SnapshotText(const OutOfMemory& failure, const Profiler& profiler, const DefaultOptions& options) {
  const ScopedMark mark(std::string(kReportMark).append(failure.call));
  Snapshot snapshot = profiler.TakeSnapshot();
  std::string request;
  if (!failure.stack.empty()) {
    snapshot.stacks.push_back({failure.stack, false});
    request = (failure.tags.find(kLateFailure) == std::string::npos ? "requested by " : "noticed at ") +
              OutOfMemoryStack(snapshot, static_cast<uint32_t>(snapshot.stacks.size() - 1), &ElfSymbolizer());
    snapshot.stacks.pop_back();
  }
  snapshot.warnings.push_back("Out of memory on " + OutOfMemoryTitle(failure) + (request.empty() ? "" : ", ") +
                              request + ": " + JudgeOutOfMemory(failure).text);
  std::shared_ptr<const LastProfile> before;
  {
    LastProfileSlot& slot = last_profile.Get();
    MutexLock hold(slot.mutex);
    before = slot.profile;
  }
  std::function<std::optional<int64_t>(uint64_t)> bytes_before;
  if (before != nullptr) {
    bytes_before = [&](uint64_t key) {
      const auto found = before->find(key);
      return found != before->end() ? found->second : 0;
    };
  }
  std::string text = request.empty() ? "" : "  " + request + "\n";
  if (const std::optional<uint32_t> device = DeviceIn(snapshot, failure.device)) {
    text +=
        OutOfMemoryKindsAndProcesses(snapshot, *device, [](int64_t pid) { return NameInProc(std::to_string(pid)); });
    text += OutOfMemoryHolders(snapshot, *device, failure.space, &ElfSymbolizer(), bytes_before);
  }
  return text + WriteProfileInTime(snapshot, failure.device, options);
}

std::optional<int64_t> Clamped(std::optional<size_t> bytes) {
  if (!bytes) return std::nullopt;
  return static_cast<int64_t>(std::min<size_t>(*bytes, INT64_MAX));
}

// Returns the name of a device; "" if no call has requested its number.
std::string DeviceName(Profiler& profiler, DeviceId device) {
  for (const Snapshot::Device& known : SnapshotOf(profiler, SnapshotParts::kDevices).devices) {
    if (profiler.Device(known.name) == device) return known.name;
  }
  return "";
}

// Makes and writes the report about a failure on `device`. `failure` has the values that can be read only in the
// thread of the failed call.
void Report(OutOfMemory failure, const FailedAllocation& failed, DeviceId device, Profiler& profiler,
            int64_t unreported, const DefaultOptions& options) {
  failure.call = failed.call;
  failure.requested = Clamped(failed.bytes);
  failure.pool_limit = Clamped(failed.pool_limit);
  failure.pool_in_use = Clamped(failed.pool_in_use);
  failure.is_trimmed = failed.is_trimmed;
  std::string name = failed.device.empty() ? DeviceName(profiler, device) : std::string(failed.device);
  if (name.empty()) name = "unknown";  // nothing was recorded on any device
  failure.device = name;
  failure.space = failed.space;
  failure.unreported_failures = unreported;
  ReadLimits(&failure);
  std::string text = OutOfMemorySummary(failure);
  try {
    text.append(SnapshotText(failure, profiler, options));
  } catch (const std::exception&) {
    text.append("  call stacks: the host has no memory to list them\n");
  }
  text.pop_back();  // PrintMessage adds a line feed
  PrintMessage(text);
}

void PrintNoReport() { PrintMessage("hbmprof: out of device memory, and the host has no memory to report it"); }

// Throws std::bad_alloc.
void ReportWithEnoughStack(const FailedAllocation& failed, const Caller& caller, DeviceId device, Profiler& profiler,
                           int64_t unreported, const DefaultOptions& options) {
  OutOfMemory failure;
  {
    ProfilerImpl& impl = ProfilerAccess::ImplOf(profiler);
    const ReentryGuard guard;
    const SiteId site = guard.entered() ? impl.SiteOfFailure(caller, device, failed.space) : kNoSite;
    if (site != kNoSite) failure.stack = SiteTable::PcsOf(*impl.sites().At(site).stack);
  }
  failure.stats = profiler.Stats(device, failed.space);  // the device's numbers are those of the thread's context
  failure.tags = ThreadTags();
  const auto report = [&] {
    if (!TryRun([&] { Report(std::move(failure), failed, device, profiler, unreported, options); })) PrintNoReport();
  };
  if (!WithEnoughStack(report)) {
    PrintMessage("hbmprof: out of device memory; no report, because the stack is small and no thread can be started");
  }
}

}  // namespace

void RememberProfile(const Snapshot& snapshot) noexcept {
  try {
    auto profile = std::make_shared<LastProfile>();
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (sample.inuse_bytes == 0) continue;
      (*profile)[HolderKey(snapshot, sample.stack, sample.device, SpaceOf(sample.kind))] += sample.inuse_bytes;
    }
    std::shared_ptr<const LastProfile> kept = std::move(profile);
    LastProfileSlot& slot = last_profile.Get();
    MutexLock hold(slot.mutex);
    slot.profile.swap(kept);
  } catch (const std::exception&) {
    // The next report compares with an older profile.
  }
}

}  // namespace internal

[[gnu::noinline]] bool ReportOutOfMemory(const FailedAllocation& failure, Profiler& profiler) noexcept {
  const Caller caller = Caller::OfThisFunction();
  thread_local bool reporting = false;
  // A failure is an event. (That of a profiler that uses the injected library is an event of that one.)
  if (reporting || !profiler.enabled() || !internal::BeginEvent()) return false;
  const internal::KeptErrno kept_errno;
  const internal::NoCancellation no_cancellation;
  reporting = true;
  bool is_reported = false;
  try {
    const DeviceId device =
        failure.device.empty() ? internal::LargestDevice(profiler, failure.space) : profiler.Device(failure.device);
    const auto* const injected = internal::ProfilerAccess::InjectedOf(profiler);
    if (injected == nullptr) {
      // A size that is not known is recorded as 0.
      const auto bytes =
          static_cast<int64_t>(std::min<size_t>(failure.bytes.value_or(0), internal::LiveTable::kMaxBytes));
      internal::RecordFailure(internal::ProfilerAccess::ImplOf(profiler), caller, device, failure.space, bytes);
    }
    int64_t unreported = 0;
    if (injected != nullptr) {
      is_reported = Profiler::OptionsOfDefault().oom_report && injected->ReportOutOfMemory(failure, device, caller);
    } else if (internal::MayReport(device, &unreported)) {
      const DefaultOptions options = Profiler::OptionsOfDefault();
      is_reported = options.oom_report;
      if (is_reported) internal::ReportWithEnoughStack(failure, caller, device, profiler, unreported, options);
    }
  } catch (const std::exception&) {
    internal::PrintNoReport();
  }
  reporting = false;
  return is_reported;
}

}  // namespace hbmprof
