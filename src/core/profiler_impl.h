// ProfilerImpl: the implementation of Profiler. Connects the site finder, the live table, the ledger and the pools. The
// functions that record are in profiler.cc, those of snapshots in snapshot_builder.cc.
//
// Each event takes the same steps: find the site (for an allocation), lock the shard, change the live table and the
// ledger, unlock. A thread whose stack or site is not cached takes the slower RecordSlow to find it. After an
// allocation, the live table grows by a limited step. Its buckets overflow until it is large enough.
#ifndef HBMPROF_SRC_CORE_PROFILER_IMPL_H_
#define HBMPROF_SRC_CORE_PROFILER_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hbmprof/profiler.h"
#include "src/base/thread_state.h"
#include "src/capture/capture.h"
#include "src/capture/python/python_frames.h"
#include "src/core/ledger/ledger.h"
#include "src/core/ledger/pools.h"
#include "src/core/ledger/trace.h"
#include "src/core/names.h"
#include "src/core/probes.h"
#include "src/core/scoped_caller.h"
#include "src/core/site_finder.h"
#include "src/core/tables/live_table.h"
#include "src/core/tables/site_table.h"
#include "src/core/tables/tags.h"

namespace hbmprof::internal {

// The largest values of Options::max_live_buffers and max_host_bytes. The other two limits are kMaxStackDepth (walk.h)
// and SiteTable::kMaxSites.
inline constexpr int64_t kMaxLiveBuffersLimit = int64_t{1} << 32;
inline constexpr int64_t kMaxHostBytesLimit = int64_t{1} << 50;

// What TakeSnapshot reads.
enum class SnapshotParts : uint8_t {
  kDevices,  // the totals of the devices, but no samples: costs the same for any number of sites
  kSums,     // also a sample for all sites of a device with the same kind and tags, without stacks and ages
  kAll,
};

class ProfilerImpl {
 public:
  // `is_enabled`: the switch of the Profiler that owns this object. Throws std::bad_alloc.
  ProfilerImpl(const Options& options, std::atomic<bool>& is_enabled);
  ~ProfilerImpl();

  Names names;
  ProbeTable probes;

  const SiteFinder& finder() const { return finder_; }
  const SiteTable& sites() const { return sites_; }
  const LiveTable& live() const { return live_; }
  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }

  // `attributes`: from PackAttributes.
  bool RecordAlloc(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) noexcept;
  std::optional<int64_t> RecordFree(BufferId id) noexcept;
  void RecordRefusedFree() { refused_frees_.fetch_add(1, std::memory_order_relaxed); }
  uint32_t KeepSite(const Caller& caller, size_t bytes, const Attributes& attributes);
  bool RecordAllocAt(uint32_t site, BufferId id, size_t bytes);
  bool RecordSegment(const Caller& caller, const Pool& pool, BufferId address, size_t bytes);
  // Makes the live buffer `id`, which may be a handle, a segment of `pool`. Returns true also if it is one already.
  // Returns false if there is no such buffer, or if it cannot be a segment of this pool.
  bool MakeSegment(BufferId id, const Pool& pool);
  std::optional<int64_t> RecordSegmentFree(const Pool& pool, BufferId address);
  // `around`: a pool of the same device in whose segment the block is known to lie; null: none is known. It has handed
  // the block out if `pool` has no segment. Without it, such a block counts as a buffer. `is_live`: see Pools::Add.
  bool RecordBlock(const Caller& caller, const Pool& pool, BufferId address, size_t bytes, const Pool* around = nullptr,
                   bool* is_live = nullptr) noexcept;
  std::optional<int64_t> RecordBlockFree(const Pool& pool, BufferId address) noexcept;
  bool RecordResize(BufferId id, size_t bytes);
  bool RecordBlockResize(const Pool& pool, BufferId address, size_t bytes);
  std::optional<LiveBuffer> FindBuffer(BufferId id) const {
    return Pools::IsBufferId(id) ? Find(id.value()) : std::nullopt;
  }
  std::optional<FoundBuffer> FindBufferAt(BufferId address) const;
  // The block of `pool` at `address`. It and FindBuffer take locks even inside the tracker: not for signal handlers.
  std::optional<LiveBuffer> FindBlock(const Pool& pool, BufferId address) const {
    return Find(IdOfBlock(sites_.pools().Find(Clamp(pool)), address));
  }
  // Gives the live record of `id` the caller's stack, the present tags and, if `allocator` is not 0, the allocator.
  // Nothing else changes. The change is one event, in which nothing is allocated or freed. The record stays as it is if
  // it is a segment, or if the host has no memory for the new site. Returns false if there is no record.
  bool Reattribute(const Caller& caller, BufferId id, AllocatorId allocator);

  // Ends the records that the pool has handed out and that begin in [start, start+bytes). Its segments stay.
  void EndBlocks(const Pool& pool, uint64_t start = 0, uint64_t bytes = UINT64_MAX);
  // The numbers of a pool; its name is empty.
  PoolStats StatsOf(const Pool& pool) const;

  // PoolStats::bytes_reserved of a pool. Takes no lock.
  int64_t ReservedBytes(const Pool& pool) const { return ledger_.ReservedBytes(sites_.pools().Find(Clamp(pool))); }

  // Sets the function that is called when recording is turned on again, before that takes effect, on the thread that
  // turns it on and with no lock held; null: none. What it knows must be read anew, because the allocations and frees
  // of the pause are missing.
  void SetResumeHook(void (*resumes)()) { resumes_.store(resumes, std::memory_order_release); }
  // Each snapshot is passed to `finish` before TakeSnapshot returns it, inside the tracker and with no lock held.
  void SetSnapshotFinisher(void (*finish)(Snapshot*)) { finish_snapshot_.store(finish, std::memory_order_release); }

