// The text of the report of a failed allocation. The functions depend only on their arguments. Not in this file: when a
// report is made and where it is written (src/api/profiles/out_of_memory.cc).
#ifndef HBMPROF_SRC_EXPORT_OUT_OF_MEMORY_REPORT_H_
#define HBMPROF_SRC_EXPORT_OUT_OF_MEMORY_REPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  DeviceStats stats;            // of the device and space
  std::string tags;             // of the thread, "key=value, key=value"; may be empty
  std::vector<uint64_t> stack;  // of the call, as Snapshot::Stack::return_addresses; empty if it is not known
  // The pool that the call allocates from.
  std::optional<int64_t> pool_limit;
  std::optional<int64_t> pool_in_use;
  bool is_trimmed = false;        // the recorded pools cannot return idle memory
  bool uses_host_memory = false;  // the device is an integrated one
  // A limit of the control group of the process on the memory of the device.
  std::optional<int64_t> device_group_limit;
  std::optional<int64_t> device_group_in_use;
  // A limit of the process that applies to all memory that has an address in the process.
  std::optional<int64_t> address_space_limit;  // RLIMIT_AS
  std::optional<int64_t> address_space_in_use;
  // Limits of the host that apply to memory of the host: of MemorySpace::kPinnedHost and kManaged.
  std::optional<int64_t> memory_lock_limit;  // RLIMIT_MEMLOCK; only for kPinnedHost
  std::optional<int64_t> cgroup_limit;       // the process's control group
  std::optional<int64_t> cgroup_in_use;
  int64_t unreported_failures = 0;  // on this device since the last report
};

// Why an allocation failed.
enum class OutOfMemoryCause {
  kTooLarge,    // the request is larger than the device
  kFragmented,  // enough memory is free, but not in one block, or it is not known whether it is in one block
  kLimit,  // the limit of the pool or of the control group; or any other limit, because enough memory is free in one
           // block
  kHostLimit,       // a limit of the host on the process's addresses or on memory of the host
  kIdlePool,        // the free memory and the idle memory of this process's pools together are enough
  kHostMemory,      // the device uses the memory of the host, of which this process holds the smaller part
  kOtherProcesses,  // other processes hold more than the recorded buffers of this process
  kUnaccounted,     // the unaccounted memory is larger than the recorded buffers of this process
  kFull,            // the recorded buffers of this process hold the largest part of the memory in use
  kUnknown,         // no cause was found, or the device does not report its capacity
};

struct OutOfMemoryVerdict {
  OutOfMemoryCause cause;
  std::string text;  // one or two sentences: the cause with its figures, and what to do
};

// Returns the cause of the failure and its text. If several causes apply, returns the first one that the checks in the
// .cc file find.
OutOfMemoryVerdict JudgeOutOfMemory(const OutOfMemory& failure);

// Returns the device and what failed: "GPU:0: cuMemAlloc_v2 of 2.00 GiB failed (phase=decode)".
std::string OutOfMemoryTitle(const OutOfMemory& failure);

// Returns the report without the list of call stacks: several lines, each of which ends with a line feed.
std::string OutOfMemorySummary(const OutOfMemory& failure);

// Returns the lines of the report that show the bytes of each kind of memory on the device, if it has more than one
// kind, and the other processes that have memory of it; "" if nothing is known. `device` is an index in
// snapshot.devices. `name_of(pid)` returns the name of a process, or "".
std::string OutOfMemoryKindsAndProcesses(const Snapshot& snapshot, uint32_t device,
                                         const std::function<std::string(int64_t pid)>& name_of);

// Returns the text of a stack, as a line of OutOfMemoryHolders has it: "answer < main". `symbolizer` may be null.
std::string OutOfMemoryStack(const Snapshot& snapshot, uint32_t stack, Symbolizer* symbolizer);

// Returns a key that identifies a call stack on one memory space of one device, in all snapshots of one process.
// `stack` and `device` are indices in `snapshot`.
uint64_t HolderKey(const Snapshot& snapshot, uint32_t stack, uint32_t device, MemorySpace space);

// Returns what holds the bytes of a device's memory space in `snapshot`; "" if nothing is in use. First the libraries
// (known_code.h) with their bytes and those that only the driver reports, if there are several holders. Then the call
// stacks that hold the most bytes, in at most ten lines. A line shows the innermost functions of the program's own
// code; those of all code if the stack has no own code. Stacks with the same text share a line. `device` is an index in
// snapshot.devices. `bytes_before(key)` returns the bytes of the holder with this key when the last profile was
// written, or nullopt if none was written. `symbolizer` may be null.
std::string OutOfMemoryHolders(const Snapshot& snapshot, uint32_t device, MemorySpace space, Symbolizer* symbolizer,
                               const std::function<std::optional<int64_t>(uint64_t key)>& bytes_before);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_OUT_OF_MEMORY_REPORT_H_
