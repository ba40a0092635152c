// TensorFlow's blocks: what its allocator reports (report_hooks.h).
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "src/base/fork.h"
#include "src/inject/frameworks/frameworks.h"
#include "src/inject/linker/report_hooks.h"

namespace hbmprof::internal {
namespace {

ReportedBlocks blocks("tensorflow");
std::atomic<bool> has_report{false};

// Returns whether TensorFlow allocates each tensor with the driver, because of its setting.
bool IsCacheOff() {
  const char* const setting = secure_getenv("TF_GPU_ALLOCATOR");
  return setting != nullptr && std::string_view(setting).rfind("cuda_malloc", 0) == 0;
}

bool HasSegmentsOfTensorflow(const Snapshot& snapshot) {
  return HasSegmentsFrom("libtensorflow", snapshot) || HasSegmentsFrom("_pywrap_tensorflow", snapshot);
}

}  // namespace

void TensorflowMayHaveBlocks() { blocks.MayHaveBlocks(); }

void TensorflowReportsMemory(std::string_view event, uint64_t address, int64_t requested, int64_t bytes,
                             const Caller& caller) {
  if (!uses_reports.load(std::memory_order_acquire) || IsOff()) return;
  if (!has_report.load(std::memory_order_relaxed)) has_report.store(true, std::memory_order_relaxed);
  if (!IsProfilerEnabled() || blocks.refusal() != nullptr) return;
  const bool is_possible = address != 0 && requested >= 0 && requested <= bytes;
  if (is_possible && event == "MemoryAllocation") return blocks.HandedOut(caller, address, bytes);
  if (is_possible && event == "MemoryDeallocation") return blocks.TakenBack(address, bytes);
  blocks.Refuse("this version reports its blocks in another way");
}

void AddTensorflowWarnings(Snapshot* snapshot) {
  constexpr char kNotShown[] = "TensorFlow's blocks are not shown, only its segments: ";
  if (const char* const reason = blocks.refusal()) {
    // Without a recorded block and without a segment, TensorFlow has used no device memory, so no block is missing.
    if (blocks.is_used() || HasSegmentsOfTensorflow(*snapshot)) {
      snapshot->warnings.push_back(absl::StrCat(kNotShown, reason));
    }
  } else if (!has_report.load(std::memory_order_relaxed) && !IsCacheOff() && HasSegmentsOfTensorflow(*snapshot)) {
    snapshot->warnings.push_back(absl::StrCat(kNotShown, "it reports no blocks"));
  }
}

}  // namespace hbmprof::internal
