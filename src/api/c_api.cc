#include "hbmprof/c_api.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>

#include "hbmprof/hbmprof.h"
#include "src/base/fork.h"
#include "src/base/thread_state.h"
#include "src/core/tags.h"

namespace {

constexpr int kOrdinals = 63;      // the numbers 0 to 62: "GPU:N"
constexpr int kFirstNamed = 64;    // hbmprof_device() returns this plus the DeviceId
constexpr int kNamedDevices = 64;  // as many as a profiler tells apart
constexpr int kMaxTagDepth = 64;

// The tags of a thread before each of its pushes. In the static TLS block, which is there without malloc also where the
// library is part of a plugin; small, since plugins share what room there is.
struct TagStack {
  int depth;  // may exceed kMaxTagDepth; only pushes below it took effect
  uint32_t outer[kMaxTagDepth];
};
__thread TagStack tag_stack __attribute__((tls_model("initial-exec"))) = {};
// No object with a destructor: a failing call may come after this thread's own were destroyed.
thread_local char last_error[1024] = "";

// The DeviceId of "GPU:N", kept plus one; 0 is "not asked yet". The last one is of every number that is no device's.
std::atomic<uint32_t> known_devices[kOrdinals + 1] = {};

bool IsNamed(int device) { return device >= kFirstNamed && device < kFirstNamed + kNamedDevices; }

hbmprof::DeviceId DeviceNumber(int device) {
  if (IsNamed(device)) return hbmprof::DeviceId(device - kFirstNamed);
  const int index = device >= 0 && device < kOrdinals ? device : kOrdinals;
  std::atomic<uint32_t>& known = known_devices[index];
  uint32_t id_plus_one = known.load(std::memory_order_relaxed);
  if (id_plus_one == 0) {
    // Inside the tracker nothing is recorded, and no device named: its tables may be locked by this very thread.
    const hbmprof::internal::ForkPause pause;
    if (hbmprof::internal::thread_state.inside) return hbmprof::kDefaultDevice;
    const std::string name = index < kOrdinals ? "GPU:" + std::to_string(index) : "unknown";
    id_plus_one = static_cast<uint32_t>(hbmprof::Profiler::Default().Device(name)) + 1;
    known.store(id_plus_one, std::memory_order_relaxed);
  }
  return hbmprof::DeviceId(id_plus_one - 1);
}

int Fail(const absl::Status& status) {
  const absl::string_view message = status.message();
  const size_t length = std::min(message.size(), sizeof(last_error) - 1);
  std::memcpy(last_error, message.data(), length);
  last_error[length] = '\0';
  return static_cast<int>(status.code());
}

}  // namespace

extern "C" {

int hbmprof_device(const char* name) try {
  const hbmprof::internal::ForkPause pause;
  if (hbmprof::internal::thread_state.inside) return -1;
  return kFirstNamed + static_cast<int>(hbmprof::Profiler::Default().Device(name));
} catch (const std::bad_alloc&) {
  return -1;
}

[[gnu::noinline]] int hbmprof_record_alloc(const void* ptr, size_t bytes, int device) try {
  const hbmprof::Caller caller = hbmprof::Caller::OfThisFunction();
  hbmprof::Profiler& profiler = hbmprof::Profiler::Default();
  if (!profiler.enabled()) return 0;
  hbmprof::Attributes attributes;
  attributes.device = DeviceNumber(device);
  return profiler.RecordAllocFrom(caller, ptr, bytes, attributes) ? 1 : 0;
} catch (const std::bad_alloc&) {  // the host has no memory for the device's name
  return 0;
}

int hbmprof_record_free(const void* ptr) { return hbmprof::Profiler::Default().RecordFree(ptr) ? 1 : 0; }

int hbmprof_record_resize(const void* ptr, size_t bytes) {
  return hbmprof::Profiler::Default().RecordResize(ptr, bytes) ? 1 : 0;
}

void hbmprof_tag_push(const char* key, const char* value) {
  if (tag_stack.depth++ >= kMaxTagDepth) return;
  tag_stack.outer[tag_stack.depth - 1] = hbmprof::internal::BeginTag(key, value);
}

void hbmprof_tag_pop(void) {
  if (tag_stack.depth == 0) return;
  if (--tag_stack.depth < kMaxTagDepth) hbmprof::internal::EndTag(tag_stack.outer[tag_stack.depth]);
}

void hbmprof_set_counter(const char* name, int64_t value) { hbmprof::SetCounter(name, value); }

int hbmprof_get_stats(int device, hbmprof_stats* stats) try {
  if (stats == nullptr || stats->struct_size < offsetof(hbmprof_stats, peak_bytes_in_use)) {
    return Fail(absl::InvalidArgumentError("hbmprof_get_stats: stats is null or its struct_size is not set"));
  }
  if (!IsNamed(device) && (device < 0 || device >= kOrdinals)) {
    return Fail(absl::InvalidArgumentError("hbmprof_get_stats: device " + std::to_string(device) +
                                           " is neither 0 to 62 nor a number that hbmprof_device() gave"));
  }
  const hbmprof::DeviceStats of_device = hbmprof::Profiler::Default().Stats(DeviceNumber(device));
  const hbmprof::TrackerStats of_tracker = hbmprof::Profiler::Default().GetTrackerStats();
  hbmprof_stats all;
  all.struct_size = stats->struct_size;
  all.bytes_in_use = of_device.bytes_in_use;
  all.peak_bytes_in_use = of_device.peak_bytes_in_use;
  all.num_allocs = of_device.num_allocs;
  all.num_live = of_device.num_live;
  all.largest_alloc_size = of_device.largest_alloc_size;
  all.foreign_frees = of_tracker.foreign_frees;
  all.dropped_records = of_tracker.dropped_records;
  all.dropped_bytes = of_tracker.dropped_bytes;
  std::memcpy(stats, &all, std::min(stats->struct_size, sizeof(all)));
  return 0;
} catch (const std::bad_alloc&) {
  return Fail(absl::ResourceExhaustedError("hbmprof_get_stats: the host has no memory"));
}

int hbmprof_save_device_memory_profile(const char* path) {
  const absl::Status status = hbmprof::save_device_memory_profile(path);
  return status.ok() ? 0 : Fail(status);
}

const char* hbmprof_last_error(void) { return last_error; }

}  // extern "C"
