// Recordings: files with the events of a profiler over time (docs/recording.md describes the format).
//
// Contents: RecordingTables, DriverSample, LostEvents (all data other than events); RecordingWriter; RecordingReader;
// RecordingState (the ledger at an instant).
//
// A recording is a sequence of blocks. Each block has a length and a checksum, so a file whose end is missing can be
// read up to its last whole block. Elements of tables are never removed or changed: a block of tables adds elements.
#ifndef HBMPROF_SRC_EXPORT_RECORDING_H_
#define HBMPROF_SRC_EXPORT_RECORDING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/pprof.h"
#include "hbmprof/snapshot.h"
#include "src/core/ledger/recorded_event.h"

namespace hbmprof::internal {

// The name of the mark of a failed allocation's report begins with this text.
inline constexpr std::string_view kReportMark = "out of memory: ";
inline bool IsReport(std::string_view mark) { return mark.substr(0, kReportMark.size()) == kReportMark; }

// Whether a live buffer begins or ends with the event.
inline bool Begins(RecordedKind kind) { return kind == RecordedKind::kAlloc || kind == RecordedKind::kMoveTo; }
inline bool Ends(RecordedKind kind) { return kind == RecordedKind::kFree || kind == RecordedKind::kMoveFrom; }

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

// Events that are missing between two times, because they came faster than they could be written, or because the file
// is damaged there.
struct LostEvents {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;  // 0: not known
};

// Writes a recording. One thread at a time. An object whose method has failed (disk full, ...) writes nothing further:
// later calls return the same error. After a failed write the file ends with its last whole block. Throws only
// std::bad_alloc.
//
// Events and samples are collected in memory, about 256 KiB of each, before they are compressed and written.
class RecordingWriter {
 public:
  // Creates the file. An existing file is replaced and keeps its permissions; a new one has the permissions 0600.
  // Errors: those of WritePprof.
  // If `must_be_new`, kAlreadyExists if any file has this name.
  static absl::StatusOr<std::unique_ptr<RecordingWriter>> Create(const std::string& path, bool must_be_new = false);
  virtual ~RecordingWriter() = default;

  // Writes the elements of `tables` that the file does not have yet. `tables` must begin with the elements of the
  // previous call. The elements must be written before the events that refer to them.
  virtual absl::Status AddTables(const RecordingTables& tables) = 0;
  // `events` are of one shard, whole changes (the last event has is_continued false), in order of their times. If an
  // event is earlier than the previous one or belongs to the same change, the time of the previous event is written for
  // it. kInvalidArgument: an event refers to an element that no table has, or has a value out of range.
  virtual absl::Status AddEvents(const RecordedEvent* events, size_t count) = 0;
  virtual absl::Status AddSample(const DriverSample& sample) = 0;
  virtual absl::Status AddLost(const LostEvents& lost) = 0;
  // States that the times of all events that follow are later than `time`, and writes the collected blocks to the file,
  // so they are not lost if the process is killed.
  // A reader needs memory for all events between two calls of Flush: docs/recording.md has the limit.
  virtual absl::Status Flush(int64_t time) = 0;
  // Writes the end block. A file with this block is complete.
  virtual absl::Status Finish(int64_t end_time) = 0;
  // Bytes of the file so far.
  virtual int64_t size() const = 0;
};

// Reads a recording. Memory: the tables, and the events between two Flush calls. One thread at a time.
class RecordingReader {
 public:
  // Opens a file and reads everything except the events. Blocks that are added to the file later are not read. Damaged
  // blocks are left out; where one of them may have held events, lost() has an element. The reading ends at a block of
  // tables that does not continue the tables before it. If the end block is missing or not read, the recording ends at
  // its last flush, because later events may be there of some shards only. Without a flush it has no events. Errors,
  // with the path: kNotFound, kPermissionDenied, kInvalidArgument (not a recording, or of another version), kDataLoss
  // (no block is readable), kInternal (any other error of the system).
  static absl::StatusOr<std::unique_ptr<RecordingReader>> Open(const std::string& path);
  virtual ~RecordingReader() = default;

