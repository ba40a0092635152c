// The functions of InjectedProfiler: they convert arguments and results.
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/lazy.h"
#include "src/base/utc_time.h"
#include "src/core/injected/injected.h"
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

bool InjectedProfiler::RecordAlloc(Caller caller, BufferId id, size_t bytes, uint64_t attributes) const {
  const ScopeThere scope(*this, caller);
  const hbmprof_attributes with = AttributesFor(UnpackAttributes(attributes));
  return record_alloc_with(PointerOf(id), bytes, &with) != 0;
}

bool InjectedProfiler::RecordSegment(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) const {
  const ScopeThere scope(*this, caller);
  const hbmprof_attributes with = AttributesFor(pool);
  return record_segment(PointerOf(address), bytes, &with) != 0;
}

bool InjectedProfiler::RecordBlock(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) const {
  const ScopeThere scope(*this, caller);
  const hbmprof_attributes with = AttributesFor(pool);
  return record_block(PointerOf(address), bytes, &with) != 0;
}

std::optional<int64_t> InjectedProfiler::RecordFree(BufferId id) const { return Ended(record_free(PointerOf(id))); }

std::optional<int64_t> InjectedProfiler::RecordSegmentFree(const Pool& pool, BufferId address) const {
  const hbmprof_attributes with = AttributesFor(pool);
  return Ended(record_segment_free(PointerOf(address), &with));
}

std::optional<int64_t> InjectedProfiler::RecordBlockFree(const Pool& pool, BufferId address) const {
  const hbmprof_attributes with = AttributesFor(pool);
  return Ended(record_block_free(PointerOf(address), &with));
}

bool InjectedProfiler::RecordResize(BufferId id, size_t bytes) const {
  return record_resize(PointerOf(id), bytes) != 0;
}

bool InjectedProfiler::RecordBlockResize(const Pool& pool, BufferId address, size_t bytes) const {
  const hbmprof_attributes with = AttributesFor(pool);
  return record_block_resize(PointerOf(address), bytes, &with) != 0;
}

DeviceId InjectedProfiler::Device(std::string_view name) const {
  const int number = device_names.Get().table.NumberOf(name);
  if (number != 0) device_numbers[number].store(device(std::string(name).c_str()), std::memory_order_relaxed);
  return DeviceId(number);
}

AllocatorId InjectedProfiler::Allocator(std::string_view name) const {
  return AllocatorId(std::max(allocator(std::string(name).c_str()), 0));
}

void InjectedProfiler::SetCounter(std::string_view name, int64_t value) const {
  set_counter(std::string(name).c_str(), value);
}

DeviceStats InjectedProfiler::Stats(DeviceId device, MemorySpace space) const {
  return StatsOf(*this, NumberOf(device), static_cast<int>(space));
}

TrackerStats InjectedProfiler::GetTrackerStats() const {
  hbmprof_tracker_stats all = {};
  all.struct_size = sizeof(all);
  if (get_tracker_stats(&all) == HBMPROF_RESOURCE_EXHAUSTED) throw std::bad_alloc();
  TrackerStats stats;
#define HBMPROF_NUMBER(name) stats.name = all.name;
  HBMPROF_TRACKER_STATS(HBMPROF_NUMBER)
#undef HBMPROF_NUMBER
  return stats;
}

Snapshot InjectedProfiler::TakeSnapshot() const {
  Snapshot snapshot;
  snapshot.warnings.emplace_back(
      "This snapshot has no call stacks, because the program runs under `hbmprof run`: save_device_memory_profile, "
      "device_memory_profile and AnswerHttpGet have them");
  snapshot.allocators.emplace_back();
  snapshot.time_unix_nanos = UnixNanos();
  snapshot.process_id = getpid();
  snapshot.tracker = GetTrackerStats();
  int numbers[2 * kMaxDevices];
  const int count = devices(numbers, static_cast<int>(std::size(numbers)));
  if (count < 0) throw std::bad_alloc();
  for (int i = 0; i < count; ++i) {
    char name[65] = "";
    if (device_name(numbers[i], name, sizeof(name)) < 0) throw std::bad_alloc();
    Snapshot::Device& entry = snapshot.devices.emplace_back();
    entry.name = name;
    for (int space = 0; space < kMemorySpaceCount; ++space) entry.spaces[space] = StatsOf(*this, numbers[i], space);
  }
  return snapshot;
}

void InjectedProfiler::ResetPeak(DeviceId device) const { reset_peak(NumberOf(device)); }
void InjectedProfiler::EndDevice(DeviceId device, std::optional<AllocatorId>, const std::vector<BufferId>&) const {
  drop_device(NumberOf(device));
}

absl::Status InjectedProfiler::StatusOf(int code) const {
  return code == HBMPROF_OK ? absl::OkStatus() : absl::Status(static_cast<absl::StatusCode>(code), last_error());
}

HttpAnswer InjectedProfiler::AnswerGet(std::string_view target) const {
  hbmprof_http_answer given = {};
  given.struct_size = sizeof(given);
  if (answer_http_get(std::string(target).c_str(), &given) != HBMPROF_OK) throw std::bad_alloc();
  const auto free = [this](hbmprof_http_answer* answer) { free_http_answer(answer); };
  const std::unique_ptr<hbmprof_http_answer, decltype(free)> freed(&given, free);  // also if a copy throws
  return {given.status, given.content_type, std::string(given.body, given.size)};
}

absl::StatusOr<std::string> InjectedProfiler::Profile(const PprofOptions& options) const {
  HttpAnswer answer =
      AnswerGet(absl::StrCat("/debug/pprof/heap?max_samples=", options.max_samples, "&max_bytes=", options.max_bytes));
  constexpr int kOk = 200, kBadRequest = 400;
  if (answer.status == kOk) return std::move(answer.body);
  return answer.status == kBadRequest ? absl::InvalidArgumentError(answer.body)
                                      : absl::ResourceExhaustedError(answer.body);
}

std::string InjectedProfiler::ExitProfile() const {
  uint8_t* bytes = nullptr;
  size_t size = 0;
  if (exit_profile(&bytes, &size) != HBMPROF_OK) throw std::bad_alloc();
  const std::unique_ptr<uint8_t, decltype(free_profile)> freed(bytes, free_profile);
  return std::string(reinterpret_cast<const char*>(bytes), size);
}

absl::Status InjectedProfiler::SaveProfile(std::string_view path) const {
  return StatusOf(save_device_memory_profile(std::string(path).c_str()));
}

absl::Status InjectedProfiler::StartRecording(std::string_view path) const {
  return StatusOf(start_recording(std::string(path).c_str()));
}
absl::Status InjectedProfiler::StopRecording() const { return StatusOf(stop_recording()); }
absl::Status InjectedProfiler::SaveFlightRecording(std::string_view path) const {
  return StatusOf(save_flight_recording(std::string(path).c_str()));
}

bool InjectedProfiler::ReportOutOfMemory(const FailedAllocation& failure, DeviceId device, const Caller& caller) const {
  const ScopeThere scope(*this, caller);
  const int64_t bytes =
      failure.bytes.has_value() ? static_cast<int64_t>(std::min<size_t>(*failure.bytes, INT64_MAX)) : -1;
  return report_out_of_memory(std::string(failure.call).c_str(), bytes, NumberOf(device),
                              static_cast<int>(failure.space)) != 0;
}

}  // namespace hbmprof::internal
