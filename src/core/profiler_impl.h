// ProfilerImpl: the implementation of Profiler. Connects stack capture, site table, live table, ledger and pools, each
// of which has one small interface.
//
// An allocation captures the stack, finds its site, and enters the record into the live table, then into the ledger. A
// free removes the record from the live table, then enters the free into the ledger. So the ledger gets the events of a
// buffer in the order in which they happened. Snapshots read the ledger only.
#ifndef HBMPROF_SRC_CORE_PROFILER_IMPL_H_
#define HBMPROF_SRC_CORE_PROFILER_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hbmprof/profiler.h"
#include "src/base/mutex.h"
#include "src/base/thread_state.h"
#include "src/base/traceback.h"
#include "src/capture/capture.h"
#include "src/capture/python/python_frames.h"
#include "src/core/ledger/ledger.h"
#include "src/core/ledger/trace.h"
#include "src/core/pools/pools.h"
#include "src/core/scoped_caller.h"
#include "src/core/tables/births.h"
#include "src/core/tables/live_table.h"
#include "src/core/tables/site_cache.h"
#include "src/core/tables/site_table.h"
#include "src/core/tables/tags.h"

namespace hbmprof::internal {

// Gives names small numbers, in the order of their first use. When it is full, every new name gets the number of the
// last one, "other". Any thread may call any function, also in a signal handler that interrupted malloc.
class NameTable {
 public:
  // `first` gets number 0.
  NameTable(std::string_view first, int capacity);
  // Finding a known name takes no lock. A new name gets 0 if the thread is inside the tracker.
  int NumberOf(std::string_view name) ABSL_LOCKS_EXCLUDED(lock_);
  std::vector<std::string> All() const;
  // Returns whether NumberOf was called with `first`.
  bool first_is_requested() const { return first_is_requested_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kMaxNameBytes = 64;
  struct Name {
    std::string_view text() const { return {bytes, size}; }
    size_t size;
    char bytes[kMaxNameBytes];
  };

  // Returns -1 if the name is not in the table.
  int Find(std::string_view name) const;
  void Add(std::string_view name);

  const int capacity_;
  std::atomic<bool> first_is_requested_{false};
  SpinLock lock_;  // for new names
  const std::unique_ptr<Name[]> names_;
  std::atomic<int> count_{0};  // names up to here are complete and never change
};

// While an object exists, the probes that Stats and TakeSnapshot of its thread call run in threads of their own. A
// probe has one second to answer, and all of them together have two. A device that has not answered has no values of
// its own, and the snapshot has a warning. For the end of a process, which must not wait for a device or for a probe
// that hangs. A second object of a thread has no effect. REQUIRES: the profilers that the thread uses are never
// destroyed.
class ProbeLimit {
 public:
  // `context`: the DriverContext that the probes take over; null: none.
  explicit ProbeLimit(void* context = nullptr);
  ~ProbeLimit();
  ProbeLimit(const ProbeLimit&) = delete;
  ProbeLimit& operator=(const ProbeLimit&) = delete;

  // Returns call(), which it calls in another thread. If that takes too long, returns a DeviceProbe without values; the
  // other thread then continues.
  DeviceProbe Ask(int device, std::function<DeviceProbe()> call);
  // Returns whether Ask has returned before the answer.
  bool is_silent(int device) const { return (silent_devices_ >> device & 1) != 0; }

 private:
  void* const context_;
  const int64_t end_;  // in nanoseconds of CLOCK_MONOTONIC
  uint64_t silent_devices_ = 0;
};

// The program's own counters.
class CounterTable {
 public:
  void Set(std::string_view name, int64_t value) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::pair<std::string, int64_t>> All() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr size_t kMaxCounters = 64;
  static constexpr size_t kMaxNameBytes = 64;

  mutable Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
};

class ProfilerImpl {
 public:
  // `is_enabled`: the switch of the Profiler that owns this object.
  ProfilerImpl(const Options& options, std::atomic<bool>& is_enabled);
  ~ProfilerImpl();

  // For the list of all profilers (profiler.cc).
  std::atomic<ProfilerImpl*> next{nullptr};
  std::atomic<bool>& enabled;
  const int64_t max_host_bytes;

