// TensorFlow's blocks: what its allocator reports (report_hooks.h).
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "hbmprof/profiler.h"
#include "src/base/fork.h"
#include "src/inject/frameworks/driver_blocks.h"
#include "src/inject/frameworks/frameworks.h"
#include "src/inject/linker/report_hooks.h"

namespace hbmprof::internal {
namespace {

FrameworkLabel label("tensorflow");
std::atomic<bool> has_report{false};
// Why the reports are no longer used; null: they are used.
std::atomic<const char*> refusal{nullptr};
// Whether a block of device memory may have no record. If so, the free of an unknown block is not an error.
std::atomic<bool> has_dropped{false};
// The devices with blocks: bit i is set for DeviceId(i).
std::atomic<uint64_t> devices{0};

bool IsShown() { return refusal.load(std::memory_order_relaxed) == nullptr; }

void EndBlocks() {
  const uint64_t mask = devices.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < 64; ++i) {
    if ((mask >> i & 1) != 0) EndDriverBlocks({DeviceId(i), label.Get()});
  }
}

// From now on the reports are not used, and the blocks are not shown.
void Refuse(const char* reason) {
  const char* none = nullptr;
  refusal.compare_exchange_strong(none, reason, std::memory_order_acq_rel);
  EndBlocks();
}

void HandedOut(const Caller& caller, uint64_t address, int64_t bytes) {
  std::optional<DeviceId> device;
  switch (RecordDriverBlock(caller, address, static_cast<uint64_t>(bytes), label.Get(), &device)) {
    case DriverBlock::kRecorded:
      devices.fetch_or(uint64_t{1} << (static_cast<unsigned>(*device) & 63), std::memory_order_relaxed);
      // Another thread may have refused the reports meanwhile.
      if (!IsShown()) EndBlocks();
      return;
    case DriverBlock::kLive:
      return Refuse(kLiveTwice);
    case DriverBlock::kDropped:
      return has_dropped.store(true, std::memory_order_relaxed);
    case DriverBlock::kOutside:
      // Usually memory of the host, for which TensorFlow has allocators of the same class.
      if (device.has_value()) has_dropped.store(true, std::memory_order_relaxed);
      return;
  }
}

void TakenBack(uint64_t address, int64_t bytes) {
  const std::optional<DeviceId> device = DeviceOfDriverSegment(address);
  if (!device.has_value()) return;
  KeepStateAtPythonEnd();
  const std::optional<int64_t> freed = Profiler::Default().RecordBlockFree({*device, label.Get()}, BufferId(address));
  if (freed.has_value() && *freed != bytes) return Refuse("it frees a block of another size than it has reported");
  if (freed.has_value() || has_dropped.load(std::memory_order_relaxed)) return;
  Refuse("it frees device memory where it has reported no block");
}

// Returns whether TensorFlow allocates each tensor with the driver, because of its setting.
bool IsCacheOff() {
  const char* const setting = secure_getenv("TF_GPU_ALLOCATOR");
  return setting != nullptr && std::string_view(setting).rfind("cuda_malloc", 0) == 0;
}

bool HasSegmentsOfTensorflow(const Snapshot& snapshot) {
  return HasSegmentsFrom("libtensorflow", snapshot) || HasSegmentsFrom("_pywrap_tensorflow", snapshot);
}

}  // namespace

void TensorflowMayHaveBlocks() {
  has_dropped.store(true, std::memory_order_relaxed);
  refusal.store(nullptr, std::memory_order_release);
}

void TensorflowReportsMemory(std::string_view event, uint64_t address, int64_t requested, int64_t bytes,
                             const Caller& caller) {
  if (!uses_reports.load(std::memory_order_acquire) || IsOff()) return;
  if (!has_report.load(std::memory_order_relaxed)) has_report.store(true, std::memory_order_relaxed);
  if (!IsProfilerEnabled() || !IsShown()) return;
  const bool is_possible = address != 0 && requested >= 0 && requested <= bytes;
  if (is_possible && event == "MemoryAllocation") return HandedOut(caller, address, bytes);
  if (is_possible && event == "MemoryDeallocation") return TakenBack(address, bytes);
  Refuse("this version reports its blocks in another way");
}

void AddTensorflowWarnings(Snapshot* snapshot) {
  constexpr char kNotShown[] = "TensorFlow's blocks are not shown, only its segments: ";
  if (const char* const reason = refusal.load(std::memory_order_acquire)) {
    // Without a recorded block and without a segment, TensorFlow has used no device memory, so no block is missing.
    if (devices.load(std::memory_order_relaxed) != 0 || HasSegmentsOfTensorflow(*snapshot)) {
      snapshot->warnings.push_back(absl::StrCat(kNotShown, reason));
    }
  } else if (!has_report.load(std::memory_order_relaxed) && !IsCacheOff() && HasSegmentsOfTensorflow(*snapshot)) {
    snapshot->warnings.push_back(absl::StrCat(kNotShown, "it reports no blocks"));
  }
}

}  // namespace hbmprof::internal
