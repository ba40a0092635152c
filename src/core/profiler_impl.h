// ProfilerImpl: what a Profiler does with an event. Puts together stack capture, site table, live table, ledger and
// pools; each of them has one small interface and knows nothing of the others' insides.
//
// An allocation: capture the stack, find its site, enter the record in the live table, then in the ledger. A free: take
// the record out of the live table, then out of the ledger. So a buffer's events reach the ledger in their order, and
// the ledger alone is what snapshots read.
#ifndef HBMPROF_SRC_CORE_PROFILER_IMPL_H_
#define HBMPROF_SRC_CORE_PROFILER_IMPL_H_

#include <atomic>
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
#include "src/capture/capture.h"
#include "src/capture/python.h"
#include "src/core/ledger.h"
#include "src/core/live_table.h"
#include "src/core/pools.h"
#include "src/core/site_cache.h"
#include "src/core/site_table.h"
#include "src/core/tags.h"
#include "src/core/trace.h"

namespace hbmprof::internal {

// Names that get small numbers in the order in which they come. When full, every new name is the last one, "other".
class NameTable {
 public:
  // `first` gets number 0.
  NameTable(std::string_view first, int capacity);
  int NumberOf(std::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> All() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether NumberOf was called with `first`.
  bool first_asked_for() const { return first_asked_for_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kMaxNameBytes = 64;

  const size_t capacity_;
  std::atomic<bool> first_asked_for_{false};
  mutable Mutex mutex_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
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
  // `is_enabled`: the profiler's own switch.
  ProfilerImpl(const Options& options, std::atomic<bool>& is_enabled);
  ~ProfilerImpl();

  // For the list of all profilers (profiler.cc).
  std::atomic<ProfilerImpl*> next{nullptr};
  std::atomic<bool>& enabled;
  const int64_t max_host_bytes;

  NameTable& devices() { return devices_; }
  NameTable& allocators() { return allocators_; }
  CounterTable& counters() { return counters_; }
  // A probe that yields takes the place of no probe that does not.
  void SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner, bool yields = false);
  void RemoveDeviceProbe(DeviceId device, const void* owner, bool yields = false);
  // Whether the device has a probe that does not yield.
  bool HasFirmProbe(DeviceId device) const {
    const auto number = static_cast<unsigned>(device) % kMaxDevices;
    return (firm_probes_.load(std::memory_order_relaxed) >> number & 1) != 0;
  }

  // Inlined, as all that a common event does: each call on the way costs a deep stack a return that the processor
  // cannot foresee.
  [[gnu::always_inline]] bool RecordAlloc(const Caller& caller, BufferId id, size_t bytes,
                                          const Attributes& attributes) noexcept;
  [[gnu::always_inline]] FreedRecord RecordFree(BufferId id) noexcept;
  void RestoreRecord(const FreedRecord& record);
  FreedRecord PrepareRecord(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes);
  bool RecordSegment(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes);
  [[gnu::always_inline]] bool RecordBlock(const Caller& caller, BufferId address, size_t bytes,
                                          const Attributes& attributes) noexcept;
  [[gnu::always_inline]] FreedRecord RecordBlockFree(BufferId address) noexcept;
  bool RecordResize(BufferId id, size_t bytes);
  bool RecordBlockResize(BufferId address, size_t bytes);
  bool SplitSegment(BufferId address, size_t bytes);
  bool MergeSegments(BufferId first, BufferId second);
  std::optional<LiveBuffer> FindBuffer(BufferId id) const;
  std::optional<LiveBuffer> FindBlock(BufferId address);
  // Gives the live record of `id`, which is no segment, the caller's stack, the present tags and, if one is named, the
  // allocator; all else stays. One event, in which nothing is allocated or freed. A record keeps what it has if the
  // host has no memory for that. Returns false if there is none.
  bool Refine(const Caller& caller, BufferId id, AllocatorId allocator);

  DeviceStats Stats(DeviceId device, MemorySpace space) const;
  TrackerStats GetTrackerStats() const;
  Snapshot TakeSnapshot() const;
  void ResetPeak(DeviceId device);
  void DropDevice(DeviceId device, std::optional<AllocatorId> survivor, std::vector<BufferId> kept);
  // Counts an allocation that is not recorded. Returns false.
  bool Drop(uint64_t bytes);

  // Around a fork. The child calls ResetInChild instead of UnlockAll.
  void LockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void ResetInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // In a child that was forked without LockAll: turns recording off, for good, and releases every lock, so that
  // whatever still asks is answered. What the tables hold is of no use.
  void GiveUpInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  // So many fit on the smallest stack.
  static constexpr int kFewFrames = 128;

  // No lock is held while a probe runs: it may wait for the dynamic linker's, under which a library's constructor may
  // be asking for numbers.
  struct DeviceProber {
    std::function<DeviceProbe()> probe;
    const void* owner;
    // In progress; added to only under the slot's mutex, while the prober is in the slot. Outlives the prober, so that
    // a call gives up its share of that before it ends.
    const std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);
  };
  struct ProbeSlot {
    Mutex mutex;
    std::shared_ptr<DeviceProber> prober ABSL_GUARDED_BY(mutex);
    // The one that yielded to it, for whoever removes that and waits for the calls in progress.
    std::shared_ptr<DeviceProber> yielded ABSL_GUARDED_BY(mutex);
  };
  // Of a child: its device's handles do not survive the fork. What a probe holds is not destroyed: another thread may
  // have been in it.
  void ForgetProbes();
  // Ends when no other thread is in a call of `prober`, which is in no slot any more.
  static void AwaitCalls(const std::shared_ptr<DeviceProber>& prober);