  // They are complete before the first call of Next: they contain every element to which an event refers. Every
  // reference in them is valid.
  virtual const RecordingTables& tables() const = 0;
  virtual const std::vector<DriverSample>& samples() const = 0;  // in order of time
  virtual const std::vector<LostEvents>& lost() const = 0;
  virtual bool is_complete() const = 0;  // Finish was called
  // Describes the first damage, and where the reading ended because of damage; empty if no damage is found. Messages
  // print it after the path and a colon. Damage inside a block may be found only while the events are read.
  virtual const std::string& problem() const = 0;
  // If the recording is complete, the latest of the start and of all events, samples, Flush and Finish calls. Otherwise
  // the time of the last flush, or of the start. No event or sample is later.
  virtual int64_t end_time() const = 0;
  // Next returns at most this number of events.
  virtual int64_t event_count() const = 0;

  // Stores the next event, in the order of time; the parts of one change come one after the other. Returns false at
  // the end. References to sites, threads, tag sets and marks are valid.
  virtual bool Next(RecordedEvent* event) = 0;
  // Begins again with the first event.
  virtual void Rewind() = 0;
};

// Returns the address of a buffer from the id in its events; nullopt if the id is not an address. A block of a pool has
// the same address as the segment that begins there, and another id.
std::optional<uint64_t> AddressOfBuffer(uint64_t id);

// Returns whether the first bytes of a file are those of a recording, of any version.
bool IsRecording(std::string_view first_bytes);

// The pools of a recording. Their numbers begin at 0.
class RecordedPools {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Pool {
    uint32_t device = 0;
    std::string name;
  };

  explicit RecordedPools(const RecordingTables& tables);

  const std::vector<Pool>& all() const { return pools_; }
  // Returns the pool that has handed out the memory of a site; kNone: the device has.
  uint32_t from(uint32_t site) const { return from_[site]; }
  // Returns the pool whose segments have this site; kNone if they are no segments.
  uint32_t segment_of(uint32_t site) const { return segment_of_[site]; }

 private:
  std::vector<Pool> pools_;
  std::vector<uint32_t> from_, segment_of_;  // by site
};

// Returns the account of a site: device * kMemorySpaceCount + space.
size_t AccountOf(const Snapshot::Sample& site);
// Returns the memory outside tracked allocations: what the driver reports, minus `in_use` and the idle bytes of the
// driver's own pools. It is negative if more is tracked than the driver reports. REQUIRES: `sample` has bytes_in_use.
int64_t Unaccounted(const DriverSample::Device& sample, int64_t in_use);

// The ledger at one instant of a recording. Sums wrap around on overflow, which only a damaged file can cause.
class RecordingState {
 public:
  // The state at the start. `tables` must outlive the object.
  explicit RecordingState(const RecordingTables& tables);

  // Enters the event. Keeps the peak of each account, and the sites' values at that peak, as the ledger does.
  void Apply(const RecordedEvent& event);

  struct Buffer {
    uint32_t site = 0;
    int64_t bytes = 0;
    int64_t time = 0;  // of its allocation; 0: live since before the recording
  };
  // The live buffers, by id. A free of an earlier buffer may come after the allocation of a new buffer with the same
  // id. So a free whose site is not that of the buffer here does not remove it. A segment and the blocks that begin at
  // the same address have different ids.
  const std::unordered_map<uint64_t, Buffer>& live() const { return live_; }
  // Account: device * kMemorySpaceCount + space.
  size_t account_count() const { return accounts_.size(); }
  size_t AccountOf(uint32_t site) const;
  int64_t bytes_in_use(size_t account) const { return accounts_[account].in_use; }
  int64_t peak_bytes(size_t account) const { return accounts_[account].peak; }
  // Bytes in use at a site; of a segment all of its bytes.
  int64_t site_bytes(uint32_t site) const { return sites_[site].values.inuse_bytes; }
  // The time of the last event, or of the start. Within a change, the values are not those of one instant.
  int64_t time() const { return time_; }

