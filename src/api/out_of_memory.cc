#include "hbmprof/out_of_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/pprof.h"
#include "src/api/default_profiler.h"
#include "src/api/out_of_memory.h"
#include "src/api/output_file.h"
#include "src/api/recorder.h"
#include "src/api/recording.h"
#include "src/base/descriptor.h"
#include "src/base/hash.h"
#include "src/base/lazy.h"
#include "src/base/message.h"
#include "src/base/mutex.h"
#include "src/core/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/tags.h"
#include "src/export/out_of_memory_report.h"

namespace hbmprof {
namespace internal {
namespace {

constexpr size_t kReserveBytes = size_t{2} << 20;
constexpr int kMaxProfiles = 10;  // written by one process
constexpr std::chrono::minutes kInterval{1};

// Reserved host memory. It is unmapped before a report, so that malloc can get it.
std::atomic<void*> reserve{nullptr};

void TakeReserve() {
  void* const memory =
      mmap(nullptr, kReserveBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return;
  void* expected = nullptr;
  if (!reserve.compare_exchange_strong(expected, memory)) munmap(memory, kReserveBytes);
}

void GiveBackReserve() {
  if (void* const memory = reserve.exchange(nullptr)) munmap(memory, kReserveBytes);
}

// The last report of each device.
struct Limiter {
  std::atomic<uint64_t> key{0};         // a hash of the process and the device; 0: unused
  std::atomic<int64_t> next_millis{0};  // the earliest time of the next report (steady clock)
  std::atomic<int64_t> unreported{0};
};
Limiter limiters[64];

Limiter* LimiterOf(std::string_view device) {
  const uint64_t key = HashBytes(device.data(), device.size(), static_cast<uint64_t>(getpid())) |
                       1;  // a forked child has reported nothing
  for (Limiter& limiter : limiters) {
    uint64_t found = limiter.key.load(std::memory_order_acquire);
    if (found == 0 && limiter.key.compare_exchange_strong(found, key)) return &limiter;
    if (found == key) return &limiter;
  }
  return nullptr;
}

// Returns whether to report this failure. If so, no other failure of the device is reported for a minute, and
// `*unreported` is set to the number of failures since the last report.
bool MayReport(std::string_view device, int64_t* unreported) {
  Limiter* const limiter = LimiterOf(device);
  if (limiter == nullptr) return false;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t millis = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  int64_t next = limiter->next_millis.load();
  const int64_t later = millis + std::chrono::milliseconds(kInterval).count();
  if (millis < next || !limiter->next_millis.compare_exchange_strong(next, later)) {
    limiter->unreported.fetch_add(1);
    return false;
  }
  *unreported = limiter->unreported.exchange(0);
  return true;
}

// For each call stack and memory space: the bytes in use in the last written profile. Sorted by HolderKey.
struct LastProfile {
  std::vector<std::pair<uint64_t, int64_t>> bytes;
};
struct LastProfileSlot {
  Mutex mutex;
  std::shared_ptr<const LastProfile> profile ABSL_GUARDED_BY(mutex);
};
Lazy<LastProfileSlot> last_profile;

std::optional<int64_t> BytesBefore(const LastProfile& profile, uint64_t key) {
  const auto found = std::lower_bound(profile.bytes.begin(), profile.bytes.end(), std::make_pair(key, INT64_MIN));
  return found != profile.bytes.end() && found->first == key ? found->second : 0;
}

// Returns the tags of the calling thread, such as "model=llama, phase=decode".
std::string ThreadTags() {
  std::string text;
  for (const auto& [key, value] : TagsOf(current_tags)) {
    text.append(text.empty() ? "" : ", ").append(key).append("=").append(value);
  }
  return text;
}

std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? std::optional<int64_t>(number) : std::nullopt;
}

// Reads the limits of the host that apply to pinned memory. The limit of a control group is read only for the process's
// own group of version 2.
void ReadHostLimits(OutOfMemory* failure) {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && geteuid() != 0) {
    failure->memory_lock_limit = static_cast<int64_t>(limit.rlim_cur);
  }
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    const std::string group = "/sys/fs/cgroup" + line.substr(3);
    failure->cgroup_limit = NumberIn(group + "/memory.max");
    failure->cgroup_in_use = NumberIn(group + "/memory.current");
  }
}

// Writes the profile that goes with a report. Returns the report's line about this profile; "" if no profile is
// requested.
std::string WriteProfile(const Snapshot& snapshot, const std::string& pattern) {
  static std::atomic<int> written{0};
  if (pattern.empty()) return "";
  if (!HasFreeDisk(pattern)) return "  profile    none: less than 64 MiB of the disk are free\n";
  if (written.fetch_add(1) >= kMaxProfiles) return "  profile    none: this process has written ten\n";
  std::string path;
  const absl::StatusOr<std::string> bytes = SerializePprof(snapshot, &ElfSymbolizer());
  const absl::Status status =
      bytes.ok() ? WriteToPattern(pattern, Profiler::OptionsOfDefault().output_mode, *bytes, &path) : bytes.status();
  if (status.ok()) {
    const std::string flight = SaveFlightBeside(path);
    return "  profile    " + path + "\n" + (flight.empty() ? "" : "  events     " + flight + "\n");
  }
  const absl::string_view why = status.message();
  return std::string("  profile    none: ").append(why.data(), why.size()).append("\n");
}

// Returns the index of the device with this name in the snapshot; nullopt if nothing was ever recorded on it.
std::optional<uint32_t> DeviceIn(const Snapshot& snapshot, std::string_view name) {
  for (size_t i = 0; i < snapshot.devices.size(); ++i) {
    if (snapshot.devices[i].name == name) return static_cast<uint32_t>(i);
  }
  return std::nullopt;
}

// Returns the name of the process; "" if it is not known.
std::string NameOfProcess(int64_t pid) {
  std::string name = ReadProcFile(("/proc/" + std::to_string(pid) + "/comm").c_str());
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

// Returns the part of a report that needs a snapshot. Throws std::bad_alloc.
std::string SnapshotText(const OutOfMemory& failure, const Profiler& profiler, const std::string& output) {
  const ScopedMark mark(std::string("out of memory: ").append(failure.call));
  const Snapshot snapshot = profiler.TakeSnapshot();
  std::shared_ptr<const LastProfile> before;
  {
    LastProfileSlot& slot = last_profile.Get();
    MutexLock hold(slot.mutex);
    before = slot.profile;
  }
  std::function<std::optional<int64_t>(uint64_t)> bytes_before;
  if (before != nullptr) bytes_before = [&](uint64_t key) { return BytesBefore(*before, key); };
  std::string text;
  if (const std::optional<uint32_t> device = DeviceIn(snapshot, failure.device)) {
    text = OutOfMemoryKindsAndProcesses(snapshot, *device, &NameOfProcess);
    text += OutOfMemoryStacks(snapshot, *device, failure.space, &ElfSymbolizer(), bytes_before);
  }
  return text + WriteProfile(snapshot, output);
}

// Returns the name of the device that has the most bytes of `space` in use.
std::string LargestDevice(const Profiler& profiler, MemorySpace space) {
  std::string name = "unknown";
  int64_t most = -1;
  for (const Snapshot::Device& device : profiler.TakeSnapshot().devices) {
    const int64_t in_use = device.spaces[static_cast<int>(space)].bytes_in_use;
    if (in_use <= most) continue;
    most = in_use;
    name = device.name;
  }
  return name;
}

void Report(const FailedAllocation& failed, Profiler& profiler, int64_t unreported, const std::string& output) {
  OutOfMemory failure;
  failure.call = failed.call;
  if (failed.bytes) failure.requested = static_cast<int64_t>(std::min<size_t>(*failed.bytes, INT64_MAX));
  const std::string device = failed.device.empty() ? LargestDevice(profiler, failed.space) : std::string(failed.device);
  failure.device = device;
  failure.space = failed.space;
  failure.stats = profiler.Stats(profiler.Device(device), failed.space);
  failure.tags = ThreadTags();
  failure.unreported_failures = unreported;
  if (failed.space == MemorySpace::kPinnedHost) ReadHostLimits(&failure);
  std::string text = OutOfMemorySummary(failure);
  try {
    text.append(SnapshotText(failure, profiler, output));
  } catch (const std::exception&) {
    text.append("  call stacks: the host has no memory to list them\n");
  }
  text.pop_back();  // PrintMessage adds a line feed
  PrintMessage(text);
}

// Adds the failure to the recording. A failure without a device or a size is not recorded.
void RecordFailureOf(const FailedAllocation& failure, Profiler& profiler) {
  if (!profiler.enabled() || failure.device.empty() || ProfilerAccess::JoinedBy(profiler) != nullptr) return;
  const auto bytes = static_cast<int64_t>(std::min<size_t>(failure.bytes.value_or(0), LiveTable::kMaxBytes));
  RecordFailure(ProfilerAccess::ImplOf(profiler), profiler.Device(failure.device), failure.space, bytes);
}

}  // namespace

void ReserveForOutOfMemoryReports() { TakeReserve(); }

void RememberProfile(const Snapshot& snapshot) noexcept {
  try {
    auto profile = std::make_shared<LastProfile>();
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (sample.inuse_bytes != 0) {
        profile->bytes.emplace_back(HolderKey(snapshot, sample.stack, sample.device, SpaceOf(sample.kind)),
                                    sample.inuse_bytes);
      }
    }
    std::sort(profile->bytes.begin(), profile->bytes.end());
    auto last = profile->bytes.begin();
    for (auto next = last; next != profile->bytes.end(); ++next) {
      if (next == last) continue;
      if (next->first == last->first) {
        last->second += next->second;
      } else {
        *++last = *next;
      }
    }
    if (last != profile->bytes.end()) profile->bytes.erase(last + 1, profile->bytes.end());
    std::shared_ptr<const LastProfile> kept = std::move(profile);
    LastProfileSlot& slot = last_profile.Get();
    MutexLock hold(slot.mutex);
    slot.profile.swap(kept);
  } catch (const std::exception&) {
    // The next report compares with an older profile.
  }
}

}  // namespace internal

bool ReportOutOfMemory(const FailedAllocation& failure, Profiler& profiler) noexcept {
  thread_local bool reporting = false;
  int64_t unreported = 0;
  if (!reporting) internal::RecordFailureOf(failure, profiler);
  if (reporting || !profiler.enabled() || !internal::MayReport(failure.device, &unreported)) return false;
  const int error = errno;
  reporting = true;
  internal::GiveBackReserve();
  bool is_reported = false;
  try {
    const DefaultOptions options = Profiler::OptionsOfDefault();
    is_reported = options.oom_report;
    if (is_reported) internal::Report(failure, profiler, unreported, options.oom_output);
  } catch (const std::exception&) {
    internal::PrintMessage("hbmprof: out of device memory, and the host has no memory to report it");
  }
  internal::TakeReserve();
  reporting = false;
  errno = error;
  return is_reported;
}

}  // namespace hbmprof