  // RecordAlloc and RecordFree, once the thread is inside.
  [[gnu::always_inline]] bool Allocate(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes);
  [[gnu::always_inline]] FreedRecord Free(BufferId id);
  // The same events where the thread is inside already: they are passed through and counted, but for those that come
  // while it forks.
  bool RecordAllocInside(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) noexcept;
  FreedRecord RecordFreeInside(BufferId id) noexcept;
  bool RecordBlockInside(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) noexcept;
  FreedRecord RecordBlockFreeInside(BufferId address) noexcept;
  // Whether an event that comes now is to be recorded.
  bool Admits(const ReentryGuard& guard) const {
    if (!guard.entered()) reentrant_events_.fetch_add(1, std::memory_order_relaxed);
    return guard.entered();
  }
  [[gnu::always_inline]] SiteId SiteOf(const Caller& caller, int64_t bytes, uint64_t attributes, bool in_pool = false);
  [[gnu::always_inline]] SiteId SiteOfNativeStack(const Caller& caller, SiteWords words);
  // Where the process has a Python interpreter that can be read.
  SiteId SiteInPython(const Caller& caller, SiteWords words);
  SiteId SiteOfPythonStack(const Caller& caller, const Path* path, SiteWords words, uint64_t digest);
  // `path`: of the stack, where it is known.
  SiteId SiteOfSlow(const Caller& caller, const Path* path, SiteWords words);
  SiteId SiteOfShallowStack(const Caller& caller, SiteWords words);
  SiteId SiteOfDeepStack(const Caller& caller, SiteWords words);
  SiteId SiteOfDeepStackWithRoom(const Caller& caller, SiteWords words);
  SiteId SiteOfStack(const CapturedStack& stack, SiteWords words);
  // By which a thread's memo knows the site of a path that is not cut.
  uint64_t NoteKey(const SiteWords& words) const {
    return MultiplyFold(words.block ^ kHashSeed1, words.context ^ note_seed_);
  }
  // The memory at `id` was handed out again, so what is recorded there is gone. Whether there was a record.
  bool EndStale(BufferId id);
  // Whether a new record of `id` may be made; if not, it is counted as dropped.
  bool Fits(BufferId id, size_t bytes) { return (bytes <= LiveTable::kMaxBytes && HasRoom()) || MakeRoom(id, bytes); }
  bool MakeRoom(BufferId id, size_t bytes);
  // Enters a new record everywhere; false if it had to be dropped. `place` is the id's.
  [[gnu::always_inline]] bool Enter(const LiveTable::Place& place, BufferId id, SiteId site, int64_t bytes);
  // After `record` left the live table: takes it out of everything else.
  Ledger::Entered Forget(BufferId id, const LiveRecord& record) {
    const Ledger::Entered entered =
        ledger_.EnterPlain(Ledger::Event::kFree, ledger_.Prefetch(record.site), record.site, record.bytes);
    return entered != Ledger::kNotEntered ? entered : ForgetSlow(id, record);
  }
  Ledger::Entered ForgetSlow(BufferId id, LiveRecord record);
  // The live table gets the size that fits: a step for many events, and one for each while it is behind.
  void Resize() { ledger_.CountEachEvent(!live_.Resize(ledger_.live_records())); }
  // After an event.
  void Resize(Ledger::Entered entered) {
    if (entered == Ledger::kEnteredAndCounted) Resize();
  }
  // Forget, of a record that a new one with the same id took the place of.
  void ForgetReplaced(BufferId id, LiveRecord record);
  // What a block in a pool may be.
  static bool IsForBlocks(MemoryKind kind) {
    return SpaceOf(kind) == MemorySpace::kDevice && kind != MemoryKind::kPool;
  }
  // RecordBlock and RecordBlockFree, once the thread is inside; and for what is not the common case.
  [[gnu::always_inline]] bool AddBlock(const Caller& caller, uint64_t start, size_t bytes,
                                       const Attributes& attributes);
  [[gnu::always_inline]] FreedRecord FreeBlock(uint64_t start);
  bool AddAnyBlock(const Caller& caller, uint64_t start, size_t bytes, const Attributes& attributes);
  FreedRecord FreeAnyBlock(uint64_t start);
  // The same as EndStale for what begins at `address` in a pool.
  bool EndStaleBlock(uint64_t address);
  // False if another segment has taken its place.
  bool RestoreSegment(const FreedRecord& freed);
  void RestoreBlock(const FreedRecord& freed);
  bool HasRoom() const { return ledger_.live_records() < max_live_; }
  // What may be recorded as this, as SiteWords pack it.
  static uint64_t Sane(const Attributes& attributes) {
    const bool is_sane = static_cast<int>(attributes.device) < kMaxDevices &&
                         static_cast<int>(attributes.kind) < kMemoryKindCount &&
                         static_cast<int>(attributes.allocator) < kMaxAllocators;
    // The common case, so that attributes need not go through memory.
    return is_sane ? SiteWords::Packed(attributes) : SaneSlow(attributes);
  }
  static uint64_t SaneSlow(const Attributes& attributes);
  DeviceProbe Probe(int device) const;
  DeviceStats ToStats(const AccountTotals& totals, MemorySpace space, const DeviceProbe& probe) const;

