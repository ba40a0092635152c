// The report of a failed allocation as text, made from values only.
// Not here: when a report is made and where it goes (src/api/out_of_memory.cc).
#ifndef HBMPROF_SRC_EXPORT_OUT_OF_MEMORY_REPORT_H_
#define HBMPROF_SRC_EXPORT_OUT_OF_MEMORY_REPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "hbmprof/allocation.h"
#include "hbmprof/pprof.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// A failed allocation and the state of its device at that time. Sizes are bytes.
struct OutOfMemory {
  std::string_view call;
  std::optional<int64_t> requested;
  std::string_view device;  // its name
  MemorySpace space = MemorySpace::kDevice;
  DeviceStats stats;  // of the device and space
  std::string tags;   // of the thread, "key=value, key=value"; may be empty
  // Limits of the host that apply to pinned memory.
  std::optional<int64_t> memory_lock_limit;  // RLIMIT_MEMLOCK
  std::optional<int64_t> cgroup_limit;       // the process's control group
  std::optional<int64_t> cgroup_in_use;
  int64_t unreported_failures = 0;  // on this device since the last report
};

// Why an allocation failed.
enum class OutOfMemoryCause {
  kTooLarge,        // the request is larger than the device
  kFragmented,      // enough memory is free, but not in one piece
  kLimit,           // enough memory is free in one piece: something else refused it
  kHostLimit,       // a limit of the host on pinned memory
  kIdlePool,        // the idle memory of this process's pools would be enough
  kOtherProcesses,  // other processes hold more than this one
  kUnaccounted,     // most of what is in use was not allocated through recorded calls
  kFull,            // the recorded buffers of this process fill the device
  kUnknown,         // the device does not say how much memory it has
};

struct OutOfMemoryVerdict {
  OutOfMemoryCause cause;
  std::string text;  // one or two sentences: the cause with its figures, and what to do
};

// The first cause of the list above that applies.
OutOfMemoryVerdict JudgeOutOfMemory(const OutOfMemory& failure);

// The report up to the list of call stacks: several lines, each with a line feed.
std::string OutOfMemorySummary(const OutOfMemory& failure);

// A key for what a call stack holds, equal in all snapshots of one process.
uint64_t StackKey(const Snapshot::Stack& stack);

// The call stacks that hold most of a device's memory space in `snapshot`, ten lines at most; stacks whose innermost
// functions are the same share a line. "" if nothing is in use. `device` indexes
// snapshot.devices. `bytes_before(key)` returns what the stack of this key held when the last profile
// was written, nullopt if none was written. `symbolizer` may be null.
std::string OutOfMemoryStacks(const Snapshot& snapshot, uint32_t device, MemorySpace space, Symbolizer* symbolizer,
                              const std::function<std::optional<int64_t>(uint64_t key)>& bytes_before);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_OUT_OF_MEMORY_REPORT_H_
