#include "hbmprof/c_api.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/http.h"
#include "hbmprof/options.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/recording.h"
#include "src/api/public/c_calls.h"
#include "src/api/public/default_profiler.h"
#include "src/base/fork.h"
#include "src/base/per_thread.h"
#include "src/base/thread_state.h"
#include "src/capture/given_stack.h"
#include "src/core/scoped_caller.h"
#include "src/core/snapshot_builder.h"
#include "src/core/tables/site_table.h"
#include "src/core/tables/tags.h"
#include "src/export/device_stats.h"

using hbmprof::Attributes;
using hbmprof::Caller;
using hbmprof::Pool;
using hbmprof::Profiler;
using hbmprof::internal::DeviceNumber;
using hbmprof::internal::HasBytes;
using hbmprof::internal::IsDevice;
using hbmprof::internal::PerThread;
using hbmprof::internal::WithAttributes;
using hbmprof::internal::WithDefault;
using hbmprof::internal::WithPool;

namespace {

constexpr int kOrdinals = 63;      // the numbers 0 to 62: "GPU:N"
constexpr int kFirstNamed = 64;    // hbmprof_device() returns this plus the DeviceId
constexpr int kNamedDevices = 64;  // the largest number of devices of a profiler
constexpr int kMaxTagDepth = 64;

// The tags of a thread before each of its pushes. It lies in the static TLS block, so that it needs no malloc, also if
// the library is part of a plugin. It is small, because plugins share the little space that is left in that block.
struct TagStack {
  int depth;  // may exceed kMaxTagDepth; only pushes below it took effect
  uint16_t outer[kMaxTagDepth];
};
static_assert(hbmprof::internal::kMaxTagSets - 1 <= UINT16_MAX);
__thread TagStack tag_stack __attribute__((tls_model("initial-exec"))) = {};

// The text of the thread's last error. If the host has no memory for it, hbmprof_last_error returns "".
struct ErrorText {
  char bytes[1024];
};
PerThread<ErrorText> last_error;

// `prefix` may be empty.
void SetLastError(std::string_view prefix, std::string_view message) {
  ErrorText* const text = last_error.Get();
  if (text == nullptr) return;
  constexpr size_t kMaxBytes = sizeof(text->bytes) - 1;
  const size_t prefix_bytes = prefix.copy(text->bytes, kMaxBytes);
  const size_t message_bytes = message.copy(text->bytes + prefix_bytes, kMaxBytes - prefix_bytes);
  text->bytes[prefix_bytes + message_bytes] = '\0';
}

// The DeviceId of "GPU:N" plus one; 0 if it is not known yet. The last element is for all numbers that belong to no
// device.
std::atomic<uint32_t> known_devices[kOrdinals + 1] = {};

bool IsNamed(int device) { return device >= kFirstNamed && device < kFirstNamed + kNamedDevices; }

int Fail(const absl::Status& status) {
  const absl::string_view message = status.message();
  SetLastError({}, {message.data(), message.size()});
  return static_cast<int>(status.code());
}

int Status(const absl::Status& status) { return status.ok() ? HBMPROF_OK : Fail(status); }

int InvalidArgument(const char* function, const std::string& problem) {
  return Fail(absl::InvalidArgumentError(function + (": " + problem)));
}

int NoHostMemory(const char* function) {
  SetLastError(function, ": the host has no memory");
  return HBMPROF_RESOURCE_EXHAUSTED;
}

// Writes the fields that the caller's struct has.
template <typename Struct>
void Fill(Struct* given, Struct all) {
  all.struct_size = given->struct_size;
  std::memcpy(given, &all, std::min(given->struct_size, sizeof(all)));
}

// Returns `all`, in which the fields that the caller's struct has are replaced by the caller's values.
template <typename Struct>
Struct Overlay(Struct all, const Struct* given) {
  std::memcpy(&all, given, std::min(given->struct_size, sizeof(all)));
  return all;
}

// `text` is the value of the environment variable, or empty. The result is valid until the variable changes.
const char* CopyForProcess(const std::string& text, const char* variable) {
  const char* const value = secure_getenv(variable);
  return value != nullptr && text == value ? value : "";
}

hbmprof_options FromEnvironment() {
  std::vector<std::string> problems;
  const hbmprof::DefaultOptions options = hbmprof::OptionsFromEnvironment(&problems);
  hbmprof::internal::PrintOptionProblems(problems);
  hbmprof_options all = {};
#define SWITCH(variable, field) all.field = options.field ? 1 : 0;
#define TEXT(variable, field) all.field = CopyForProcess(options.field, variable);
#define NUMBER(variable, field, least, most) all.field = options.field;
#define NUMBER_OR_0 NUMBER
#define PAIR(variable, field, least, most, unit, second, second_least, second_most) \
  all.field = options.field;                                                        \
  all.second = options.second;
#include "src/api/public/options.inc"
  all.unwinder = static_cast<int>(options.unwinder);
  return all;
}

// Calls find(profiler) and returns its result, the number of a name. Returns -1 if the thread is inside the tracker, or
// if the host has no memory.
template <typename Find>
int NumberOf(const Find& find) try {
  if (!hbmprof::internal::ReentryGuard().entered()) return -1;
  return static_cast<int>(find(Profiler::Default()));
} catch (const std::bad_alloc&) {
  return -1;
}

// Returns N if `name` is "GPU:N" and N is the number of a device. Otherwise returns -1.
int OrdinalOf(const char* name) {
  int ordinal = -1;
  const bool is_number = name != nullptr && std::strncmp(name, "GPU:", 4) == 0 && absl::SimpleAtoi(name + 4, &ordinal);
  if (!is_number || ordinal < 0 || ordinal >= kOrdinals) return -1;
  return name == "GPU:" + std::to_string(ordinal) ? ordinal : -1;  // not "GPU:07"
}

std::vector<hbmprof::Snapshot::Device> DevicesNow() {
  using hbmprof::internal::SnapshotParts;
  return hbmprof::internal::SnapshotOf(Profiler::Default(), SnapshotParts::kDevices).devices;
}

}  // namespace