  NameTable& devices() { return devices_; }
  NameTable& allocators() { return allocators_; }
  CounterTable& counters() { return counters_; }
  // Sets the device's probe. If `is_replaceable`, the probe does not replace one that is not replaceable.
  void SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner,
                      bool is_replaceable = false);
  void RemoveDeviceProbe(DeviceId device, const void* owner, bool is_replaceable = false);
  // Returns whether the device has a probe that is not replaceable.
  bool HasDriverProbe(DeviceId device) const {
    const auto number = static_cast<unsigned>(device) % kMaxDevices;
    return (driver_probes_.load(std::memory_order_relaxed) >> number & 1) != 0;
  }

  // `attributes`: from PackAttributes.
  bool RecordAlloc(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) noexcept;
  FreedRecord RecordFree(BufferId id) noexcept;
  void RestoreRecord(const FreedRecord& record);
  FreedRecord PrepareRecord(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes);
  bool RecordSegment(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes);
  bool RecordBlock(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) noexcept;
  FreedRecord RecordBlockFree(BufferId address) noexcept;
  bool RecordResize(BufferId id, size_t bytes);
  bool RecordBlockResize(BufferId address, size_t bytes);
  bool SplitSegment(BufferId address, size_t bytes);
  bool MergeSegments(BufferId first, BufferId second);
  std::optional<LiveBuffer> FindBuffer(BufferId id) const;
  std::optional<FoundBuffer> FindBufferAt(BufferId address) const;
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
  // grows with the number of live records. Returns nullopt if recording is off or the host has no memory.
  std::optional<int64_t> BlockBytes(DeviceId device, AllocatorId allocator);
  // Sets a tag of the process, as Options::tags does: a label of all samples. An empty value removes the tag. A new key
  // beyond the limits of tag.h has no effect.
  void SetTag(std::string_view key, std::string_view value) ABSL_LOCKS_EXCLUDED(tags_mutex_);
  // The tags of the process, sorted by key.
  std::vector<std::pair<std::string, std::string>> Tags() const ABSL_LOCKS_EXCLUDED(tags_mutex_);

  // Each snapshot is passed to `finish` before TakeSnapshot returns it, with no lock held.
  void SetSnapshotFinisher(void (*finish)(Snapshot*)) { finish_snapshot_.store(finish, std::memory_order_release); }

  DeviceStats Stats(DeviceId device, MemorySpace space) const;
  TrackerStats GetTrackerStats() const;
  Snapshot TakeSnapshot() const;
  void ResetPeak(DeviceId device);
  void DropDevice(DeviceId device, std::optional<AllocatorId> survivor, std::vector<BufferId> kept);
  // Counts an allocation that is not recorded. Returns false.
  [[gnu::cold]] bool Drop(uint64_t bytes);
  // Returns the site of a failed allocation: the stack that begins at `caller` and the thread's tags, with size 0, so
  // that failures of many sizes have one site. Returns kNoSite if a limit was reached. REQUIRES: the thread has entered
  // the tracker.
  SiteId SiteOfFailure(const Caller& caller, DeviceId device, MemorySpace space);

  // The tables, for recordings (src/api/recording/recorder.h).
  const SiteTable& sites() const { return sites_; }
  const LiveTable& live() const { return live_; }
  Ledger& ledger() { return ledger_; }
  // Sets process, host and tracker of a snapshot.
  void DescribeProcess(hbmprof::Snapshot* snapshot) const;
  // Adds what is known about the Python interpreter, and the named frames that exist now and that the snapshot does not
  // have. Must be called after the stacks were added, so that every named frame in them is among these.
  void AddPython(hbmprof::Snapshot* snapshot) const;
  // Returns the device's totals, with the values of its probe.
  DeviceStats ToStats(DeviceId device, MemorySpace space, const AccountTotals& totals) const;

  // In a forked child. If `is_usable`, makes the tables of events anew. Otherwise turns recording off for ever; the
  // contents of these tables are then undefined.
  void StartInChild(bool is_usable);
  bool has_given_up() const { return has_given_up_.load(std::memory_order_relaxed); }

 private:
  // Frames that fit on the smallest stack.
  static constexpr int kFewFrames = 128;

