// Functions for the records of all frameworks whose allocators report their blocks (report_hooks.h).
#ifndef HBMPROF_SRC_INJECT_FRAMEWORKS_FRAMEWORKS_H_
#define HBMPROF_SRC_INJECT_FRAMEWORKS_FRAMEWORKS_H_

#include <atomic>
#include <cstdint>
#include <string_view>

#include "hbmprof/allocation.h"
#include "hbmprof/snapshot.h"
#include "src/api/public/default_profiler.h"
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

// Whether the frameworks' reports are used. Set before the first tracked call of the driver, which comes before the
// first report of a block of device memory.
inline std::atomic<bool> uses_reports{false};

// Called before a free is recorded. The first call while the Python interpreter ends takes the snapshot for the profile
// at exit, which so shows what the program held: the interpreter destroys the program's variables, and so frees their
// memory, before the process ends. The thread must hold no lock of this library. Does not change errno.
inline void KeepStateAtPythonEnd() {
  if (PythonIsEnding()) KeepStateForExit();
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

// Adds a warning if XLA has allocated memory with the driver, unless hbmprof's plugin records its arrays.
void AddXlaWarning(Snapshot* snapshot);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_FRAMEWORKS_FRAMEWORKS_H_