bool hbmprof::internal::IsDevice(int device) { return IsNamed(device) || (device >= 0 && device < kOrdinals); }

hbmprof::DeviceId hbmprof::internal::DeviceNumber(int device) {
  if (IsNamed(device)) return DeviceId(device - kFirstNamed);
  const int index = IsDevice(device) ? device : kOrdinals;
  std::atomic<uint32_t>& known = known_devices[index];
  uint32_t id_plus_one = known.load(std::memory_order_relaxed);
  if (id_plus_one == 0) {
    // If the thread is inside the tracker, nothing is recorded and no name is looked up: the thread may hold the lock
    // of the names.
    if (!ReentryGuard().entered()) return kDefaultDevice;
    char name[16] = "unknown";
    if (index < kOrdinals) std::snprintf(name, sizeof(name), "GPU:%d", index);
    id_plus_one = static_cast<uint32_t>(Profiler::Default().Device(name)) + 1;
    known.store(id_plus_one, std::memory_order_relaxed);
  }
  return DeviceId(id_plus_one - 1);
}

Attributes hbmprof::internal::ToAttributes(const hbmprof_attributes* given) {
  hbmprof_attributes all = {};
  if (given != nullptr) all = Overlay(all, given);
  Attributes attributes;
  attributes.device = DeviceNumber(all.device);
  if (all.kind >= 0 && all.kind < kMemoryKindCount) attributes.kind = MemoryKind(all.kind);
  if (all.allocator >= 0 && all.allocator < kMaxAllocators) attributes.allocator = AllocatorId(all.allocator);
  return attributes;
}

