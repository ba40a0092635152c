// ProfilerImpl: the implementation of Profiler. Records events: connects the site finder, the live table, the ledger
// and the pools, each of which has one small interface.
//
// Each of the four frequent functions (RecordAlloc, RecordFree, RecordBlock, RecordBlockFree) is a fast path, which
// enters the event if everything about it is common: no other thread holds the lock of its shard, the site is cached,
// and so on. Otherwise nothing has changed yet, and it ends with RecordAllocUncommon, RecordBlockUncommon or
// RecordFreeUncommon, which record any event. After a Flush of the ledger and after most uncommon events, the live
// table is resized by a limited step. Its buckets overflow until it fits.
#ifndef HBMPROF_SRC_CORE_PROFILER_IMPL_H_
#define HBMPROF_SRC_CORE_PROFILER_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hbmprof/profiler.h"
#include "src/base/thread_state.h"
#include "src/base/traceback.h"
#include "src/capture/capture.h"
#include "src/capture/python/python_frames.h"
#include "src/core/ledger/ledger.h"
#include "src/core/ledger/trace.h"
#include "src/core/names.h"
#include "src/core/pools/pools.h"
#include "src/core/probes.h"
#include "src/core/scoped_caller.h"
#include "src/core/site_finder.h"
#include "src/core/tables/births.h"
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
  // `is_enabled`: the switch of the Profiler that owns this object.
  ProfilerImpl(const Options& options, std::atomic<bool>& is_enabled);

  // For the list of all profilers (all_profilers.h).
  std::atomic<ProfilerImpl*> next{nullptr};
  std::atomic<bool>& enabled;
  const int64_t max_host_bytes;

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
  bool RecordSegment(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes);
  bool RecordBlock(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) noexcept;
  std::optional<int64_t> RecordBlockFree(BufferId address) noexcept;
  bool RecordResize(BufferId id, size_t bytes);
  bool RecordBlockResize(BufferId address, size_t bytes);
  bool SplitSegment(BufferId address, size_t bytes);
  bool MergeSegments(BufferId first, BufferId second);
  std::optional<LiveBuffer> FindBuffer(BufferId id) const;
  std::optional<FoundBuffer> FindBufferAt(BufferId address) const;
  // The innermost block at `address`. It and FindBuffer take locks even inside the tracker: not for signal handlers.
  std::optional<LiveBuffer> FindBlock(BufferId address);
  // Gives the live record of `id` the caller's stack, the present tags and, if `allocator` is not 0, the allocator.
  // Nothing else changes. The change is one event, in which nothing is allocated or freed. The record stays as it is if
  // it is of kind kPool, or if the host has no memory for the new site. Returns false if there is no record.
  bool Refine(const Caller& caller, BufferId id, AllocatorId allocator);

  // Changes the id of the live record of `id`, which is not a segment, to `new_id`. No total changes. Returns false,
  // and changes nothing, if there is no such record, if `new_id` is live, or if the host has no memory.
  bool Rename(BufferId id, BufferId new_id);
  // Frees all blocks of `allocator` on `device`. Segments stay.
  void EndBlocks(DeviceId device, AllocatorId allocator);
  // Returns the bytes of the live blocks of `allocator` on `device`. Takes the locks of all shards, and a time that
  // grows with the number of live records. Returns nullopt if nothing can be recorded now or the host has no memory.
  std::optional<int64_t> BlockBytes(DeviceId device, AllocatorId allocator);

  // Each snapshot is passed to `finish` before TakeSnapshot returns it, inside the tracker and with no lock held.
  void SetSnapshotFinisher(void (*finish)(Snapshot*)) { finish_snapshot_.store(finish, std::memory_order_release); }

  DeviceStats Stats(DeviceId device, MemorySpace space) const;
  TrackerStats TrackerStatsOfParts() const;  // all but live_records; takes no lock of a shard
  TrackerStats GetTrackerStats() const;
  Snapshot TakeSnapshot(SnapshotParts parts = SnapshotParts::kAll) const;
  void ResetPeak(DeviceId device);
  void DropDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<BufferId>& kept);
  // Counts an allocation that is not recorded.
  [[gnu::cold]] void RecordDropped(uint64_t bytes);
  // Returns the site of a failed allocation: the stack that begins at `caller` and the thread's tags, with size 0, so
  // that failures of many sizes have one site. Returns kNoSite if a limit was reached. REQUIRES: the thread has entered
  // the tracker.
  SiteId SiteOfFailure(const Caller& caller, DeviceId device, MemorySpace space);

  // In a forked child. Removes all probes. If `is_usable`, makes the tables of events anew and sets the counters to 0.
  // Otherwise turns recording off for ever; the contents of these tables are then undefined.
  void StartInChild(bool is_usable);
  bool has_given_up() const { return has_given_up_.load(std::memory_order_relaxed); }

 private:
  // An event that is not a common one, from its begin to its end: enters the tracker, and leaves it.
  class UncommonEvent {
   public:
    explicit UncommonEvent(ProfilerImpl& profiler) : profiler_(profiler) {
      if (!guard_.entered()) profiler.reentrant_events_.fetch_add(1, std::memory_order_relaxed);
    }
    ~UncommonEvent() {
      if (guard_.entered()) profiler_.finder_.CountTruncated();
    }
    UncommonEvent(const UncommonEvent&) = delete;
    UncommonEvent& operator=(const UncommonEvent&) = delete;
    // Returns whether the event is recorded. It is not if the thread was inside the tracker (then it is counted), or if
    // the process is a forked child that cannot record.
    bool is_recorded() const { return guard_.entered() && !profiler_.has_given_up(); }

   private:
    const ReentryGuard guard_;
    ProfilerImpl& profiler_;
  };

  // Returns whether a buffer can have this id: it is not null, and not that of a block (Pools::IsBlockId).
  static bool IsBuffer(BufferId id) { return static_cast<int64_t>(id.value()) > 0; }
  // Record any event. An allocation without space first ends the old record of its id, to make it; so does a drop.
  // `known`: the site, if the fast path has found it; else kNoSite.
  bool RecordAllocUncommon(Caller caller, BufferId id, size_t bytes, uint64_t attributes, bool is_uncached,
                           SiteId known) noexcept;
  std::optional<int64_t> RecordFreeUncommon(BufferId id, bool is_block) noexcept;
  bool RecordBlockUncommon(Caller caller, BufferId address, size_t bytes, const Attributes& attributes,
                           bool is_uncached) noexcept;
  // Does what is due after kEnteredAndCounted.
  [[gnu::noinline]] void Flush() noexcept;

  // The site of an event that is recorded now. `attributes` are within their limits.
  SiteId SiteOf(const Caller& caller, uint64_t attributes, bool in_pool, bool is_uncached = false) {
    return finder_.SiteOf(caller, {attributes, current_tags, in_pool}, is_uncached);
  }
  // Enters a buffer that is recorded now. Returns false if the record was dropped.
  bool Enter(BufferId id, SiteId site, int64_t bytes);
  // Completes an addition, of which Pools has returned `added` and `replaced`. Returns false if the record was dropped.
  bool Complete(Pools::Added added, bool replaced, int64_t bytes);
  // Counts a record whose free was not recorded, and which was removed now. Returns `is_removed`.
  bool CountReplaced(bool is_removed);
  // RecordDropped, for a function that returns whether it has recorded the event. Returns false.
  bool Drop(uint64_t bytes) {
    RecordDropped(bytes);
    return false;
  }
  // Changes the size of the live table by a limited step towards the size that fits, and returns whether it fits now.
  // Also sets size_limit_.
  bool Resize() {
    const int64_t records = ledger_.live_records();
    const bool fits = live_.Resize(records);
    const size_t limit = records < max_live_ ? usual_size_limit() : 0;
    // Other threads read the cache line, so it is written only if the value changes.
    if (size_limit_.load(std::memory_order_relaxed) != limit) size_limit_.store(limit, std::memory_order_relaxed);
    return fits;
  }
  // Returns whether the fast path may record a block: it may lie in one segment, on the only device that has segments,
  // or on the device that the caller names.
  bool MayBeCommonBlock(uint64_t start, size_t bytes, const Attributes& attributes) const {
    return start != 0 && Pools::IsBlockAddress(start) && bytes < size_limit_.load(std::memory_order_relaxed) &&
           pools_.has_segments() && Pools::IsForBlocks(attributes.kind) && attributes.kind != MemoryKind::kAlias;
  }
  // The word of the site of such a block, for the thread's present tags.
  SiteWord WordOfBlock(Attributes attributes) const {
    attributes.device = pools_.ProbableDevice(attributes.device);
    return {Clamp(attributes), current_tags, /*in_pool=*/true};
  }
  // Whether a new record of this size may be made. (live_records() can be a little out of date.)
  bool HasCapacity(size_t bytes) const { return bytes <= LiveTable::kMaxBytes && ledger_.live_records() < max_live_; }
  // Returns whether packed attributes are not those of a common event: some of them may be out of range, or the kind
  // may be kExternal or kAlias.
  static bool AreUncommon(uint64_t attributes) {
    constexpr uint64_t kCommon =
        PackAttributes({DeviceId{kMaxDevices - 1}, MemoryKind{7}, AllocatorId{kMaxAllocators - 1}});
    static_assert(static_cast<int>(MemoryKind::kAlias) > 7 && (kMaxDevices & (kMaxDevices - 1)) == 0);
    return __builtin_expect((attributes & ~kCommon) != 0, 0) != 0;
  }
  // Returns packed attributes with values that are out of range replaced.
  static uint64_t Clamp(uint64_t attributes) { return AreUncommon(attributes) ? ClampSlow(attributes) : attributes; }
  static uint64_t Clamp(const Attributes& attributes) { return Clamp(PackAttributes(attributes)); }
  [[gnu::cold]] static uint64_t ClampSlow(uint64_t packed);
  // Without a site cache, no allocation is a common one.
  size_t usual_size_limit() const { return finder_.is_usable() ? LiveTable::kMaxBytes + 1 : 0; }

  const int64_t max_live_;
  SiteTable sites_;
  LiveTable live_;
  Ledger ledger_;
  SiteFinder finder_;
  // A common allocation has fewer bytes: usual_size_limit(), or 0 while there are max_live_ records.
  std::atomic<size_t> size_limit_;
  Pools pools_;

  std::atomic<void (*)(Snapshot*)> finish_snapshot_{nullptr};
  std::atomic<bool> has_given_up_{false};
  std::atomic<int64_t> reentrant_events_{0};
  std::atomic<int64_t> foreign_frees_{0};
  std::atomic<int64_t> refused_frees_{0};
  std::atomic<int64_t> replaced_records_{0};
  std::atomic<int64_t> dropped_records_{0};
  std::atomic<int64_t> dropped_bytes_{0};
};