  DeviceStats Stats(DeviceId device, MemorySpace space) const;
  TrackerStats GetTrackerStats() const;
  // The same with this number of live records. Takes no lock of a shard.
  TrackerStats TrackerStatsWith(int64_t live_records) const;
  Snapshot TakeSnapshot(SnapshotParts parts = SnapshotParts::kAll) const;
  void ResetPeak(DeviceId device);
  // Called before recording is turned on or off. If it is turned on, calls the function of SetResumeHook.
  void Switches(bool on);
  // Says when recording was off last, and first; "" if it was not.
  std::string PauseWarning() const;
  void EndDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<BufferId>& kept);
  // Counts an allocation that is not recorded.
  [[gnu::cold, gnu::noinline]] void RecordDropped(uint64_t bytes);
  // Returns the site of a failed allocation: the stack that begins at `caller` and the thread's tags, with size 0, so
  // that failures of many sizes have one site. Returns kNoSite if a limit was reached. REQUIRES: the thread has entered
  // the tracker.
  SiteId SiteOfFailure(const Caller& caller, DeviceId device, MemorySpace space);

 private:
  friend class AllProfilers;

  // An event of a thread that may be inside the tracker, from its begin to its end: enters the tracker, and leaves it.
  class GuardedEvent {
   public:
    explicit GuardedEvent(ProfilerImpl& profiler) : is_recorded_(guard_.entered() && BeginEvent()) {
      if (!guard_.entered()) profiler.reentrant_events_.fetch_add(1, std::memory_order_relaxed);
    }
    GuardedEvent(const GuardedEvent&) = delete;
    GuardedEvent& operator=(const GuardedEvent&) = delete;
    // Returns whether the event is recorded. It is not if the thread was inside the tracker (then it is counted), or if
    // the process is off (fork.h).
    bool is_recorded() const { return is_recorded_; }

   private:
    const ReentryGuard guard_;
    const bool is_recorded_;
  };

  // Records an allocation with this id. If there is no space for it, the record of its id, whose free was not recorded,
  // ends to make it. `is_live`: see Pools::Add.
  bool Record(const Caller& caller, uint64_t id, size_t bytes, SiteLabels labels, bool* is_live = nullptr) noexcept;
  // The same, if the site is not cached or the thread may be inside the tracker.
  [[gnu::noinline]] bool RecordSlow(Caller caller, uint64_t id, size_t bytes, SiteLabels labels,
                                    bool* is_live = nullptr) noexcept;
  // Enters a record, and returns whether it was entered: if not, it is dropped.
  bool Enter(uint64_t id, SiteId site, int64_t bytes, bool* is_live = nullptr);
  std::optional<LiveBuffer> Find(uint64_t id) const;
  // Ends the record of `id`. Returns its size. If there is none, counts a foreign free.
  std::optional<int64_t> End(uint64_t id) noexcept;
  // Returns the pool with its device and its allocator in their ranges.
  static Pool Clamp(const Pool& pool) {
    const Attributes attributes = UnpackAttributes(Clamp({pool.device, MemoryKind::kDevice, pool.allocator}));
    return {attributes.device, attributes.allocator};
  }
  // Returns the number of a pool that has none yet. Returns 0 if there are too many, or if nothing is recorded now.
  [[gnu::cold, gnu::noinline]] PoolNumber MakePoolNumber(const Pool& pool);
  // Returns the id of a block. Returns 0 if the pool has no number, or if no block can have this address.
  static uint64_t IdOfBlock(PoolNumber pool, BufferId address) {
    const bool is_possible = pool != 0 && !address.is_null() && Pools::IsBlockAddress(address.value());
    return is_possible ? Pools::IdOfBlock(pool, address.value()) : 0;
  }
  // The site of an event that is recorded now. `attributes` are within their limits.
  SiteId SiteOf(const Caller& caller, uint64_t attributes, PoolNumber from) {
    return finder_.SiteOf(caller, {attributes, current_tags, from});
  }
  // RecordDropped, for a function that returns whether it has recorded the event. Returns false.
  bool Drop(uint64_t bytes) {
    RecordDropped(bytes);
    return false;
  }
  // Returns packed attributes with values that are out of range replaced.
  static uint64_t Clamp(const Attributes& attributes) {
    const uint64_t packed = PackAttributes(attributes);
    return NeedClamp(packed) ? ClampSlow(packed) : packed;
  }
  [[gnu::cold]] static uint64_t ClampSlow(uint64_t packed);

  std::atomic<ProfilerImpl*> next_{nullptr};  // in the list of all profilers
  std::atomic<bool>& enabled_;
  const int64_t max_host_bytes_;
  const int64_t max_live_;
  SiteTable sites_;
  LiveTable live_;
  Ledger ledger_;
  SiteFinder finder_;
  mutable Pools pools_;

  std::atomic<void (*)()> resumes_{nullptr};
  std::atomic<void (*)(Snapshot*)> finish_snapshot_{nullptr};
  std::atomic<int64_t> reentrant_events_{0};
  std::atomic<int64_t> foreign_frees_{0};
  std::atomic<int64_t> refused_frees_{0};
  std::atomic<int64_t> dropped_records_{0};
  std::atomic<int64_t> dropped_bytes_{0};
  // In nanoseconds of Unix time; 0: never.
  std::atomic<int64_t> first_off_{0};
  std::atomic<int64_t> last_off_{0};
  std::atomic<int64_t> last_on_{0};
  std::atomic<Generation> resumed_{0};  // the generation of last_on_
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_PROFILER_IMPL_H_
