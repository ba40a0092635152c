// What was recorded, at one instant: an immutable value that exporters read. It knows nothing of the profiler that
// made it, so a test can write one by hand.
//
// Lives here: Snapshot and its parts, DeviceStats, DriverScope, TrackerStats.
// Not here: how it is taken (Profiler::TakeSnapshot), how it is written (pprof.h).
#ifndef HBMPROF_SNAPSHOT_H_
#define HBMPROF_SNAPSHOT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hbmprof/allocation.h"

namespace hbmprof {

// Whose memory a driver's figure counts.
enum class DriverScope : uint8_t {
  kDevice,   // every process's
  kProcess,  // this process's
};

// The state of one memory space of one device. Bytes; names are XLA's. A value that nobody knows is -1.
struct DeviceStats {
  int64_t bytes_in_use = 0;        // every tracked byte not yet freed, idle pool bytes included
  int64_t peak_bytes_in_use = 0;   // highest bytes_in_use since the start or the last ResetPeak
  int64_t num_allocs = 0;          // allocations ever recorded, pool blocks included
  int64_t num_live = 0;            // allocations recorded and not freed, pool blocks and segments included
  int64_t largest_alloc_size = 0;  // largest single allocation ever recorded
  int64_t pool_bytes = 0;          // bytes of live pool segments; part of bytes_in_use
  int64_t bytes_reserved = 0;      // of pool_bytes, what no live block covers
  // From the device itself, where a backend knows them (Profiler::SetDeviceProbe); else -1.
  int64_t bytes_limit = -1;                         // what the device could hold
  int64_t largest_free_block_bytes = -1;            // largest request that could succeed now
  int64_t driver_bytes_in_use = -1;                 // what the driver says is in use
  int64_t driver_peak_bytes_in_use = -1;            // the highest of those, by the driver's own count
  DriverScope driver_scope = DriverScope::kDevice;  // by whom
  int64_t driver_cache_bytes = -1;                  // of that, what the driver's own pools hold beyond live allocations
  // driver_bytes_in_use - bytes_in_use - driver_cache_bytes where the driver's figure is known. May be negative.
  bool unaccounted_known = false;
  int64_t unaccounted = 0;
  // What was unaccounted when the device was first seen; unaccounted - baseline has grown outside tracked allocations.
  std::optional<int64_t> baseline;
};

// Counters of one profiler about its own work. None of them ever goes down.
struct TrackerStats {
  int64_t foreign_frees = 0;       // frees of buffers that were never recorded, or were freed already
  int64_t replaced_records = 0;    // allocations at an id that was live: its free was never seen; it was freed then
  int64_t dropped_records = 0;     // allocations not tracked because a limit was reached
  int64_t dropped_bytes = 0;       // their bytes; stays at the largest int64 when it would overflow
  int64_t reentrant_events = 0;    // events from inside the tracker itself, passed through unrecorded
  int64_t truncated_stacks = 0;    // captures cut at max_stack_depth
  int64_t dropped_tag_values = 0;  // tag scopes whose value became "other"
  int64_t live_records = 0;        // records held now (this one does go down)
  int64_t sites = 0;               // distinct sites seen
  int64_t host_bytes = 0;          // taken by the tables of all profilers of the process (Options::max_host_bytes)
  int64_t max_host_bytes = 0;      // the most that they may take
  std::string unwinder;            // how stacks are captured: "frame_pointer", "libunwind", ...
};

struct Snapshot {
  // One site: a call stack with its labels, and its values. `device`, `allocator` and `stack` index the tables below.
  struct Sample {
    uint32_t stack = 0;
    uint32_t device = 0;
    MemoryKind kind = MemoryKind::kDevice;
    uint32_t allocator = 0;                                 // 0: none
    std::vector<std::pair<std::string, std::string>> tags;  // sorted by key, keys distinct
    // Size of each of the site's allocations. A stack with very many sizes has the rarer ones rounded up to a power of
    // two here; the byte values below are always exact.
    int64_t block_bytes = 0;
    // Ever allocated at this site.
    int64_t alloc_objects = 0;
    int64_t alloc_bytes = 0;
    // Held by this site when its device's memory space was last at its peak.
    int64_t peak_objects = 0;
    int64_t peak_bytes = 0;
    // Held now. A site of kind kPool counts its segments as objects and their idle bytes as bytes.
    int64_t inuse_objects = 0;
    int64_t inuse_bytes = 0;
  };

  // A frame that has a name and no address: a Python function at a line. Texts are UTF-8.
  struct NamedFrame {
    std::string function;
    std::string file;
    int64_t line = 0;        // of the call; 0: not known
    int64_t start_line = 0;  // where the function begins; 0: not known
  };
  // An entry of a stack whose upper 32 bits are these is a named frame; its lower 32 bits index `named_frames`.
  static constexpr uint64_t kNamedFrame = uint64_t{1} << 63;

  // A call stack, innermost frame first. Each entry is a named frame or a return address; the call is at the address
  // before it.
  struct Stack {
    std::vector<uint64_t> return_addresses;
    bool truncated = false;  // there were more frames at the outer end
  };

  // One executable segment of a loaded object. `build_id` is lower-case hex, empty where the object has none.
  struct Module {
    uint64_t start = 0;   // first address
    uint64_t limit = 0;   // one past the last
    uint64_t offset = 0;  // of `start` in the file
    uint64_t bias = 0;    // what was added to the file's own addresses when it was loaded
    std::string path;
    std::string build_id;
  };

  // The Python interpreter of the process.
  struct Python {
    std::string version;  // such as "3.11.7"; empty: the process has none
    std::string problem;  // why its functions are not in the stacks; empty: they are
  };

  struct Device {
    std::string name;
    DeviceStats spaces[kMemorySpaceCount];  // by MemorySpace
  };

  std::vector<Sample> samples;
  std::vector<Stack> stacks;
  std::vector<NamedFrame> named_frames;
  std::vector<Device> devices;
  std::vector<std::string> allocators;  // allocators[0] is ""
  std::vector<Module> modules;          // the main program's first segment first, then by address
  TrackerStats tracker;
  Python python;
  std::vector<std::pair<std::string, int64_t>> counters;  // the program's own (Profiler::SetCounter), sorted by name
  int64_t time_unix_nanos = 0;
  int64_t process_id = 0;
  std::string host;
};

}  // namespace hbmprof

#endif  // HBMPROF_SNAPSHOT_H_