inline bool ProfilerImpl::RecordAlloc(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) noexcept {
  bool is_uncached = false;
  SiteId site = kNoSite;
  if (thread_state.is_common() && IsBuffer(id)) {
    const TrackerSection section;
    const LiveTable::Position position = live_.Prefetch(id.value());
    if (!AreUncommon(attributes) && bytes < size_limit_.load(std::memory_order_relaxed)) {
      site = finder_.CachedSiteOf(caller, {attributes, current_tags, false}, &is_uncached);
      if (site != kNoSite) {
        const Ledger::Entered entered = pools_.TryAdd(position, id.value(), site, static_cast<int64_t>(bytes));
        if (entered == Ledger::kEnteredAndCounted) Flush();
        if (entered != Ledger::kNotEntered) return true;
      }
    }
  }
  return RecordAllocUncommon(caller, id, bytes, attributes, is_uncached, site);
}

inline bool ProfilerImpl::RecordBlock(const Caller& caller, BufferId address, size_t bytes,
                                      const Attributes& attributes) noexcept {
  bool is_uncached = false;
  if (thread_state.is_common()) {
    const TrackerSection section;
    const uint64_t start = address.value();
    const LiveTable::Position position = pools_.PrefetchBlock(start);
    if (MayBeCommonBlock(start, bytes, attributes)) {
      const SiteId site = finder_.CachedSiteOf(caller, WordOfBlock(attributes), &is_uncached);
      if (site != kNoSite) {
        const Ledger::Entered entered = pools_.TryAddBlock(position, start, site, static_cast<int64_t>(bytes));
        if (entered == Ledger::kEnteredAndCounted) Flush();
        if (entered != Ledger::kNotEntered) return true;
      }
    }
  }
  return RecordBlockUncommon(caller, address, bytes, attributes, is_uncached);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_PROFILER_IMPL_H_