  // No lock is held while a probe runs: it may wait for the dynamic linker's lock, and a library's constructor, which
  // runs under that lock, may be calling Stats.
  struct DeviceProber {
    std::function<DeviceProbe()> probe;
    const void* owner;
    // The number of calls in progress. It is increased only under the slot's mutex, while the prober is in the slot.
    // The counter outlives the prober, so a call can release the prober before the call ends.
    const std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);
  };
  struct ProbeSlot {
    Mutex mutex;
    std::shared_ptr<DeviceProber> prober ABSL_GUARDED_BY(mutex);
    // The replaceable probe that `prober` has replaced; null if there is none. RemoveDeviceProbe waits for its calls in
    // progress.
    std::shared_ptr<DeviceProber> set_aside ABSL_GUARDED_BY(mutex);
  };
  // In a forked child: removes all probes, since device handles do not survive the fork. Their objects are not
  // destroyed, because another thread of the parent may have been using them.
  void DropProbes();
  // Waits until no other thread is in a call of `prober`. Does not wait if this thread is inside a probe. REQUIRES: no
  // new call can begin, because `prober` is in no slot.
  static void AwaitCalls(const std::shared_ptr<DeviceProber>& prober);

  // RecordAlloc and RecordFree, after the thread has entered the tracker.
  bool Allocate(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes);
  FreedRecord Free(BufferId id);
  // FreedRecord::age_: 16 bits for the birth, and from bit 16 on the octave in which the age was counted, plus 1.
  static constexpr int kOctaveShift = 16;
  // The record was only prepared: its birth is the time at which it is restored.
  static constexpr uint32_t kBornWhenRestored = ~uint32_t{0};
  static FreedRecord Freed(BufferId id, uint64_t packed_record, uint32_t age) {
    FreedRecord freed;
    freed.id_ = id;
    freed.record_ = packed_record;
    freed.age_ = age;
    return freed;
  }
  static FreedRecord Freed(BufferId id, const LiveRecord& record, int octave) {
    return Freed(id, LiveTable::Pack(record), record.birth | static_cast<uint32_t>(octave + 1) << kOctaveShift);
  }
  // The uncommon cases of RecordAlloc, from the step on that is not the common one: the attributes or the limits, the
  // site (`path`: of the stack; null if it is not known), the live table, the ledger, the size of the live table. All
  // of them leave the tracker.
  bool AllocateUncommon(Caller caller, BufferId id, size_t bytes, uint64_t attributes) noexcept;
  bool AllocateAtNewSite(Caller caller, const Path* path, BufferId id, SiteWords words) noexcept;
  bool EnterUncommon(BufferId id, SiteId site, int64_t bytes) noexcept;
  bool FinishAllocate(BufferId id, SiteId site, int64_t bytes) noexcept;
  bool ResizeAfterAllocate() noexcept;
  // The same for RecordFree: the record is still in the live table, or it was removed from it. FinishFree counts the
  // age.
  FreedRecord FreeUncommon(BufferId id) noexcept;
  FreedRecord FinishFree(BufferId id, uint64_t packed_record, Generation birth, Ledger::Entered entered) noexcept;
  // RecordAlloc in a scope (ScopedCaller), both events with an id that is not that of a buffer, and both events if the
  // thread is inside the tracker already: then they are counted and not recorded, except while the thread forks.
  bool RecordAllocUncommon(Caller caller, BufferId id, size_t bytes, uint64_t attributes) noexcept;
  [[gnu::cold]] FreedRecord RecordFreeInside(BufferId id) noexcept;
  bool RecordBlockInside(Caller caller, BufferId address, size_t bytes, const Attributes& attributes) noexcept;
  [[gnu::cold]] FreedRecord RecordBlockFreeInside(BufferId address) noexcept;
  // Returns whether a buffer can have this id: it is not null, and not that of a block (Pools::IsBlockId).
  static bool IsBuffer(BufferId id) { return static_cast<int64_t>(id.value()) > 0; }
  // Returns whether the event must be recorded; if not, counts it.
  bool Admits(const ReentryGuard& guard) const {
    if (!guard.entered()) reentrant_events_.fetch_add(1, std::memory_order_relaxed);
    return guard.entered() && !has_given_up();
  }
  // Does not count truncated stacks (CountTruncated).
  SiteId SiteOf(const Caller& caller, SiteWords words);
  // The site of an event that is recorded now. `bytes` and `attributes` are within their limits.
  SiteId SiteOf(const Caller& caller, int64_t bytes, uint64_t attributes, bool in_pool = false) {
    return SiteOf(caller, SiteWords(static_cast<uint64_t>(bytes), attributes, current_tags, in_pool));
  }
  // The common case of SiteOf: returns the site if the stack has no named frames, is not truncated, and its path and
  // site are cached. Otherwise returns kNoSite and sets `*path` to the path of the stack, or to null. REQUIRES: the
  // bytes are below size_limit_.
  [[gnu::always_inline]] SiteId CachedSiteOf(const Caller& caller, SiteWords words, const Path** path);
  // SiteOf, without named frames.
  SiteId SiteOfNativeStack(const Caller& caller, SiteWords words);
  // Counts the event's stack if it is truncated. To be called once for each event, after its calls of SiteOf.
  void CountTruncated();
  // SiteOf, in a process whose stacks can have named frames: the thread's Python functions or, without these, the
  // frames of its traceback.
  SiteId SiteWithNames(const Caller& caller, SiteWords words);
  // The same, if the site is not cached. `path`: the path of the native stack; null if it is not cached. `digest`: of
  // the named frames. `traceback`: their source; null if they are the thread's Python functions.
  SiteId SiteOfNamedStack(const Caller& caller, const Path* path, SiteWords words, uint64_t digest,
                          const Traceback* traceback);
  // `path`: the path of the stack; null if it is not cached.
  SiteId SiteOfSlow(const Caller& caller, const Path* path, SiteWords words);
  template <int kFrames>
  SiteId SiteOfStackInFrame(const Caller& caller, SiteWords words);
  SiteId SiteOfDeepStack(const Caller& caller, SiteWords words);
  SiteId SiteOfStack(const CapturedStack& stack, SiteWords words);
  // Removes the record of a buffer whose free was not recorded: a new buffer has its `id` now. Returns whether there
  // was such a record.
  [[gnu::cold]] bool RemoveStaleRecord(BufferId id);
  // The last steps of RecordAlloc: enters a new record into all tables and leaves the tracker. `position` is that of
  // the id. Returns false if the record was dropped.
  [[gnu::always_inline]] bool EnterNew(const LiveTable::Position& position, BufferId id, SiteId site, int64_t bytes);
  // Enters a new record into all tables. Returns false if it was dropped.
  bool Enter(BufferId id, SiteId site, int64_t bytes);
  // Enters a new record, which is in the live table, into the ledger. Returns false if it was dropped.
  bool EnterLedger(BufferId id, SiteId site, int64_t bytes);
  // Removes a new record, which is in the live table only, and counts it as dropped. Returns false.
  [[gnu::cold]] bool DropEntered(BufferId id, const LiveRecord& record);
  // Enters the free of `record` after it left the live table. `octave`: of its age.
  Ledger::Entered EnterFree(BufferId id, const LiveRecord& record, int octave);
  // Changes the size of the live table by a limited step towards the size that fits. As long as the size does not fit,
  // each event makes such a step. Also sets size_limit_.
  void Resize() {
    const int64_t records = ledger_.live_records();
    ledger_.CountEachEvent(!live_.Resize(records));
    const size_t limit = records < max_live_ ? usual_size_limit() : 0;
    // Other threads read the cache line, so it is written only if the value changes.
    if (size_limit_.load(std::memory_order_relaxed) != limit) size_limit_.store(limit, std::memory_order_relaxed);
  }
  // After an event.
  void Resize(Ledger::Entered entered) {
    if (entered == Ledger::kEnteredAndCounted) Resize();
  }
  // The same as EnterFree, for a record that a new one with the same id has replaced.
  [[gnu::cold]] void EnterReplaced(BufferId id, LiveRecord record);
  // Returns whether a block in a pool may be of this kind.
  static bool IsForBlocks(MemoryKind kind) {
    return SpaceOf(kind) == MemorySpace::kDevice && kind != MemoryKind::kPool;
  }
  // RecordBlock and RecordBlockFree, after the thread has entered the tracker; the last two are for uncommon cases.
  // Returns whether a block may be of the common case: it lies in one segment, on the only device that has segments, or
  // on the device that the caller names.
  bool IsCommonBlock(uint64_t start, size_t bytes, const Attributes& attributes) const {
    return start != 0 && Pools::IsBlockAddress(start) && bytes < size_limit_.load(std::memory_order_relaxed) &&
           pools_.has_segments() && IsForBlocks(attributes.kind) && attributes.kind != MemoryKind::kAlias;
  }
  // The words of the site of such a block, for the thread's present tags.
  SiteWords WordsOfBlock(size_t bytes, Attributes attributes) const {
    attributes.device = pools_.ProbableDevice(attributes.device);
    return {bytes, Clamp(attributes), current_tags, /*in_pool=*/true};
  }
  // The uncommon cases of RecordBlock and RecordBlockFree. They leave the tracker.
  bool AddBlockUncommon(Caller caller, uint64_t start, size_t bytes, const Attributes& attributes) noexcept;
  FreedRecord FreeBlockUncommon(uint64_t start) noexcept;
  bool AddAnyBlock(const Caller& caller, uint64_t start, size_t bytes, const Attributes& attributes);
  FreedRecord FreeAnyBlock(uint64_t start);
  // The same as RemoveStaleRecord, for a block.
  bool RemoveStaleBlock(uint64_t address);
  // Returns false if another segment has its addresses now.
  bool RestoreSegment(BufferId id, const LiveRecord& record, int octave);
  void RestoreBlock(uint64_t id, const LiveRecord& record, int octave);
  // Whether a new record of this size may be made.
  bool HasCapacity(size_t bytes) const { return bytes <= LiveTable::kMaxBytes && ledger_.live_records() < max_live_; }
  // Returns whether packed attributes are not those of a common event: some of them may be out of range, or the kind
  // may be kAlias.
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
  // Adds the devices to a snapshot. Returns the index in the snapshot for each DeviceId; UINT32_MAX if the snapshot
  // does not have the device.
  std::vector<uint32_t> AddDevices(const std::vector<AccountTotals>& accounts, hbmprof::Snapshot* snapshot) const;
  // Adds the samples and their stacks.
  void AddSamples(const std::vector<SiteTotals>& sites, const Births& births, const std::vector<uint32_t>& device_index,
                  hbmprof::Snapshot* snapshot) const;
  DeviceProbe Probe(int device) const;
  DeviceStats ToStats(const AccountTotals& totals, MemorySpace space, const DeviceProbe& probe) const;