  const int max_depth_;
  const int64_t max_live_;
  const StackCapture capture_;
  const bool reads_python_;
  const uint64_t note_seed_;  // no other profiler's
  SiteTable sites_;
  SiteCache site_cache_;
  LiveTable live_;
  Ledger ledger_;
  Pools pools_;
  NameTable devices_;
  NameTable allocators_;
  CounterTable counters_;
  mutable ProbeSlot probes_[kMaxDevices];
  // Bit d: device d has a probe that does not yield. Changes under its slot's mutex.
  std::atomic<uint64_t> firm_probes_{0};
  static_assert(kMaxDevices <= 64);

  mutable std::atomic<int64_t> reentrant_events_{0};
  std::atomic<int64_t> foreign_frees_{0};
  std::atomic<int64_t> replaced_records_{0};
  std::atomic<int64_t> dropped_records_{0};
  std::atomic<int64_t> dropped_bytes_{0};
  std::atomic<int64_t> truncated_stacks_{0};
};

inline SiteId ProfilerImpl::SiteOf(const Caller& caller, int64_t bytes, uint64_t attributes, bool in_pool) {
  const SiteWords words(static_cast<uint64_t>(bytes), attributes, current_tags, in_pool);
  return __builtin_expect(HasPython(), 0) != 0 ? SiteInPython(caller, words) : SiteOfNativeStack(caller, words);
}

inline SiteId ProfilerImpl::SiteOfNativeStack(const Caller& caller, SiteWords words) {
  Memo* memo = capture_.memo();
  const Path* path = memo == nullptr ? nullptr : memo->Find(caller, max_depth_);
  if (path != nullptr) {
    const uint32_t known = memo->NoteOf(path, NoteKey(words));
    if (known != Memo::kNoNote) return known;
  }
  return SiteOfSlow(caller, path, words);
}

inline bool ProfilerImpl::Enter(const LiveTable::Place& place, BufferId id, SiteId site, int64_t bytes) {
  if (site == kNoSite) {
    EndStale(id);
    return Drop(static_cast<uint64_t>(bytes));
  }
  const Ledger::Place ledger_place = ledger_.Prefetch(site);
  LiveRecord replaced;
  switch (live_.Insert(place, id.value(), {site, bytes}, &replaced)) {
    case LiveTable::Inserted::kNoMemory:
      return Drop(static_cast<uint64_t>(bytes));
    case LiveTable::Inserted::kReplaced:
      ForgetReplaced(id, replaced);
      break;
    case LiveTable::Inserted::kNew:
      break;
  }
  const Ledger::Entered entered = ledger_.Enter(Ledger::Event::kAlloc, ledger_place, site, bytes);
  if (entered == Ledger::kNotEntered) {
    live_.EraseExactly(id.value(), {site, bytes});
    return Drop(static_cast<uint64_t>(bytes));
  }
  Resize(entered);
  return true;
}

inline bool ProfilerImpl::RecordAlloc(const Caller& caller, BufferId id, size_t bytes,
                                      const Attributes& attributes) noexcept {
  ReentryGuard guard;
  if (!guard.entered()) return RecordAllocInside(caller, id, bytes, attributes);
  return Allocate(caller, id, bytes, attributes);
}

inline bool ProfilerImpl::Allocate(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) {
  if (id.is_null()) return false;
  const LiveTable::Place place = live_.Prefetch(id.value());
  if (attributes.kind == MemoryKind::kAlias) bytes = 0;
  if (!Fits(id, bytes)) return false;
  const auto size = static_cast<int64_t>(bytes);
  return Enter(place, id, SiteOf(caller, size, Sane(attributes)), size);
}

inline FreedRecord ProfilerImpl::RecordFree(BufferId id) noexcept {
  ReentryGuard guard;
  if (!guard.entered()) return RecordFreeInside(id);
  return Free(id);
}

inline FreedRecord ProfilerImpl::Free(BufferId id) {
  if (id.is_null()) return {};
  LiveRecord record;
  if (!live_.Erase(id.value(), &record)) {
    foreign_frees_.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  Resize(Forget(id, record));
  FreedRecord freed;
  freed.id_ = id;
  freed.bytes_ = record.bytes;
  freed.site_ = record.site;
  return freed;
}

inline bool ProfilerImpl::RecordBlock(const Caller& caller, BufferId address, size_t bytes,
                                      const Attributes& attributes) noexcept {
  ReentryGuard guard;
  if (!guard.entered()) return RecordBlockInside(caller, address, bytes, attributes);
  return AddBlock(caller, address.value(), bytes, attributes);
}

inline bool ProfilerImpl::AddBlock(const Caller& caller, uint64_t start, size_t bytes, const Attributes& attributes) {
  const LiveTable::Place place = pools_.PrefetchBlock(start);
  // Commonly it lies in one segment, on the only device that has any or on the one that the caller names.
  if (start != 0 && Pools::IsBlockAddress(start) && bytes <= LiveTable::kMaxBytes && HasRoom() &&
      pools_.has_segments() && IsForBlocks(attributes.kind) && attributes.kind != MemoryKind::kAlias) {
    const auto size = static_cast<int64_t>(bytes);
    Attributes of_block = attributes;
    of_block.device = pools_.ProbableDevice(attributes.device);
    const SiteId site = SiteOf(caller, size, Sane(of_block), /*in_pool=*/true);
    TraceStep(EventStep::kBlockPlaced);
    const Ledger::Entered entered =
        site == kNoSite ? Ledger::kNotEntered : pools_.AddCommonBlock(place, start, site, size);
    if (entered != Ledger::kNotEntered) {
      Resize(entered);
      return true;
    }
  }
  return AddAnyBlock(caller, start, bytes, attributes);
}

inline FreedRecord ProfilerImpl::RecordBlockFree(BufferId address) noexcept {
  ReentryGuard guard;
  if (!guard.entered()) return RecordBlockFreeInside(address);
  return FreeBlock(address.value());
}

inline FreedRecord ProfilerImpl::FreeBlock(uint64_t start) {
  Pools::Removed removed;
  const Ledger::Entered entered =
      Pools::IsBlockAddress(start) ? pools_.RemoveCommonBlock(start, &removed) : Ledger::kNotEntered;
  if (entered == Ledger::kNotEntered) return FreeAnyBlock(start);
  Resize(entered);
  FreedRecord freed;
  freed.id_ = BufferId(removed.id);
  freed.bytes_ = removed.record.bytes;
  freed.site_ = removed.record.site;
  return freed;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_PROFILER_IMPL_H_
