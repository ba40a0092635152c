#include "src/core/joined/joined.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/lazy.h"
#include "src/core/names.h"
#include "src/export/device_stats.h"

namespace hbmprof::internal {
namespace {

// The stacks of the injected library begin at `caller` while the object lives.
class ScopeThere {
 public:
  ScopeThere(const InjectedProfiler& injected, const Caller& caller)
      : injected_(injected), begun_(injected.begin_caller(caller.pc, caller.sp, caller.fp)) {}
  ~ScopeThere() { injected_.end_caller(begun_); }
  ScopeThere(const ScopeThere&) = delete;
  ScopeThere& operator=(const ScopeThere&) = delete;

 private:
  const InjectedProfiler& injected_;
  const int begun_;
};

const void* PointerOf(BufferId id) { return reinterpret_cast<const void*>(static_cast<uintptr_t>(id.value())); }

// The numbers of this copy's devices in the C interface. Device 0 is "GPU:0", which has the number 0 there too.
struct DeviceNames {
  NameTable table{"GPU:0", kMaxDevices};
};
Lazy<DeviceNames> device_names;
std::atomic<int> device_numbers[kMaxDevices] = {};

int NumberOf(DeviceId device) {
  return device_numbers[std::min(static_cast<int>(device), kMaxDevices - 1)].load(std::memory_order_relaxed);
}

hbmprof_attributes AttributesFor(const Attributes& given) {
  hbmprof_attributes attributes = {};
  attributes.struct_size = sizeof(attributes);
  attributes.device = NumberOf(given.device);
  attributes.kind = static_cast<int>(given.kind);
  attributes.allocator = static_cast<int>(given.allocator);
  return attributes;
}
hbmprof_attributes AttributesFor(const Pool& pool) { return AttributesFor({pool.device, {}, pool.allocator}); }

std::optional<int64_t> Ended(int is_ended) { return is_ended != 0 ? std::optional<int64_t>(0) : std::nullopt; }

void Read(int64_t value, int64_t* field) { *field = value; }
void Read(int64_t value, std::optional<int64_t>* field) {
  if (value != HBMPROF_NOT_KNOWN) *field = value;
}

DeviceStats StatsOf(const InjectedProfiler& injected, int device, int space) {
  hbmprof_stats all = {};
  all.struct_size = sizeof(all);
  if (injected.get_space_stats(device, space, &all) == HBMPROF_RESOURCE_EXHAUSTED) throw std::bad_alloc();
  DeviceStats stats;
#define HBMPROF_NUMBER(name, ...) Read(all.name, &stats.name);
#define HBMPROF_SCOPE(name)
  HBMPROF_DEVICE_STATS(HBMPROF_NUMBER, HBMPROF_SCOPE)
#undef HBMPROF_NUMBER
#undef HBMPROF_SCOPE
  stats.driver_scope = all.driver_is_process != 0 ? DriverScope::kProcess : DriverScope::kDevice;
  return stats;
}

}  // namespace

bool Joined::RecordAlloc(Caller caller, BufferId id, size_t bytes, uint64_t attributes) const {
  const ScopeThere scope(injected_, caller);
  const hbmprof_attributes with = AttributesFor(UnpackAttributes(attributes));
  return injected_.record_alloc_with(PointerOf(id), bytes, &with) != 0;
}

bool Joined::RecordSegment(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) const {
  const ScopeThere scope(injected_, caller);
  const hbmprof_attributes with = AttributesFor(pool);
  return injected_.record_segment(PointerOf(address), bytes, &with) != 0;
}

bool Joined::RecordBlock(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) const {
  const ScopeThere scope(injected_, caller);
  const hbmprof_attributes with = AttributesFor(pool);
  return injected_.record_block(PointerOf(address), bytes, &with) != 0;
}

std::optional<int64_t> Joined::RecordFree(BufferId id) const { return Ended(injected_.record_free(PointerOf(id))); }

std::optional<int64_t> Joined::RecordSegmentFree(const Pool& pool, BufferId address) const {
  const hbmprof_attributes with = AttributesFor(pool);
  return Ended(injected_.record_segment_free(PointerOf(address), &with));
}

std::optional<int64_t> Joined::RecordBlockFree(const Pool& pool, BufferId address) const {
  const hbmprof_attributes with = AttributesFor(pool);
  return Ended(injected_.record_block_free(PointerOf(address), &with));
}

bool Joined::RecordResize(BufferId id, size_t bytes) const {
  return injected_.record_resize(PointerOf(id), bytes) != 0;
}

bool Joined::RecordBlockResize(const Pool& pool, BufferId address, size_t bytes) const {
  const hbmprof_attributes with = AttributesFor(pool);
  return injected_.record_block_resize(PointerOf(address), bytes, &with) != 0;
}

void Joined::RecordDropped(size_t /*bytes*/) const {
  const hbmprof_attributes without_size = {};  // the C interface counts such an allocation as dropped
  static_cast<void>(injected_.record_alloc_with(nullptr, 0, &without_size));
}

DeviceId Joined::Device(std::string_view name) const {
  const int device = device_names.Get().table.NumberOf(name);
  if (device != 0) device_numbers[device].store(injected_.device(std::string(name).c_str()), std::memory_order_relaxed);
  return DeviceId(device);
}

AllocatorId Joined::Allocator(std::string_view name) const {
  return AllocatorId(std::max(injected_.allocator(std::string(name).c_str()), 0));
}

void Joined::SetCounter(std::string_view name, int64_t value) const {
  injected_.set_counter(std::string(name).c_str(), value);
}

DeviceStats Joined::Stats(DeviceId device, MemorySpace space) const {
  return StatsOf(injected_, NumberOf(device), static_cast<int>(space));
}

TrackerStats Joined::GetTrackerStats() const {
  hbmprof_tracker_stats all = {};
  all.struct_size = sizeof(all);
  if (injected_.get_tracker_stats(&all) == HBMPROF_RESOURCE_EXHAUSTED) throw std::bad_alloc();
  TrackerStats stats;
  stats.foreign_frees = all.foreign_frees;
  stats.refused_frees = all.refused_frees;
  stats.replaced_records = all.replaced_records;
  stats.dropped_records = all.dropped_records;
  stats.dropped_bytes = all.dropped_bytes;
  stats.reentrant_events = all.reentrant_events;
  stats.truncated_stacks = all.truncated_stacks;
  stats.dropped_tag_values = all.dropped_tag_values;
  stats.live_records = all.live_records;
  stats.sites = all.sites;
  stats.host_bytes = all.host_bytes;
  stats.max_host_bytes = all.max_host_bytes;
  return stats;
}

Snapshot Joined::TakeSnapshot() const {
  Snapshot snapshot;
  snapshot.warnings.emplace_back(
      "This snapshot has no call stacks, because the program runs under `hbmprof run`: save_device_memory_profile, "
      "device_memory_profile and AnswerHttpGet have them");
  snapshot.allocators.emplace_back();
  snapshot.time_unix_nanos =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  snapshot.process_id = getpid();
  snapshot.tracker = GetTrackerStats();
  int numbers[2 * kMaxDevices];
  const int count = injected_.devices(numbers, static_cast<int>(std::size(numbers)));
  if (count < 0) throw std::bad_alloc();
  for (int i = 0; i < count; ++i) {
    char name[65] = "";
    if (injected_.device_name(numbers[i], name, sizeof(name)) < 0) throw std::bad_alloc();
    Snapshot::Device& device = snapshot.devices.emplace_back();
    device.name = name;
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      device.spaces[space] = StatsOf(injected_, numbers[i], space);
    }
  }
  return snapshot;
}

