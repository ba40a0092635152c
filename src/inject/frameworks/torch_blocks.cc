// PyTorch's blocks: what its allocator reports (report_hooks.h).
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "hbmprof/profiler.h"
#include "src/base/bytes_text.h"
#include "src/base/per_thread.h"
#include "src/base/try_run.h"
#include "src/capture/capture.h"
#include "src/inject/event_tag.h"
#include "src/inject/frameworks/driver_blocks.h"
#include "src/inject/frameworks/frameworks.h"
#include "src/inject/linker/report_hooks.h"

namespace hbmprof::internal {
namespace {

// The reports about one device. PyTorch reports the blocks of a device one at a time. Snapshots can read this object
// meanwhile, and the thread that turns recording on can call MayHaveBlocks.
struct Device {
  bool IsShown() const { return refusal.load(std::memory_order_relaxed) == nullptr; }
  // Its number in the profiler; no value if it is not known yet.
  std::optional<DeviceId> Id() const {
    const int known = id.load(std::memory_order_relaxed);
    return known < 0 ? std::nullopt : std::optional(DeviceId(known));
  }

  // Why the reports are not used: they contradict each other or the records. Null: they are used.
  std::atomic<const char*> refusal{nullptr};
  std::atomic<bool> has_earlier{false};  // the next report is the first one of those that are seen
  std::atomic<int64_t> live_bytes{0};
  // Whether a block could not be recorded, or its record has ended. If so, the free of an unknown block is not an
  // error.
  std::atomic<bool> has_dropped{false};
  std::atomic<int> id{-1};  // see Id
  // The least value that `reserved` of PyTorch minus that of the records has had, or 0 if that was positive. While the
  // difference is larger, some of PyTorch's segments are not known as such.
  std::atomic<int64_t> least_difference{0};
  // PyTorch's out-of-memory errors: their number, and the values of the last one.
  std::atomic<int64_t> failures{0};
  std::atomic<int64_t> requested{0};
  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> reserved{0};
};

constexpr int kMaxTorchDevices = 64;
Device devices[kMaxTorchDevices];
std::atomic<bool> has_report{false};
std::atomic<bool> has_unknown_device{false};

FrameworkLabel label("pytorch");

// The device can have blocks that were not seen.
void MayHaveBlocks(Device& device) {
  device.refusal.store(nullptr, std::memory_order_relaxed);
  device.has_dropped.store(true, std::memory_order_relaxed);
  device.least_difference.store(0, std::memory_order_relaxed);
  device.has_earlier.store(true, std::memory_order_release);
}

// From now on the reports of the device are not used, and its blocks are not shown.
void Refuse(Device& device, const char* reason) {
  device.refusal.store(reason, std::memory_order_release);
  if (const std::optional<DeviceId> id = device.Id(); id.has_value()) EndDriverBlocks({*id, label.Get()});
}

// --- Failures of the driver's calls that PyTorch repeats. ---

// The failure of the thread's last call, until PyTorch reports its out-of-memory error or allocates.
struct LeftFailure {
  enum class State : uint8_t {
    kNone,
    kLeft,      // not reported yet: PyTorch may succeed when it tries again
    kReported,  // reported when the call failed, because it is not known that PyTorch made it
  };
  State state = State::kNone;
  std::string_view call;
  std::optional<size_t> bytes;
  uint64_t first_pages = 0, last_pages = 0;  // of the calls of the first attempt
  char device[32] = {};
};
PerThread<LeftFailure> left_failures;

constexpr char kLibrary[] = "libc10_";  // libc10_cuda.so, libc10_hip.so
// Its allocator returns idle memory and makes the same call again, but it reports no out-of-memory error.
constexpr char kNpuLibrary[] = "libtorch_npu";

bool IsCacheOff() { return secure_getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr; }

// Whether PyTorch's pool of the device has memory that it can return to the driver.
bool HasIdleMemory(std::string_view device) {
  Pool pool;
  if (!TryRun([&] { pool = {Profiler::Default().Device(device), label.Get()}; })) return false;
  return ReservedBytes(pool) > AllocatedBytes(pool);
}

// PyTorch asks the driver for memory only for a block that touches all of the new memory, and reports that block first.
// So its segments are searched only while it has more reserved than the records of its segments.
void HandedOut(Device& device, const Caller& caller, uint64_t address, int64_t bytes, int64_t reserved) {
  std::optional<DeviceId> id = device.Id();
  const auto difference = [&] { return reserved - ReservedBytes({*id, label.Get()}); };
  const int64_t least = device.least_difference.load(std::memory_order_relaxed);
  int64_t now = id.has_value() ? difference() : INT64_MAX;
  const auto size = static_cast<uint64_t>(bytes);
  DriverBlock block;
  if (now <= least) {
    block = RecordKnownDriverBlock(caller, {*id, label.Get()}, address, size);
  } else {
    block = RecordDriverBlock(caller, address, size, label.Get(), &id);
    if (id.has_value()) {
      device.id.store(static_cast<int>(*id), std::memory_order_relaxed);
      now = difference();
    }
  }
  if (now < least) device.least_difference.store(now, std::memory_order_relaxed);
  if (block == DriverBlock::kLive) Refuse(device, kLiveTwice);
  if (block == DriverBlock::kDropped || block == DriverBlock::kOutside) {
    device.has_dropped.store(true, std::memory_order_relaxed);
  }
}

// `live_before`: the bytes of the live blocks, as PyTorch has reported them before this free.
void TakenBack(Device& device, uint64_t address, int64_t bytes, int64_t live_before) {
  KeepStateAtPythonEnd();
  const std::optional<DeviceId> id = device.Id();
  if (!id.has_value()) return;  // no block was recorded
  const Pool pool = {*id, label.Get()};
  const std::optional<int64_t> freed = Profiler::Default().RecordBlockFree(pool, BufferId(address));
  if (freed.has_value() ? *freed == bytes : device.has_dropped.load(std::memory_order_relaxed)) return;
  // A program can unmap physical memory that has live blocks, as the sleep mode of vLLM does. The records of the blocks
  // have ended then, and PyTorch frees the blocks later.
  if (!freed.has_value() && AllocatedBytes(pool) < live_before) {
    return device.has_dropped.store(true, std::memory_order_relaxed);
  }
  Refuse(device, "it frees a block that it has not reported");
}

}  // namespace

void TorchHasAllocated() {
  if (LeftFailure* const left = left_failures.Find()) left->state = LeftFailure::State::kNone;
}

void TorchMayHaveBlocks() {
  for (Device& device : devices) MayHaveBlocks(device);
}

void TorchReportsMemory(uint64_t address, int64_t bytes, uint64_t total_allocated, uint64_t total_reserved,
                        TorchDevice torch_device, const Caller& caller) {
  if (torch_device.type != TorchDevice::kCuda || !uses_reports.load(std::memory_order_acquire)) return;
  if (!has_report.load(std::memory_order_relaxed)) has_report.store(true, std::memory_order_relaxed);
  if (torch_device.index < 0 || torch_device.index >= kMaxTorchDevices) {
    has_unknown_device.store(true, std::memory_order_relaxed);
    return;
  }
  Device& device = devices[torch_device.index];
  if (!IsProfilerEnabled() || !device.IsShown()) return;
  if (device.has_earlier.load(std::memory_order_acquire)) {
    device.has_earlier.store(false, std::memory_order_relaxed);
    device.live_bytes.store(static_cast<int64_t>(total_allocated) - bytes, std::memory_order_relaxed);
  }
  const int64_t counted = device.live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const auto reported = static_cast<int64_t>(total_allocated);
  const auto reserved = static_cast<int64_t>(total_reserved);
  if (reported != counted) return Refuse(device, "its total is not the sum of its reports");
  if (reserved < reported) return Refuse(device, "it reports more bytes allocated than reserved");
  if (bytes > 0) {
    TorchHasAllocated();
    // For a replay of a recording: PyTorch caches memory for each stream.
    std::optional<EventTag> tag;
    const bool is_recorded = tags_observer.load(std::memory_order_relaxed) != nullptr;
    if (const int64_t stream = is_recorded ? CurrentTorchStream(torch_device.index, caller) : 0; stream != 0) {
      const absl::AlphaNum text(stream);
      tag.emplace("stream", std::string_view(text.data(), text.size()));
    }
    HandedOut(device, caller, address, bytes, reserved);
  }
  if (bytes < 0) TakenBack(device, address, -bytes, counted - bytes);
}

void TorchReportsOutOfMemory(int64_t bytes, uint64_t total_allocated, uint64_t total_reserved,
                             TorchDevice torch_device) {
  if (torch_device.type != TorchDevice::kCuda || torch_device.index < 0 || torch_device.index >= kMaxTorchDevices) {
    return;
  }
  Device& device = devices[torch_device.index];
  device.requested.store(bytes, std::memory_order_relaxed);
  device.allocated.store(static_cast<int64_t>(total_allocated), std::memory_order_relaxed);
  device.reserved.store(static_cast<int64_t>(total_reserved), std::memory_order_relaxed);
  device.failures.fetch_add(1, std::memory_order_release);
  // Default() throws if the host has no memory for the profiler.
  if (!uses_reports.load(std::memory_order_acquire) || !TryRun([] { Profiler::Default(); })) return;
  LeftFailure none;
  LeftFailure* const found = left_failures.Find();
  LeftFailure& failure = found == nullptr ? none : *found;
  switch (std::exchange(failure.state, LeftFailure::State::kNone)) {
    case LeftFailure::State::kLeft:
      ReportOutOfMemory({failure.call, failure.bytes, failure.device, MemorySpace::kDevice, {}, {}, true});
      return;
    case LeftFailure::State::kNone: {
      // No call of the driver has failed: the limit that the program has set for PyTorch is reached.
      char name[16];
      std::snprintf(name, sizeof(name), "GPU:%d", torch_device.index);
      ReportOutOfMemory({"CUDACachingAllocator", static_cast<size_t>(bytes), name, MemorySpace::kDevice, {}, {}, true});
      return;
    }
    case LeftFailure::State::kReported:
      return;
  }
}

bool LeaveFailureToTorch(const FailedAllocation& failure, const Caller& caller, uint64_t pages) {
  const bool is_npu = failure.device.substr(0, 4) == "NPU:";
  // Without a report of a block, it is not known that PyTorch calls the functions of report_hooks.h.
  const bool has_cache =
      is_npu ? HasIdleMemory(failure.device) : has_report.load(std::memory_order_relaxed) && !IsCacheOff();
  const bool may_be_torch =
      has_cache && failure.space == MemorySpace::kDevice && failure.device.size() < sizeof(LeftFailure::device);
  LeftFailure* const of_thread = left_failures.Get();
  if (of_thread == nullptr) return false;
  LeftFailure& left = *of_thread;
  const bool is_repeated = left.state == LeftFailure::State::kLeft && left.call == failure.call &&
                           left.bytes == failure.bytes && failure.device == left.device;
  if (is_npu && is_repeated && pages != left.last_pages) {
    if (pages != left.first_pages) left.last_pages = pages;
    return true;
  }
  left.state = LeftFailure::State::kReported;
  if (!may_be_torch || (is_npu && is_repeated)) return false;
  const StackCapture capture(Unwinder::kAuto);
  constexpr int kFrames = 16;
  uintptr_t buffer[kFrames];
  const CapturedStack stack = capture.Capture(caller, buffer, kFrames);
  CallFrom call = CallFrom::kUndecided;
  for (int i = 0; i < stack.depth && call == CallFrom::kUndecided; ++i) {
    dl_find_object object;
    const bool found = _dl_find_object(reinterpret_cast<void*>(stack.pcs[i] - 1), &object) == 0;
    call = IsCallFrom(is_npu ? kNpuLibrary : kLibrary,
                      found ? FileName(object.dlfo_link_map->l_name) : std::string_view());
  }
  if (call != CallFrom::kYes) return false;
  left.call = failure.call;
  left.bytes = failure.bytes;
  left.first_pages = left.last_pages = pages;
  left.device[failure.device.copy(left.device, sizeof(left.device) - 1)] = '\0';
  left.state = LeftFailure::State::kLeft;
  return true;
}

// --- Warnings in snapshots. ---

void AddTorchWarnings(Snapshot* snapshot) {
  std::vector<std::string>& warnings = snapshot->warnings;
  const auto bytes = [](const auto& number) { return BytesText(number.load(std::memory_order_relaxed)); };
  for (int i = 0; i < kMaxTorchDevices; ++i) {
    const Device& device = devices[i];
    if (const char* const reason = device.refusal.load(std::memory_order_acquire)) {
      warnings.push_back(absl::StrCat("PyTorch's blocks on GPU:", i, " are not shown, only its segments: ", reason));
    }
    if (const int64_t failures = device.failures.load(std::memory_order_acquire); failures > 0) {
      warnings.push_back(absl::StrCat("PyTorch ran out of memory on GPU:", i, ", ", failures,
                                      failures == 1 ? " time" : " times", "; the last one for a tensor of ",
                                      bytes(device.requested), " (it requests whole segments from the driver), with ",
                                      bytes(device.allocated), " allocated and ", bytes(device.reserved), " reserved"));
    }
  }
  if (has_unknown_device.load(std::memory_order_relaxed)) {
    warnings.push_back("PyTorch's blocks are not shown on a device whose number is not from 0 to 63");
  }
  // PyTorch does not report memory that it does not cache.
  if (!has_report.load(std::memory_order_relaxed) && !IsCacheOff() && HasSegmentsFrom(kLibrary, *snapshot)) {
    warnings.push_back("PyTorch's blocks are not shown, only its segments: it reports no blocks");
  }
}

}  // namespace hbmprof::internal
