// RecordingState: the ledger at an instant of a recording. RecordedPools: the numbers of its pools.
#ifndef HBMPROF_SRC_TOOL_READER_STATE_H_
#define HBMPROF_SRC_TOOL_READER_STATE_H_

#include <unordered_map>

#include "hbmprof/pprof.h"
#include "hbmprof/snapshot.h"
#include "src/core/ledger/recorded_event.h"
#include "src/recording/recording.h"
#include "src/tool/util/common.h"

namespace hbmprof::internal {

// Returns the address of a buffer from the id in its events; nullopt if the id is not an address. A block of a pool has
// the same address as the segment that begins there, and another id.
std::optional<uint64_t> AddressOfBuffer(uint64_t id);

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
  // What a site had in use at the last peak of its account, or of the pool that has handed out its memory. `now`: the
  // number of peaks of these.
  struct AtPeak {
    int64_t objects = 0;
    int64_t bytes = 0;
    uint64_t peaks = 0;  // If it is not `now`, the site has not changed since the last peak, so it had what it has.
    AtPeak Of(const Values& values, uint64_t now) const {
      return peaks == now ? *this : AtPeak{values.inuse_objects, values.inuse_bytes, now};
    }
  };
  struct Site {
    Values values;
    AtPeak peak;
    AtPeak pool_peak;
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

#endif  // HBMPROF_SRC_TOOL_READER_STATE_H_