  // Without a site cache, no allocation is a common one.
  size_t usual_size_limit() const { return site_cache_.is_usable() ? LiveTable::kMaxBytes + 1 : 0; }

  const int max_depth_;
  const int64_t max_live_;
  const StackCapture capture_;
  const bool reads_python_;
  std::vector<std::pair<std::string, std::string>> tags_ ABSL_GUARDED_BY(tags_mutex_);  // of all samples, sorted by key
  SiteTable sites_;
  SiteCache site_cache_;
  // A common allocation has fewer bytes: usual_size_limit(), or 0 while there are max_live_ records.
  std::atomic<size_t> size_limit_{usual_size_limit()};
  LiveTable live_;
  Ledger ledger_;
  Pools pools_;
  NameTable devices_;
  NameTable allocators_;
  CounterTable counters_;
  mutable Mutex tags_mutex_;
  mutable ProbeSlot probes_[kMaxDevices];
  // Bit d: device d has a probe that is not replaceable. It changes under the mutex of the device's slot.
  std::atomic<uint64_t> driver_probes_{0};
  static_assert(kMaxDevices <= 64);

  std::atomic<void (*)(Snapshot*)> finish_snapshot_{nullptr};
  std::atomic<bool> has_given_up_{false};
  mutable std::atomic<int64_t> reentrant_events_{0};
  std::atomic<int64_t> foreign_frees_{0};
  std::atomic<int64_t> replaced_records_{0};
  std::atomic<int64_t> dropped_records_{0};
  std::atomic<int64_t> dropped_bytes_{0};
  std::atomic<int64_t> truncated_stacks_{0};
};

