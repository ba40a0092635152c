// Profiler: records live device buffers with the call stacks that made them.
//
// Feed it from any allocator with RecordAlloc and RecordFree, or let a wrapper do so (device_allocator.h, cuda.h).
// Not here: writing profiles (pprof.h), the calls most programs need (hbmprof.h).
#ifndef HBMPROF_PROFILER_H_
#define HBMPROF_PROFILER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/options.h"
#include "hbmprof/snapshot.h"

namespace hbmprof {

namespace internal {
class ProfilerAccess;
class ProfilerImpl;
struct InjectedProfiler;
}  // namespace internal

// A record that is not live, so that RestoreRecord can make it so: what a free removed, or PrepareRecordFrom prepared.
// Converts to false if there is none.
class FreedRecord {
 public:
  explicit operator bool() const { return bytes_ >= 0; }
  // Size as recorded, in bytes; -1 if there is no record.
  int64_t bytes() const { return bytes_; }

 private:
  friend class internal::ProfilerAccess;
  friend class internal::ProfilerImpl;
  BufferId id_;
  int64_t bytes_ = -1;
  uint32_t site_ = 0;
};

// What a device can say of itself at the time of a snapshot; -1 where it does not know. Bytes. The fields are those of
// DeviceStats.
struct DeviceProbe {
  int64_t bytes_limit = -1;
  std::optional<int64_t> bytes_free;  // what the device can still give to any process
  int64_t largest_free_block_bytes = -1;
  int64_t driver_bytes_in_use = -1;
  int64_t driver_peak_bytes_in_use = -1;
  DriverScope driver_scope = DriverScope::kDevice;
  int64_t driver_cache_bytes = -1;
  std::optional<int64_t> baseline;  // not -1: it may be negative
};

// A tracked buffer, as FindBuffer sees it.
struct LiveBuffer {
  int64_t bytes = 0;
  Attributes attributes;
};

// All functions may be called from any thread at any time, also while other threads record, except where stated. None
// throws, but for std::bad_alloc from those that return or keep a string, function or Snapshot. Recording allocates no
// host memory in the steady state, takes no global lock and calls nothing that could call back into a traced API.
//
// Order around the real calls, which the caller keeps: RecordAlloc after the allocation succeeded; RecordFree before
// the free, and RestoreRecord if that free failed. Another thread may be given the same address the moment the real
// free returns.
class Profiler {
 public:
  explicit Profiler(const Options& options = {});
  // No event may be in progress. Records are dropped; nothing is freed on any device.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // The process's own profiler, made on first use from OptionsFromEnvironment() (its problems go to stderr, a line
  // each) and never destroyed, so that allocations during static destruction are still recorded.
  // While a thread makes it, that thread's own calls (from an operator new that records, say) get a profiler that is
  // off: it records nothing and knows nothing.
  //
  // In a program that was started with libhbmprof_cuda.so (`hbmprof run`) it joins that library's profiler: the process
  // has one account, and all functions are about it. What is recorded of memory that the driver's calls have given out
  // counts no second time:
  // - An allocation of the driver's address and size gives that record the caller's stack and tags and, if it has one,
  //   the allocator (but the driver's stream-ordered memory keeps its own). The record lasts until the driver frees the
  //   memory, whenever RecordFree is called. Device and kind are the driver's.
  // - Any other allocation or block inside device memory of the driver's is a block of it, as if RecordSegment had been
  //   called. In managed, pinned, graph or mapped physical memory it is not recorded (false), nor is device memory that
  //   is known by a handle (BufferId::Handle), on a device that the driver has allocated on.
  // - The driver's memory keeps its size: it is not resized, split or merged (false).
  // - Of a device that the driver has allocated on, no probe of the program's is called, and DropDevice does nothing:
  //   the driver's own calls say what ends.
  // SetEnabled is about what the program records; the driver's calls go on to be recorded.
  static Profiler& Default();

  // Turns recording off and on. While off, events are ignored: buffers allocated meanwhile are unknown afterwards, and
  // the free of a buffer recorded before is missed. Meant for the start of a program, not for pausing.
  void SetEnabled(bool enabled) {
    enabled_.store(enabled && (impl_ != nullptr || joined_ != nullptr), std::memory_order_relaxed);
  }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  // The device of this name, added if it is new; a name is what the `device` label shows ("GPU:0"). The 64th distinct
  // name and all after it share one device named "other". Names are cut at 64 bytes.
  DeviceId Device(std::string_view name);
  // The allocator of this name, added if new; the `allocator` label. At most 255, then "other".
  AllocatorId Allocator(std::string_view name);