void Joined::ResetPeak(DeviceId device) const { injected_.reset_peak(NumberOf(device)); }
void Joined::DropDevice(DeviceId device, std::optional<AllocatorId>, const std::vector<BufferId>&) const {
  injected_.drop_device(NumberOf(device));
}

absl::Status Joined::StatusOf(int code) const {
  return code == HBMPROF_OK ? absl::OkStatus()
                            : absl::Status(static_cast<absl::StatusCode>(code), injected_.last_error());
}

HttpAnswer Joined::AnswerGet(std::string_view target) const {
  hbmprof_http_answer given = {};
  given.struct_size = sizeof(given);
  if (injected_.answer_http_get(std::string(target).c_str(), &given) != HBMPROF_OK) throw std::bad_alloc();
  HttpAnswer answer = {given.status, given.content_type, std::string(given.body, given.size)};
  injected_.free_http_answer(&given);
  return answer;
}

absl::StatusOr<std::string> Joined::Profile(const PprofOptions& options) const {
  HttpAnswer answer =
      AnswerGet(absl::StrCat("/debug/pprof/heap?max_samples=", options.max_samples, "&max_bytes=", options.max_bytes));
  constexpr int kBadRequest = 400;
  if (answer.status == 200) return std::move(answer.body);
  return answer.status == kBadRequest ? absl::InvalidArgumentError(answer.body)
                                      : absl::ResourceExhaustedError(answer.body);
}

absl::Status Joined::SaveProfile(std::string_view path) const {
  return StatusOf(injected_.save_device_memory_profile(std::string(path).c_str()));
}

absl::Status Joined::StartRecording(std::string_view path) const {
  return StatusOf(injected_.start_recording(std::string(path).c_str()));
}
absl::Status Joined::StopRecording() const { return StatusOf(injected_.stop_recording()); }
absl::Status Joined::SaveFlightRecording(std::string_view path) const {
  return StatusOf(injected_.save_flight_recording(std::string(path).c_str()));
}

bool Joined::ReportOutOfMemory(const FailedAllocation& failure, DeviceId device, const Caller& caller) const {
  const ScopeThere scope(injected_, caller);
  const int64_t bytes =
      failure.bytes.has_value() ? static_cast<int64_t>(std::min<size_t>(*failure.bytes, INT64_MAX)) : -1;
  return injected_.report_out_of_memory(std::string(failure.call).c_str(), bytes, NumberOf(device),
                                        static_cast<int>(failure.space)) != 0;
}

}  // namespace hbmprof::internal