inline SiteId ProfilerImpl::CachedSiteOf(const Caller& caller, SiteWords words, const Path** path) {
  *path = nullptr;
  if (__builtin_expect(HasPython(), 0) != 0) return kNoSite;  // common events have no traceback
  *path = capture_.FindPath(caller, max_depth_);
  const bool is_common = *path != nullptr && !(*path)->truncated;
  return is_common ? site_cache_.FindInUsable(SiteCache::Key((*path)->hash, words)) : kNoSite;
}

inline bool ProfilerImpl::RecordAlloc(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) noexcept {
  if (!thread_state.is_common() || !IsBuffer(id)) return RecordAllocUncommon(caller, id, bytes, attributes);
  ReentryGuard::Enter();
  const LiveTable::Position position = live_.Prefetch(id.value());
  if (AreUncommon(attributes) || bytes >= size_limit_.load(std::memory_order_relaxed)) {
    return AllocateUncommon(caller, id, bytes, attributes);
  }
  const SiteWords words(bytes, attributes, current_tags, /*in_pool=*/false);
  const Path* path;
  const SiteId site = CachedSiteOf(caller, words, &path);
  if (site == kNoSite) return AllocateAtNewSite(caller, path, id, words);
  return EnterNew(position, id, site, static_cast<int64_t>(bytes));
}

