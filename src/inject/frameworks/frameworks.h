// The frameworks whose allocators report their blocks: PyTorch (torch_blocks.cc) and TensorFlow (tensorflow_blocks.cc)
// through report_hooks.h, torch_npu and MindSpore through mstx (mstx_blocks.cc). The blocks become blocks of the
// driver's memory. If the reports contradict each other, or PyTorch's own total of a device, only the driver's memory
// is shown, and a warning in each snapshot says why.
#ifndef HBMPROF_SRC_INJECT_FRAMEWORKS_FRAMEWORKS_H_
#define HBMPROF_SRC_INJECT_FRAMEWORKS_FRAMEWORKS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"
#include "src/api/public/default_profiler.h"
#include "src/base/try_run.h"
#include "src/capture/python/python_frames.h"

namespace hbmprof::internal {

// The `allocator` label of a framework's blocks and segments.
class FrameworkLabel {
 public:
  explicit constexpr FrameworkLabel(const char* name) : name_(name) {}
  // Returns the id of the label; AllocatorId{} (no label) if the host has no memory for it.
  AllocatorId Get();

 private:
  const char* const name_;
  std::atomic<int> known_{-1};
};

// The blocks that a framework reports without totals. Thread-safe.
class ReportedBlocks {
 public:
  explicit constexpr ReportedBlocks(const char* allocator) : label_(allocator) {}

  // A block at `address` was handed out or taken back. `bytes`: no value if it is not reported.
  void HandedOut(const Caller& caller, uint64_t address, int64_t bytes);
  void TakenBack(uint64_t address, std::optional<int64_t> bytes);
  // From now on the reports are not used, and the blocks are not shown.
  void Refuse(const char* reason);
  // There can be blocks that were not seen.
  void MayHaveBlocks();

  // Null: the reports are used.
  const char* refusal() const { return refusal_.load(std::memory_order_acquire); }
  // Whether a block was recorded.
  bool is_used() const { return devices_.load(std::memory_order_relaxed) != 0; }

 private:
  void EndBlocks();

  FrameworkLabel label_;
  std::atomic<const char*> refusal_{nullptr};
  // Whether a block of device memory may have no record. If so, the free of an unknown block is not an error.
  std::atomic<bool> has_dropped_{false};
  // The devices with blocks: bit i is set for DeviceId(i).
  std::atomic<uint64_t> devices_{0};
};

// Whether the frameworks' reports are used. Set before the first tracked call of the driver, which comes before the
// first report of a block of device memory.
inline std::atomic<bool> uses_reports{false};

// Returns whether the profiler is enabled; false if the host has no memory for it.
inline bool IsProfilerEnabled() {
  bool is_enabled = false;
  return TryRun([&] { is_enabled = Profiler::Default().enabled(); }) && is_enabled;
}

// Called before a free is recorded. The first call while the Python interpreter ends takes the snapshot for the profile
// at exit, which so shows what the program held: the interpreter destroys the program's variables, and so frees their
// memory, before the process ends. The thread must hold no lock of this library. Does not change errno.
inline void KeepStateAtPythonEnd() {
  static std::atomic<bool> is_kept{false};
  if (PythonIsEnding() && !is_kept.exchange(true)) KeepStateForExit(/*python_ends=*/true);
}

// A reason why the reports of a framework are not used.
inline constexpr char kLiveTwice[] = "it reports an allocation at the address of a live block";

// Returns the part of `path` after the last slash.
std::string_view FileName(std::string_view path);

// Call IsCallFrom for the file name of each frame of a stack, innermost frame first, until the result is not
// kUndecided. The result is kYes if a library whose file name begins with `library` has called the driver, and kNo if
// other code has.
enum class CallFrom : uint8_t { kYes, kNo, kUndecided };
CallFrom IsCallFrom(std::string_view library, std::string_view file);

// Returns whether `snapshot` has device memory that a library whose file name begins with `library` has allocated with
// the driver. Stream-ordered memory does not count, because it does not belong to the frameworks' own allocators.
bool HasSegmentsFrom(std::string_view library, const Snapshot& snapshot);

// Call these before the reports are hooked in a process that hbmprof is attached to: there can be blocks that were not
// seen. They have no records, and their frees are not errors.
void TorchMayHaveBlocks();
void TensorflowMayHaveBlocks();
void MstxMayHaveBlocks();

// Call it after a call of the driver, made by `caller`, has failed because there was no memory. Returns true if
// PyTorch's caching allocator has made the call: then it frees its cached blocks and tries again, and the failure is
// reported (ReportOutOfMemory) only if PyTorch reports its own out-of-memory error; that of torch_npu, which reports
// none, if the same call fails again. A later failure of the thread replaces the earlier one. `pages`: which pages the
// call wanted. A call that differs from the first one only in these belongs to the same attempt.
bool LeaveFailureToTorch(const FailedAllocation& failure, const Caller& caller, uint64_t pages);
// Call it when an allocator of PyTorch has handed out memory: no failure of the thread is left.
void TorchHasAllocated();

// Add a warning for each device whose blocks are not shown, and one if the framework allocates device memory but
// reports nothing. The first one also adds one for PyTorch's out-of-memory errors.
void AddTorchWarnings(Snapshot* snapshot);
void AddTensorflowWarnings(Snapshot* snapshot);
void AddMstxWarnings(Snapshot* snapshot);
// Adds a warning if XLA has allocated memory with the driver. It says what shows the arrays.
void AddXlaWarning(Snapshot* snapshot);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_FRAMEWORKS_FRAMEWORKS_H_
