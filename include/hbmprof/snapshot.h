// Snapshot: a copy of all data that a profiler has recorded, taken at one instant. Exporters read it (pprof.h). It does
// not refer to the profiler, so a test can write one by hand.
//
// A std::optional without a value means: not known.
#ifndef HBMPROF_SNAPSHOT_H_
#define HBMPROF_SNAPSHOT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hbmprof/allocation.h"

namespace hbmprof {

// The processes whose memory a driver's number counts.
enum class DriverScope : uint8_t {
  kDevice,   // all processes on the device
  kProcess,  // this process
};

// One memory space of one device. The fields have XLA's names. Values are bytes, unless stated otherwise.
struct DeviceStats {
  int64_t bytes_in_use = 0;        // recorded and not freed, idle memory of pools included
  int64_t peak_bytes_in_use = 0;   // the highest bytes_in_use since the start or the last ResetPeak
  int64_t num_allocs = 0;          // count: allocations ever recorded, blocks of pools included
  int64_t num_live = 0;            // count: allocations recorded and not freed, blocks and segments of pools included
  int64_t largest_alloc_size = 0;  // the largest single allocation ever recorded; segments and new sizes are included
  int64_t pool_bytes = 0;          // segments of pools that the device has handed out; part of bytes_in_use
  int64_t idle_bytes = 0;          // idle memory of all pools; part of pool_bytes
  // From the device's probe (Profiler::SetDeviceProbe). Only for MemorySpace::kDevice.
  std::optional<int64_t> bytes_limit;               // capacity of the device
  std::optional<int64_t> bytes_free;                // free bytes, which any process can allocate
  std::optional<int64_t> largest_free_block_bytes;  // the largest allocation that could succeed now
  std::optional<int64_t> driver_bytes_in_use;       // in use, as reported by the driver
  std::optional<int64_t> driver_peak_bytes_in_use;  // the highest driver_bytes_in_use, as reported by the driver
  DriverScope driver_scope = DriverScope::kDevice;  // the processes that the driver's numbers count
  std::optional<int64_t> driver_cache_bytes;        // part of driver_bytes_in_use: idle bytes of the driver's own pools
  // driver_bytes_in_use - bytes_in_use - driver_cache_bytes (0 if that is not known). May be negative.
  std::optional<int64_t> unaccounted;
  // `unaccounted` when the device was first seen, if the probe reports it. Its growth since then is memory outside of
  // recorded allocations.
  std::optional<int64_t> baseline;
};

// One pool of one device (Pool in allocation.h). Values are bytes, unless stated otherwise.
struct PoolStats {
  std::string name;                  // the name of its allocator; may be empty
  int64_t bytes_reserved = 0;        // live segments
  int64_t bytes_allocated = 0;       // live blocks, and segments of other pools inside this one
  int64_t idle_bytes = 0;            // bytes_reserved - bytes_allocated, or 0 if that is negative
  int64_t peak_bytes_reserved = 0;   // the highest bytes_reserved since the start or the last ResetPeak
  int64_t peak_bytes_allocated = 0;  // the highest bytes_allocated since then
  int64_t segments = 0;              // count: live segments
};

// A process that has memory of a device, as the driver reports it.
struct DeviceProcess {
  int64_t process_id = 0;        // in the process id name space of the driver
  std::optional<int64_t> bytes;  // of the device's memory
  bool is_this = false;          // this process
};

// The work of one profiler. Counts, unless stated otherwise. Only live_records, host_bytes and max_host_bytes can
// decrease.
struct TrackerStats {
  int64_t foreign_frees = 0;       // frees of buffers that were not recorded, or were freed already
  int64_t refused_frees = 0;       // frees that the device or the allocator refused; the records have ended
  int64_t replaced_records = 0;    // allocations at the id of a live buffer; its record ended, as its free was not seen
  int64_t dropped_records = 0;     // allocations not recorded because a limit was reached
  int64_t dropped_bytes = 0;       // their bytes; stays at the largest int64_t if it would overflow
  int64_t reentrant_events = 0;    // events from inside the profiler, which are not recorded
  int64_t truncated_stacks = 0;    // stacks that lost their outermost frames
  int64_t dropped_tag_values = 0;  // tag scopes whose value became "other", or that had no effect
  int64_t live_records = 0;        // buffers recorded now
  int64_t sites = 0;               // different call sites so far
  int64_t host_bytes = 0;      // bytes of host memory that the tables of all profilers take (Options::max_host_bytes)
  int64_t max_host_bytes = 0;  // bytes that they may take
  // How stacks are captured: "cached_rules" or "frame_pointer" or "none".
  std::string unwinder;
};

struct Snapshot {
  // One call site: a stack with its labels, and its values. `stack`, `device` and `allocator` are indices into the
  // vectors `stacks`, `devices` and `allocators` below.
  struct Sample {
    uint32_t stack = 0;
    uint32_t device = 0;
    MemoryKind kind = MemoryKind::kDevice;
    uint32_t allocator = 0;                                 // 0: no allocator name
    std::vector<std::pair<std::string, std::string>> tags;  // key and value; sorted by key, each key once
    // Allocated since the start.
    int64_t alloc_objects = 0;
    int64_t alloc_bytes = 0;
    // Live at the last peak of the site's memory space on the site's device.
    int64_t peak_objects = 0;
    int64_t peak_bytes = 0;
    // Live now. Each byte in use is counted once: in a buffer, in a block of a pool, or in the pool's idle memory. The
    // idle memory of a pool is one sample of kind kPool, with the stack `[idle memory of NAME]`; its objects are the
    // pool's segments, and it has no other values than those of peak_ and inuse_.
    int64_t inuse_objects = 0;
    int64_t inuse_bytes = 0;
    // Live now, by the stack of the call that took the memory from the device: buffers and segments, but no blocks.
    // Their sum is the bytes in use, too. A segment has its own sample of kind kPool with no other values than these.
    int64_t reserved_objects = 0;
    int64_t reserved_bytes = 0;
    // Of a block: live at the last peak of the bytes that its pool has allocated (PoolStats::peak_bytes_allocated).
    int64_t pool_peak_objects = 0;
    int64_t pool_peak_bytes = 0;

