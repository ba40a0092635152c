// Recordings: files with the events of a profiler over time (docs/spec/recording.md describes the format).
//
// Contents: RecordingTables, DriverSample, LostEvents: all data other than events (recorded_event.h). writer.h writes
// them, and the command reads them (src/tool/reader).
//
// A recording is a sequence of blocks. Each block has a length and a checksum, so a file whose end is missing can be
// read up to its last whole block. Elements of tables are never removed or changed: a block of tables adds elements.
#ifndef HBMPROF_SRC_RECORDING_RECORDING_H_
#define HBMPROF_SRC_RECORDING_RECORDING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// The name of the mark of a failed allocation's report begins with this text.
inline constexpr std::string_view kReportMark = "out of memory: ";
// The name of the mark at the end of a Python program, before the interpreter frees its variables.
inline constexpr char kPythonEndMark[] = "end of Python";
// The mark at an instant from which on allocations and frees are missing.
inline constexpr char kOffMark[] = "recording off";

// The sites, stacks, names and other elements that the events refer to by number.
struct RecordingTables {
  // Sites by number. `stack`, `device` and `allocator` are indices into the vectors of `names`. The values (alloc_...,
  // peak_..., inuse_...) are those at the start of the recording.
  std::vector<Snapshot::Sample> sites;
  // Per site: 0 if the device has handed out its memory, otherwise 1 plus the index in names.allocators of the pool
  // that has done it. Segments are the sites of kind kPool; their allocator is their own pool.
  std::vector<uint32_t> site_pools;
  bool IsSegment(uint32_t site) const { return sites[site].kind == MemoryKind::kPool; }
  bool IsOfPool(uint32_t site) const { return site_pools[site] != 0; }
  // The vectors stacks, named_frames, devices (with their values at the start), allocators and modules are used, and
  // process_id, host, tracker.unwinder, python, warnings. `samples` is empty.
  Snapshot names;
  // Function names by address. An address is a return address of a stack, minus 1. A missing address has no name.
  struct FunctionName {
    std::string system_name;
    std::string name;
  };
  std::unordered_map<uint64_t, FunctionName> functions;
  std::vector<std::vector<std::pair<std::string, std::string>>> tag_sets;  // [0] is empty
  struct Thread {
    int64_t id = 0;  // as gettid(2) returns it
    std::string name;
  };
  std::vector<Thread> threads;
  struct Mark {
    // Such as the path of a profile. The mark of the report of a failed allocation has kReportMark and the failed call.
    std::string name;
  };
  std::vector<Mark> marks;
  // Buffers that are live at the start of the recording: id, site, bytes. Incomplete if `live_is_complete` is false.
  struct Live {
    uint64_t id = 0;
    uint32_t site = 0;
    int64_t bytes = 0;
  };
  std::vector<Live> live;
  bool live_is_complete = true;
  // The totals and peaks at the start are in names.devices. The values of the sites at these peaks are in `sites`.
  int64_t start_time = 0;        // nanoseconds of CLOCK_MONOTONIC
  int64_t start_unix_nanos = 0;  // of the same instant
};

// The numbers of the driver and of the system at one instant.
struct DriverSample {
  int64_t time = 0;  // nanoseconds of CLOCK_MONOTONIC
  struct Device {
    uint32_t device = 0;  // index in RecordingTables::names.devices
    std::optional<int64_t> bytes_in_use, bytes_free, bytes_limit, largest_free_block_bytes, cache_bytes;
  };
  std::vector<Device> devices;
  std::optional<int64_t> host_resident_bytes;             // of the process
  std::vector<std::pair<std::string, int64_t>> counters;  // Profiler::SetCounter
};

// Events that are missing between two times, because they came faster than they could be written.
struct LostEvents {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_RECORDING_RECORDING_H_