  // Asks a device for its own numbers. Stats and TakeSnapshot call the probe from any thread, also from several at
  // once, with no lock held. It may call anything of the profiler's; for Stats and TakeSnapshot that a probe calls, no
  // device is asked. One probe per device: a later one replaces it, and the one before is not running once this
  // returns, as with RemoveDeviceProbe. `owner` is anything that tells who set it.
  void SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner = nullptr);
  // Removes the device's probe if `owner` set it, and waits until it is not running in any thread. It will not run once
  // this returns. A probe that removes or replaces a probe does not wait: calls in progress may then still run. Do not
  // call this with a lock held that the probe takes.
  void RemoveDeviceProbe(DeviceId device, const void* owner);

  // Records that `id` now names `bytes` bytes, with the caller's call stack and the current tags. Returns whether it
  // was recorded: false while off, for a null id, from inside the tracker, and when a limit was reached
  // (dropped_records, dropped_bytes). An `id` that is live already is freed first (replaced_records). kAlias is counted
  // as zero bytes. At most 2^40-1 bytes; more is dropped.
  // (Inlined even where nothing else is, so that it is no frame of the stacks.)
  [[gnu::always_inline]] bool RecordAlloc(BufferId id, size_t bytes, const Attributes& attributes = {}) {
    return enabled() && Alloc(id, bytes, attributes);
  }
  // The same with the stack beginning at `caller`, for wrappers.
  bool RecordAllocFrom(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) {
    return enabled() && AllocFrom(caller, id, bytes, attributes);
  }

  // Removes the record of `id`. An unknown id is counted as a foreign free, a null id is ignored; both return a false
  // FreedRecord. Removing a pool's segment removes its live blocks too.
  FreedRecord RecordFree(BufferId id) { return enabled() ? Free(id) : FreedRecord(); }

  // Puts back what RecordFree removed, with its first call stack, because the real free failed. Undoes the free in
  // every counter. Does nothing for a false record. Blocks of a removed segment do not come back.
  void RestoreRecord(const FreedRecord& record);
  // For memory whose allocation is decided here and that is there later, perhaps more than once, as a graph's is from a
  // launch on: counts an allocation and its free in one event, so that nothing is in use at any instant and no peak is
  // raised, and touches no record of `id`. RestoreRecord makes the result live, with the stack at `caller` and the
  // present tags; RecordFree ends that, and the same result can be restored again. Returns a false record where
  // RecordAlloc returns false.
  FreedRecord PrepareRecordFrom(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes);

  // Declares [address, address+bytes) a segment: device memory that a pool has reserved, to hand out in blocks. The
  // segment is counted as kind kPool, less what is recorded inside it, so that each reserved byte counts once.
  // - If `address` is a live record, that record becomes the segment: it keeps its call stack, tags, size and device,
  //   and `attributes.allocator` names the pool. So does a live block of exactly `bytes` bytes inside another segment:
  //   a pool inside a pool.
  // - Otherwise the segment is recorded with the caller's stack. A segment inside another has that one's device, and
  //   its bytes are taken off the other's. Blocks that were recorded at its addresses before belong to it from now on,
  //   if they are on its device and fit.
  // A segment that was a block, or that begins where the one around it begins, ends with RecordBlockFree; every other
  // one ends with RecordFree. Both remove the blocks and segments inside it. Segments nest up to 126 deep. Returns
  // whether it is tracked: false as for RecordAlloc; for a live record outside MemorySpace::kDevice; and if there is
  // such a segment already, it overlaps another in part, or takes more than is idle in the one around it.
  //
  // Time: where blocks must be looked at (they were recorded before their segment, or a segment ends, shrinks or is
  // split that holds some), every live record is, and no other thread records meanwhile.
  bool RecordSegment(BufferId address, size_t bytes, const Attributes& attributes = {});
  bool RecordSegmentFrom(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes);
  // Records a block that a pool handed out: like RecordAlloc, with the segment's device, and its bytes are taken off
  // the innermost segments at its addresses. It may lie across adjacent segments; bytes that lie in no segment count as
  // an allocation's. A block that does not fit into what is idle is counted as an allocation of its own. Blocks and
  // other buffers are told apart, so a block may start where its segment starts. Addresses must be below 2^50 within
  // their name space (BufferId); others are dropped.
  bool RecordBlock(BufferId address, size_t bytes, const Attributes& attributes = {});
  bool RecordBlockFrom(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes);
  // RecordFree for the innermost block at `address`.
  FreedRecord RecordBlockFree(BufferId address);

