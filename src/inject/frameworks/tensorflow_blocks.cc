#include "src/inject/frameworks/tensorflow_blocks.h"

#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "hbmprof/profiler.h"
#include "src/base/fork.h"
#include "src/base/try_run.h"
#include "src/inject/frameworks/driver_blocks.h"
#include "src/inject/frameworks/frameworks.h"
#include "src/inject/frameworks/python_end.h"
#include "src/inject/linker/report_hooks.h"

namespace hbmprof::internal {
namespace {

enum class State : uint8_t {
  kShown,
  // In all states below, the reports are no longer used.
  kUnknownEvent,  // a report is neither of an allocation nor of a deallocation, or its sizes are impossible
  kUnknownFree,   // TensorFlow frees `freed` bytes of device memory where no block is recorded
  kOtherSize,     // TensorFlow frees `freed` bytes where it reported `recorded` bytes
  kLiveTwice,     // TensorFlow reports an allocation at the address of a live block
};

FrameworkLabel label("tensorflow");
std::atomic<bool> is_started{false};
std::atomic<bool> has_report{false};
std::atomic<State> state{State::kShown};
std::atomic<bool> is_refused{false};  // `state` is or becomes another one than kShown
std::atomic<int64_t> freed_bytes{0};
std::atomic<int64_t> recorded_bytes{0};
// Whether a block of device memory may have no record. If so, the free of an unknown block is not an error.
std::atomic<bool> has_dropped{false};
// The devices with blocks: bit i is set for DeviceId(i).
std::atomic<uint64_t> devices{0};

bool IsShown() { return state.load(std::memory_order_relaxed) == State::kShown; }

void EndBlocks() {
  const uint64_t mask = devices.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < 64; ++i) {
    if ((mask >> i & 1) != 0) EndDriverBlocks({DeviceId(i), label.Get()});
  }
}

// From now on the reports are not used, and the blocks are not shown.
void Refuse(State reason, int64_t freed = 0, int64_t recorded = 0) {
  if (!is_refused.exchange(true, std::memory_order_relaxed)) {
    freed_bytes.store(freed, std::memory_order_relaxed);
    recorded_bytes.store(recorded, std::memory_order_relaxed);
    state.store(reason, std::memory_order_release);
  }
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
      return Refuse(State::kLiveTwice);
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
  if (freed.has_value() && *freed != bytes) return Refuse(State::kOtherSize, bytes, *freed);
  if (!freed.has_value() && !has_dropped.load(std::memory_order_relaxed)) Refuse(State::kUnknownFree, bytes);
}

std::string WhyNotShown() {
  const int64_t freed = freed_bytes.load(std::memory_order_relaxed);
  switch (state.load(std::memory_order_acquire)) {
    case State::kShown:
      break;
    case State::kUnknownEvent:
      return "this version reports its blocks in another way";
    case State::kUnknownFree:
      return absl::StrCat("it frees ", freed, " bytes at an address where it has reported no block");
    case State::kOtherSize:
      return absl::StrCat("it frees ", freed, " bytes at an address where it has reported ",
                          recorded_bytes.load(std::memory_order_relaxed), " bytes");
    case State::kLiveTwice:
      return "it reports an allocation at the address of a live block";
  }
  return "";
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
  state.store(State::kShown, std::memory_order_release);
  is_refused.store(false, std::memory_order_release);
}

void StartTensorflowBlocks() { is_started.store(true, std::memory_order_release); }

void TensorflowReportsMemory(std::string_view event, uint64_t address, int64_t requested, int64_t bytes,
                             const Caller& caller) {
  if (!is_started.load(std::memory_order_acquire) || IsOff()) return;
  if (!has_report.load(std::memory_order_relaxed)) has_report.store(true, std::memory_order_relaxed);
  // Default() throws if the host has no memory for the profiler.
  if (!TryRun([] { Profiler::Default(); })) return;
  if (!Profiler::Default().enabled()) return;
  if (!IsShown()) return;
  const bool is_possible = address != 0 && requested >= 0 && requested <= bytes;
  if (is_possible && event == "MemoryAllocation") return HandedOut(caller, address, bytes);
  if (is_possible && event == "MemoryDeallocation") return TakenBack(address, bytes);
  Refuse(State::kUnknownEvent);
}

void AddTensorflowWarnings(Snapshot* snapshot) {
  constexpr char kNotShown[] = "TensorFlow's blocks are not shown, only its segments: ";
  if (const std::string reason = WhyNotShown(); !reason.empty()) {
    // Without a recorded block and without a segment, TensorFlow has used no device memory, so no block is missing.
    if (devices.load(std::memory_order_relaxed) != 0 || HasSegmentsOfTensorflow(*snapshot)) {
      snapshot->warnings.push_back(absl::StrCat(kNotShown, reason));
    }
  } else if (!has_report.load(std::memory_order_relaxed) && !IsCacheOff() && HasSegmentsOfTensorflow(*snapshot)) {
    snapshot->warnings.push_back(absl::StrCat(kNotShown, "it reports no blocks"));
  }
}

}  // namespace hbmprof::internal