    // The live buffers by their time of birth, in classes that `birth_class_log2` describes. Classes without buffers
    // are left out. The sums over the classes are inuse_objects and inuse_bytes. Empty if the ages are not known.
    struct Born {
      uint32_t birth_class = 0;
      int64_t objects = 0;
      int64_t bytes = 0;
    };
    std::vector<Born> born;  // sorted by class
    // The number of freed buffers by the age that they reached: element i counts those from 2^i to 2^(i+1) seconds, the
    // 24th element also older ones. Not counted are younger buffers, and most of those that were freed in the interval
    // of their birth. (An interval has a second, or at most 0.1 % of the uptime if that is more.) Zeros at the end are
    // left out.
    std::vector<int64_t> freed_by_octave;
  };

  // A frame with a name and without an address: a Python function at a line. Texts are UTF-8.
  struct NamedFrame {
    std::string function;
    std::string file;
    int64_t line = 0;        // of the call; 0 if it is not known
    int64_t start_line = 0;  // the first line of the function; 0 if it is not known
  };
  // If the upper 32 bits of an element of a stack are equal to those of kNamedFrame, the element is a named frame, and
  // its lower 32 bits are its index in `named_frames`.
  static constexpr uint64_t kNamedFrame = uint64_t{1} << 63;
  static constexpr bool IsNamedFrame(uint64_t element) { return element >> 32 == kNamedFrame >> 32; }

  // A call stack, innermost frame first. Each element is a named frame or a return address: the call
  // instruction lies before it.
  struct Stack {
    std::vector<uint64_t> return_addresses;
    bool truncated = false;  // the outermost frames are missing
  };

  // One executable segment of a loaded program or library. Addresses are those of the process.
  struct Module {
    uint64_t start = 0;    // first address
    uint64_t limit = 0;    // one past the last address
    uint64_t offset = 0;   // the offset of `start` in the file
    uint64_t bias = 0;     // address in the process - address in the file's symbol table
    std::string path;      // of the file
    std::string build_id;  // lower-case hexadecimal; empty if the file has none
  };

  // The Python interpreter of the process.
  struct Python {
    std::string version;  // such as "3.11.7"; empty if the process has no interpreter
    std::string problem;  // the reason why its functions are not in the stacks; empty if they are
  };

  struct Device {
    std::string name;
    DeviceStats spaces[kMemorySpaceCount];  // by MemorySpace
    // From the device's probe.
    std::string uuid;                      // as NVML, Triton and DCGM show it: "GPU-..."; empty if it is not known
    std::vector<DeviceProcess> processes;  // that have memory of the device; empty if they are not known
    std::vector<PoolStats> pools;          // in the order of their first events
  };

  std::vector<Sample> samples;
  std::vector<Stack> stacks;
  std::vector<NamedFrame> named_frames;  // of the process so far; later snapshots begin with the same elements
  std::vector<Device> devices;           // with records, a probe or a name; the index is not a DeviceId
  std::vector<std::string> allocators;   // allocators[0] is ""
  std::vector<Module> modules;           // the main program's first segment first, then by address
  TrackerStats tracker;
  Python python;
  std::vector<std::pair<std::string, int64_t>> counters;  // Profiler::SetCounter: name and value, sorted by name
  std::vector<std::string> warnings;                      // sentences: what the profile does not show, and why
  int64_t time_unix_nanos = 0;                            // when the snapshot was taken
  // Since the start of recording: the first profiler of the process or, in a forked child, of the parent. No value if
  // the ages of the buffers are not known.
  std::optional<int64_t> uptime_seconds;
  // Class i of Sample::born has the buffers born between i << birth_class_log2 and (i + 1) << birth_class_log2 seconds
  // after the start. There are 33 to 64 classes, or fewer in the first minute.
  int birth_class_log2 = 0;
  int64_t process_id = 0;
  std::string host;  // name of the machine
  // Variables of the environment that say which part of a distributed run, or which pod, this process is, and how
  // PyTorch's allocator is set: name, value.
  // docs/spec/profile.md lists them.
  std::vector<std::pair<std::string, std::string>> environment;
};

}  // namespace hbmprof

#endif  // HBMPROF_SNAPSHOT_H_