inline bool ProfilerImpl::EnterNew(const LiveTable::Position& position, BufferId id, SiteId site, int64_t bytes) {
  const Ledger::CellRef cell = ledger_.RefOf(site);
  if (!cell) return EnterUncommon(id, site, bytes);
  Ledger::Prefetch(cell);
  if (!live_.TryInsert(position, id.value(), {site, PresentGeneration(), bytes})) {
    return EnterUncommon(id, site, bytes);
  }
  const Ledger::Entered entered = ledger_.TryEnter(Ledger::Event::kAlloc, cell, bytes);
  if (entered == Ledger::kNotEntered) return FinishAllocate(id, site, bytes);
  if (entered == Ledger::kEnteredAndCounted) return ResizeAfterAllocate();
  ReentryGuard::Leave();
  return true;
}

inline FreedRecord ProfilerImpl::RecordFree(BufferId id) noexcept {
  if (thread_state.inside || !IsBuffer(id)) return RecordFreeInside(id);
  // The common case calls nothing, so that it saves no registers. The others are tail calls, which leave the tracker.
  ReentryGuard::Enter();
  uint64_t packed = 0;  // g++ warns otherwise
  Generation birth = 0;
  if (!live_.TryErase(id.value(), &packed, &birth)) return FreeUncommon(id);
  const LiveRecord record = LiveTable::Unpack(packed, birth);
  const Ledger::CellRef cell = ledger_.RefOf(record.site);
  if (!cell) return FinishFree(id, packed, birth, Ledger::kNotEntered);
  const Ledger::Entered entered = ledger_.TryEnter(Ledger::Event::kFree, cell, record.bytes);
  if (entered != Ledger::kEntered || birth != PresentGeneration()) return FinishFree(id, packed, birth, entered);
  ReentryGuard::Leave();
  return Freed(id, packed, birth);
}

inline FreedRecord ProfilerImpl::Free(BufferId id) {
  if (id.is_null()) return {};
  LiveRecord record;
  if (!IsBuffer(id) || !live_.Erase(id.value(), &record)) {
    foreign_frees_.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  const int octave = OctaveNow(record.birth);
  Resize(EnterFree(id, record, octave));
  return Freed(id, record, octave);
}

inline bool ProfilerImpl::RecordBlock(const Caller& caller, BufferId address, size_t bytes,
                                      const Attributes& attributes) noexcept {
  if (!thread_state.is_common()) return RecordBlockInside(caller, address, bytes, attributes);
  ReentryGuard::Enter();
  const uint64_t start = address.value();
  const LiveTable::Position position = pools_.PrefetchBlock(start);
  if (!IsCommonBlock(start, bytes, attributes)) return AddBlockUncommon(caller, start, bytes, attributes);
  const Path* path;
  const SiteId site = CachedSiteOf(caller, WordsOfBlock(bytes, attributes), &path);
  const Ledger::Entered entered =
      site == kNoSite ? Ledger::kNotEntered : pools_.AddCommonBlock(position, start, site, static_cast<int64_t>(bytes));
  if (entered == Ledger::kNotEntered) return AddBlockUncommon(caller, start, bytes, attributes);
  if (entered == Ledger::kEnteredAndCounted) return ResizeAfterAllocate();
  ReentryGuard::Leave();
  return true;
}

inline FreedRecord ProfilerImpl::RecordBlockFree(BufferId address) noexcept {
  const uint64_t start = address.value();
  if (thread_state.inside || !Pools::IsBlockAddress(start)) return RecordBlockFreeInside(address);
  ReentryGuard::Enter();
  Pools::Block removed;
  const Ledger::Entered entered = pools_.RemoveCommonBlock(start, &removed);
  if (entered == Ledger::kNotEntered) return FreeBlockUncommon(start);
  const BufferId id(removed.id);
  const uint64_t packed = LiveTable::Pack(removed.record);
  const Generation birth = removed.record.birth;
  if (entered != Ledger::kEntered || birth != PresentGeneration()) return FinishFree(id, packed, birth, entered);
  ReentryGuard::Leave();
  return Freed(id, packed, birth);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_PROFILER_IMPL_H_