  // Gives a live buffer or segment another size, in bytes, in one event: for memory that was reallocated at its address
  // and for segments that grow or shrink at their end. It keeps its call stack and tags and counts as no further
  // allocation; a growth adds to the bytes ever allocated. What lies wholly in what is cut off a segment is removed.
  // Returns false and changes nothing while off, if `id` is not live, if a segment would be empty, grow over another,
  // cut one in two or reach out of the one around it, and if a limit was reached.
  bool RecordResize(BufferId id, size_t bytes);
  // The same for the innermost block at `address`.
  bool RecordBlockResize(BufferId address, size_t bytes);
  // Makes two segments of the one that begins at `address` and ends with RecordFree: the first has `bytes` bytes, the
  // second the rest, and both have its call stack and end with RecordFree. Blocks stay where they are. The second
  // counts as one more allocation. Returns false and changes nothing while off, if there is no such segment, if `bytes`
  // is 0 or not less than its size, if a segment inside it has bytes on both sides, and if a limit was reached.
  bool SplitSegment(BufferId address, size_t bytes);
  // Makes one segment of two that end with RecordFree, the second of which begins where the first ends; it has the
  // first's call stack. Blocks stay where they are. Returns false and changes nothing while off, if they are not such
  // segments of one device inside the same segment or in none, and if a limit was reached.
  bool MergeSegments(BufferId first, BufferId second);

  // Counts an allocation of `bytes` bytes as dropped, in dropped_records and dropped_bytes. For a wrapper that cannot
  // describe an allocation because the host has no memory. Does nothing while off.
  void RecordDropped(size_t bytes);

  // Sets a counter of the program's own, such as requests served, to `value`; profiles carry it, so that growth can be
  // told per request (`hbmprof leaks --per requests`). Takes a lock of its own: meant for once per request or batch.
  // Names are cut at 64 bytes; the 65th distinct name and all after it are ignored.
  void SetCounter(std::string_view name, int64_t value);

  // The record of exactly this id, if it is live.
  std::optional<LiveBuffer> FindBuffer(BufferId id) const;

  // The device's memory space at one instant. Asks the device's probe.
  DeviceStats Stats(DeviceId device, MemorySpace space = MemorySpace::kDevice) const;
  TrackerStats GetTrackerStats() const;

  // Everything, at one instant: for each device and space the samples' in-use bytes sum to its bytes_in_use and their
  // peak bytes to its peak_bytes_in_use, exactly, also while other threads record. Sites that never held anything
  // since their counters began are left out.
  Snapshot TakeSnapshot() const;

  // Starts a new peak: the present bytes in use, and their composition.
  void ResetPeak(DeviceId device);

  // Forgets every live record of a device, as after a device reset, but those of allocator `survivor`, if given, and
  // those of the ids in `kept` (of a segment, without its blocks). Cumulative counters stay.
  void DropDevice(DeviceId device, std::optional<AllocatorId> survivor = std::nullopt, std::vector<BufferId> kept = {});

 private:
  friend class internal::ProfilerAccess;

  // What Default() is where it has joined the injected library's profiler.
  Profiler(const internal::InjectedProfiler& joined, bool enabled);

  // What is left of the functions of these names once recording is known to be on.
  bool Alloc(BufferId id, size_t bytes, const Attributes& attributes);
  bool AllocFrom(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes);
  FreedRecord Free(BufferId id);

  // What Default() returns while the process's own is being made.
  static Profiler& Off();

  std::atomic<bool> enabled_;
  const std::unique_ptr<internal::ProfilerImpl> impl_;  // null: joined, or Off(), which is never enabled
  const internal::InjectedProfiler* const joined_ = nullptr;
};

}  // namespace hbmprof

#endif  // HBMPROF_PROFILER_H_