  // Returns the snapshot that Profiler::TakeSnapshot would have returned at `time`; if `time` is not set, at time().
  // The driver's values of a device are those of `sample`, if the recorded device memory has not changed since then.
  // Otherwise, or if `sample` is null, the driver's values are not known. The counters are those of `sample`. If
  // `sample_sites` is not null, it is set to the number of the site of each sample; of the idle memory of a pool, to
  // the number of all sites plus that of the pool (RecordedPools). Ages count from the start of the recording: a buffer
  // that is live since before was born then, and one that was freed before was young. REQUIRES: `time` is not earlier
  // than the last event.
  Snapshot ToSnapshot(std::optional<int64_t> time = std::nullopt, const DriverSample* sample = nullptr,
                      std::vector<uint32_t>* sample_sites = nullptr) const;

 private:
  struct Values {
    int64_t alloc_objects = 0;
    int64_t alloc_bytes = 0;
    int64_t inuse_objects = 0;
    int64_t inuse_bytes = 0;
  };
  // If `peaks` is equal to `peaks` of the account, the site has changed since the last peak of the account, and
  // peak_objects and peak_bytes are its values at that peak. Otherwise the site has not changed since then, and its
  // values at the peak are the present ones.
  // The same holds for the peak of the pool that has handed out the site's memory.
  struct Site {
    Values values;
    int64_t peak_objects = 0;
    int64_t peak_bytes = 0;
    uint64_t peaks = 0;
    int64_t pool_peak_objects = 0;
    int64_t pool_peak_bytes = 0;
    uint64_t pool_peaks = 0;
    uint32_t account = 0;
    std::vector<int64_t> freed_by_octave;  // as in Snapshot::Sample
  };
  struct Account {
    int64_t in_use = 0;
    int64_t peak = 0;
    uint64_t peaks = 0;  // number of peaks since the start
    int64_t num_allocs = 0;
    int64_t num_live = 0;
    int64_t largest_alloc = 0;
    int64_t change_time = 0;  // of the last change of in_use; 0: none
    // The buffer whose allocation has made the peak. If its next event moves it to another site while this peak stands,
    // as when it becomes a segment, it counts at its new site at the peak, too.
    std::optional<uint64_t> peak_buffer;
  };
  struct Pool {
    PoolStats stats;     // without segments and idle_bytes
    uint64_t peaks = 0;  // number of peaks of bytes_allocated since the start
  };

  Site& Changed(uint32_t site);
  // Adds the differences `by` to the values of a site, and those in use to its account. Returns the account.
  Account& Change(uint32_t site, const Values& by);
  // Removes the live buffer of the event. Returns the time of its allocation, as in Buffer; no value if it is not
  // known.
  std::optional<int64_t> Remove(const RecordedEvent& event);
  // Counts a buffer of the site that was freed at the instant `time`, by the age that it has reached.
  void CountFreed(uint32_t site, int64_t birth, int64_t time);
  int64_t SecondsAfterStart(int64_t time) const;
  // Returns for each site the live buffers by time of birth (Snapshot::Sample::born).
  std::vector<std::vector<Snapshot::Sample::Born>> Births(int64_t uptime_seconds) const;
  // Counts the moved buffer, which has made the peak of its account, at its new site at this peak.
  void MovePeak(int64_t bytes, uint32_t site);
  void EndChange();
  void BeginPeak(size_t account);

  const RecordingTables& tables_;
  std::vector<Site> sites_;
  std::vector<Account> accounts_;
  std::unordered_map<uint64_t, Buffer> live_;
  int64_t time_ = 0;
  const RecordedPools numbers_;
  std::vector<Pool> pools_;
  // Of the change so far: its account, its pool, and the buffer that was allocated.
  size_t changed_account_ = SIZE_MAX;
  uint32_t changed_pool_ = RecordedPools::kNone;
  std::optional<uint64_t> allocated_;
  Buffer moved_;                 // of the last kMoveFrom
  bool has_moved_peak_ = false;  // whether this buffer had made the peak of its account
};

// A Symbolizer with the names in the recording's tables, which must outlive it.
std::unique_ptr<Symbolizer> NamesOfRecording(const RecordingTables& tables);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_RECORDING_H_