extern "C" {

const char* hbmprof_last_error(void) {
  const ErrorText* const text = last_error.Find();
  return text != nullptr ? text->bytes : "";
}

int hbmprof_options_from_environment(hbmprof_options* options) try {
  if (!HasBytes(options, HBMPROF_END_OF(hbmprof_options, enabled))) {
    return InvalidArgument(__func__, "options is null or its struct_size is not set");
  }
  Fill(options, FromEnvironment());
  return HBMPROF_OK;
} catch (const std::bad_alloc&) {
  return NoHostMemory(__func__);
}

int hbmprof_init(const hbmprof_options* options) try {
  if (!HasBytes(options, HBMPROF_END_OF(hbmprof_options, enabled))) {
    return InvalidArgument(__func__, "options is null or its struct_size is not set");
  }
  const hbmprof_options all = Overlay(FromEnvironment(), options);
  if (all.unwinder != HBMPROF_UNWINDER_AUTO && all.unwinder != HBMPROF_UNWINDER_FRAME_POINTER &&
      all.unwinder != HBMPROF_UNWINDER_NONE) {
    return InvalidArgument(__func__, "unwinder is " + std::to_string(all.unwinder) + ", not 0, 1 or 3");
  }
  // The options that the struct does not have are those of the environment. FromEnvironment has printed the problems.
  std::vector<std::string> problems;
  hbmprof::DefaultOptions chosen = hbmprof::OptionsFromEnvironment(&problems);
#define SWITCH(variable, field) chosen.field = all.field != 0;
#define TEXT(variable, field) chosen.field = all.field != nullptr ? all.field : "";
#define NUMBER(variable, field, least, most) chosen.field = all.field;
#define NUMBER_OR_0 NUMBER
#define PAIR(variable, field, least, most, unit, second, second_least, second_most) \
  chosen.field = all.field;                                                         \
  chosen.second = all.second;
#include "src/api/public/options.inc"
  chosen.unwinder = hbmprof::Unwinder(all.unwinder);
  const absl::Status made = Profiler::InitDefault(chosen);
  return Status(absl::Status(made.code(), absl::StrReplaceAll(made.message(), {{"Profiler::InitDefault", __func__}})));
} catch (const std::bad_alloc&) {
  return NoHostMemory(__func__);
}

void hbmprof_set_enabled(int enabled) {
  WithDefault([&](Profiler& profiler) { profiler.SetEnabled(enabled != 0); });
}

int hbmprof_enabled(void) {
  return WithDefault([](const Profiler& profiler) { return profiler.enabled(); });
}

int hbmprof_device(const char* name) {
  if (const int ordinal = OrdinalOf(name); ordinal >= 0) return ordinal;
  const int number = NumberOf([&](Profiler& profiler) { return profiler.Device(name); });
  return number < 0 ? number : kFirstNamed + number;
}

int hbmprof_devices(int* devices, int capacity) try {
  if (!hbmprof::internal::ReentryGuard().entered()) return -1;
  int count = 0;
  for (const hbmprof::Snapshot::Device& device : DevicesNow()) {
    if (std::none_of(std::begin(device.spaces), std::end(device.spaces), hbmprof::internal::IsUsed)) continue;
    const int number = hbmprof_device(device.name.c_str());
    if (number < 0) return -1;
    if (devices != nullptr && count < capacity) devices[count] = number;
    ++count;
  }
  return count;
} catch (const std::bad_alloc&) {
  return -1;
}

int hbmprof_device_name(int device, char* name, size_t capacity) try {
  if (!hbmprof::internal::ReentryGuard().entered()) return -1;
  std::string found;
  if (IsDevice(device) && !IsNamed(device)) {
    found = "GPU:" + std::to_string(device);
  } else {
    for (const hbmprof::Snapshot::Device& of_snapshot : DevicesNow()) {
      if (hbmprof_device(of_snapshot.name.c_str()) == device) found = of_snapshot.name;
    }
    if (found.empty()) return -1;
  }
  if (name != nullptr && capacity > 0) name[found.copy(name, capacity - 1)] = '\0';
  return static_cast<int>(found.size());
} catch (const std::bad_alloc&) {
  return -1;
}

int hbmprof_allocator(const char* name) {
  return NumberOf([&](Profiler& profiler) { return profiler.Allocator(name); });
}

const void* hbmprof_handle(int name_space, uint64_t handle) try {
  using hbmprof::BufferId;
  constexpr int kHandleBits = 57;
  static_assert(sizeof(void*) == sizeof(uint64_t), "a pointer holds a name space and a handle");
  if (name_space < BufferId::kFirstNameSpace || name_space > BufferId::kLastNameSpace) {
    InvalidArgument(__func__, "name_space is " + std::to_string(name_space) + ", not 32 to 63");
    return nullptr;
  }
  if (handle >> kHandleBits != 0) {
    InvalidArgument(__func__, "handle is " + std::to_string(handle) + ", not less than 2^57");
    return nullptr;
  }
  return reinterpret_cast<const void*>(BufferId::Handle(static_cast<uint8_t>(name_space), handle).value());
} catch (const std::bad_alloc&) {
  return nullptr;
}

// Each function that captures a stack is not inlined, so that the stack begins at its caller.

[[gnu::noinline]] int hbmprof_record_alloc(const void* ptr, size_t bytes, int device) {
  const Caller caller = Caller::OfThisFunction();
  return WithDefault([&](Profiler& profiler) {
    return profiler.enabled() && profiler.RecordAllocFrom(caller, ptr, bytes, {DeviceNumber(device)});
  });
}

[[gnu::noinline]] int hbmprof_record_alloc_with(const void* ptr, size_t bytes, const hbmprof_attributes* attributes) {
  const Caller caller = Caller::OfThisFunction();
  return WithAttributes(attributes, /*is_allocation=*/true, [&](Profiler& profiler, const Attributes& with) {
    return profiler.RecordAllocFrom(caller, ptr, bytes, with);
  });
}

int hbmprof_record_alloc_stack(const void* ptr, size_t bytes, const hbmprof_attributes* attributes,
                               const uintptr_t* return_addresses, size_t count) {
  if (return_addresses == nullptr || count == 0) return hbmprof_record_alloc_with(ptr, bytes, attributes);
  return WithAttributes(attributes, /*is_allocation=*/true, [&](Profiler& profiler, const Attributes& with) {
    return profiler.RecordAllocFrom(hbmprof::internal::CallerOfStack(return_addresses, count), ptr, bytes, with);
  });
}

[[gnu::noinline]] int hbmprof_record_segment(const void* address, size_t bytes, const hbmprof_attributes* attributes) {
  const Caller caller = Caller::OfThisFunction();
  return WithPool(attributes, /*is_allocation=*/true, [&](Profiler& profiler, const Pool& pool) {
    return profiler.RecordSegmentFrom(caller, pool, address, bytes);
  });
}

[[gnu::noinline]] int hbmprof_record_block(const void* address, size_t bytes, const hbmprof_attributes* attributes) {
  const Caller caller = Caller::OfThisFunction();
  return WithPool(attributes, /*is_allocation=*/true, [&](Profiler& profiler, const Pool& pool) {
    return profiler.RecordBlockFrom(caller, pool, address, bytes);
  });
}

int hbmprof_record_free(const void* ptr) {
  return WithDefault([&](Profiler& profiler) { return profiler.RecordFree(ptr).has_value(); });
}

int hbmprof_record_segment_free(const void* address, const hbmprof_attributes* attributes) {
  return WithPool(attributes, /*is_allocation=*/false, [&](Profiler& profiler, const Pool& pool) {
    return profiler.RecordSegmentFree(pool, address).has_value();
  });
}

int hbmprof_record_block_free(const void* address, const hbmprof_attributes* attributes) {
  return WithPool(attributes, /*is_allocation=*/false, [&](Profiler& profiler, const Pool& pool) {
    return profiler.RecordBlockFree(pool, address).has_value();
  });
}

void hbmprof_record_refused_free(void) {
  WithDefault([](Profiler& profiler) { profiler.RecordRefusedFree(); });
}

int hbmprof_record_resize(const void* ptr, size_t bytes) {
  return WithDefault([&](Profiler& profiler) { return profiler.RecordResize(ptr, bytes); });
}

int hbmprof_record_block_resize(const void* address, size_t bytes, const hbmprof_attributes* attributes) {
  return WithPool(attributes, /*is_allocation=*/false, [&](Profiler& profiler, const Pool& pool) {
    return profiler.RecordBlockResize(pool, address, bytes);
  });
}

void hbmprof_drop_device(int device) {
  if (!IsDevice(device)) return;
  WithDefault([&](Profiler& profiler) { profiler.DropDevice(DeviceNumber(device)); });
}

void hbmprof_tag_push(const char* key, const char* value) {
  if (tag_stack.depth++ >= kMaxTagDepth) return;
  tag_stack.outer[tag_stack.depth - 1] = static_cast<uint16_t>(hbmprof::internal::BeginTag(key, value));
}

void hbmprof_tag_pop(void) {
  if (tag_stack.depth == 0) return;
  if (--tag_stack.depth < kMaxTagDepth) hbmprof::internal::EndTag(tag_stack.outer[tag_stack.depth]);
}

int hbmprof_begin_caller(uintptr_t pc, uintptr_t sp, uintptr_t fp) {
  return static_cast<int>(hbmprof::internal::BeginCaller({pc, sp, fp}));
}
void hbmprof_end_caller(int begun) { hbmprof::internal::EndCaller(static_cast<uint32_t>(begun)); }

void hbmprof_set_counter(const char* name, int64_t value) { hbmprof::SetCounter(name, value); }

int hbmprof_start_recording(const char* path) {
  return path == nullptr ? InvalidArgument(__func__, "path is null") : Status(hbmprof::StartRecording(path));
}
int hbmprof_stop_recording(void) { return Status(hbmprof::StopRecording()); }
int hbmprof_save_flight_recording(const char* path) {
  return path == nullptr ? InvalidArgument(__func__, "path is null") : Status(hbmprof::SaveFlightRecording(path));
}
void hbmprof_log_memory(const char* label) { hbmprof::LogMemory(label == nullptr ? "" : label); }

// `function` is the name of the caller, for messages.
static int GetStats(const char* function, int device, int space, hbmprof_stats* stats) try {
  if (!HasBytes(stats, HBMPROF_END_OF(hbmprof_stats, bytes_in_use))) {
    return InvalidArgument(function, "stats is null or its struct_size is not set");
  }
  if (!IsDevice(device)) {
    return InvalidArgument(function, "device " + std::to_string(device) +
                                         " is neither 0 to 62 nor a number that hbmprof_device() returned");
  }
  if (space < 0 || space >= hbmprof::kMemorySpaceCount) {
    return InvalidArgument(function, "space " + std::to_string(space) + " is not one of enum hbmprof_space");
  }
  if (hbmprof::internal::IsOff()) return Fail(absl::FailedPreconditionError(hbmprof::internal::kOffText));
  const hbmprof::DeviceStats of_device = Profiler::Default().Stats(DeviceNumber(device), hbmprof::MemorySpace(space));
  const auto known = [](std::optional<int64_t> value) { return value.value_or(HBMPROF_NOT_KNOWN); };
  hbmprof_stats all = {};
#define HBMPROF_NUMBER(name, ...) all.name = known(of_device.name);
#define HBMPROF_SCOPE(name) all.driver_is_process = of_device.name == hbmprof::DriverScope::kProcess ? 1 : 0;
  HBMPROF_DEVICE_STATS(HBMPROF_NUMBER, HBMPROF_SCOPE)
#undef HBMPROF_NUMBER
#undef HBMPROF_SCOPE
  Fill(stats, all);
  return HBMPROF_OK;
} catch (const std::bad_alloc&) {
  return NoHostMemory(function);
}

int hbmprof_get_stats(int device, hbmprof_stats* stats) {
  return GetStats(__func__, device, HBMPROF_SPACE_DEVICE, stats);
}

int hbmprof_get_space_stats(int device, int space, hbmprof_stats* stats) {
  return GetStats(__func__, device, space, stats);
}

int hbmprof_get_tracker_stats(hbmprof_tracker_stats* stats) try {
  if (!HasBytes(stats, HBMPROF_END_OF(hbmprof_tracker_stats, foreign_frees))) {
    return InvalidArgument(__func__, "stats is null or its struct_size is not set");
  }
  if (hbmprof::internal::IsOff()) return Fail(absl::FailedPreconditionError(hbmprof::internal::kOffText));
  const hbmprof::TrackerStats of_tracker = Profiler::Default().GetTrackerStats();
  hbmprof_tracker_stats all = {};
#define HBMPROF_NUMBER(name) all.name = of_tracker.name;
  HBMPROF_TRACKER_STATS(HBMPROF_NUMBER)
#undef HBMPROF_NUMBER
  Fill(stats, all);
  return HBMPROF_OK;
} catch (const std::bad_alloc&) {
  return NoHostMemory(__func__);
}

void hbmprof_reset_peak(int device) {
  if (!IsDevice(device)) return;
  WithDefault([&](Profiler& profiler) { profiler.ResetPeak(DeviceNumber(device)); });
}

[[gnu::noinline]] int hbmprof_report_out_of_memory(const char* call, int64_t bytes, int device, int space) try {
  const hbmprof::ScopedCaller scope;
  const bool is_valid = call != nullptr && IsDevice(device) && space >= 0 && space < hbmprof::kMemorySpaceCount;
  if (!is_valid) return 0;
  char name[65];  // the longest name has 64 bytes
  if (hbmprof_device_name(device, name, sizeof(name)) < 0) return 0;
  hbmprof::FailedAllocation failure;
  failure.call = call;
  if (bytes >= 0) failure.bytes = static_cast<size_t>(bytes);
  failure.device = name;
  failure.space = hbmprof::MemorySpace(space);
  return hbmprof::ReportOutOfMemory(failure) ? 1 : 0;
} catch (const std::bad_alloc&) {
  return 0;
}

int hbmprof_save_device_memory_profile(const char* path) {
  return path == nullptr ? InvalidArgument(__func__, "path is null")
                         : Status(hbmprof::save_device_memory_profile(path));
}

int hbmprof_device_memory_profile(uint8_t** bytes, size_t* size) {
  if (bytes == nullptr || size == nullptr) return InvalidArgument(__func__, "bytes or size is null");
  *bytes = nullptr;
  *size = 0;
  const absl::StatusOr<std::string> profile = hbmprof::device_memory_profile();
  if (!profile.ok()) return Fail(profile.status());
  auto* const copy = static_cast<uint8_t*>(std::malloc(profile->size()));
  if (copy == nullptr) return NoHostMemory(__func__);
  std::memcpy(copy, profile->data(), profile->size());
  *bytes = copy;
  *size = profile->size();
  return HBMPROF_OK;
}

void hbmprof_free_profile(uint8_t* bytes) { std::free(bytes); }

int hbmprof_answer_http_get(const char* target, hbmprof_http_answer* answer) try {
  if (target == nullptr || !HasBytes(answer, HBMPROF_END_OF(hbmprof_http_answer, size))) {
    return InvalidArgument(__func__, "target or answer is null, or its struct_size is not set");
  }
  hbmprof_http_answer all = {};
  Fill(answer, all);
  const hbmprof::HttpAnswer made = hbmprof::AnswerHttpGet(target);
  // One block: the body, and the content type behind it.
  const size_t body_size = made.body.size() + 1;
  const size_t type_size = made.content_type.size() + 1;
  auto* const block = static_cast<char*>(std::malloc(body_size + type_size));
  if (block == nullptr) return NoHostMemory(__func__);
  std::memcpy(block, made.body.c_str(), body_size);
  std::memcpy(block + body_size, made.content_type.c_str(), type_size);
  all.status = made.status;
  all.content_type = block + body_size;
  all.body = block;
  all.size = made.body.size();
  Fill(answer, all);
  return HBMPROF_OK;
} catch (const std::bad_alloc&) {
  return NoHostMemory(__func__);
}

void hbmprof_free_http_answer(hbmprof_http_answer* answer) {
  if (!HasBytes(answer, HBMPROF_END_OF(hbmprof_http_answer, size))) return;
  std::free(const_cast<char*>(answer->body));
  answer->body = nullptr;
  answer->content_type = nullptr;
  answer->size = 0;
}

}  // extern "C"
