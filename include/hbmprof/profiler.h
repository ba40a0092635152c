// Profiler: records live device buffers with the call stacks that allocated them.
//
// The wrappers (device_allocator.h, cuda.h, pjrt.h) call it for you. An allocator of your own calls it directly:
//
//   hbmprof::Profiler& profiler = hbmprof::Profiler::Default();     // not before InitDefault, if the program calls it
//   const hbmprof::DeviceId device = profiler.Device("my_device:0");
//
//   void* MyAllocate(size_t bytes) {
//     void* p = device_allocate(bytes);
//     if (p != nullptr) profiler.RecordAlloc(p, bytes, {device});    // after the allocation succeeded
//     return p;
//   }
//   bool MyFree(void* p) {
//     profiler.RecordFree(p);                                        // before the memory is freed
//     return device_free(p);
//   }
//
// A pool reserves large segments and hands out blocks of them:
//
//   const hbmprof::Pool pool = {device, profiler.Allocator("my_pool")};
//   profiler.RecordSegment(pool, slab, slab_bytes);                  // reserved: a part of the bytes in use
//   profiler.RecordBlock(pool, block, block_bytes);                  // handed out: counts with the stack of this call
//   profiler.RecordBlockFree(pool, block);
//   profiler.RecordSegmentFree(pool, slab);
#ifndef HBMPROF_PROFILER_H_
#define HBMPROF_PROFILER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
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

// A device's own numbers, as its probe returns them, in bytes. A field without a value is not known. DeviceStats and
// Snapshot::Device describe the fields.
struct DeviceProbe {
  std::optional<int64_t> bytes_limit;
  std::optional<int64_t> bytes_free;
  std::optional<int64_t> largest_free_block_bytes;
  std::optional<int64_t> driver_bytes_in_use;
  std::optional<int64_t> driver_peak_bytes_in_use;
  DriverScope driver_scope = DriverScope::kDevice;
  std::optional<int64_t> driver_cache_bytes;
  std::optional<int64_t> baseline;
  std::string uuid;                      // of the device; empty: not known
  std::vector<DeviceProcess> processes;  // that have memory of the device; empty: not known
};

// A recorded buffer, as FindBuffer returns it.
struct LiveBuffer {
  int64_t bytes = 0;  // recorded size
  Attributes attributes;
};

// The recorded buffer that contains an address, as FindBufferAt returns it.
struct FoundBuffer {
  uint64_t address = 0;                                   // of its first byte
  int64_t bytes = 0;                                      // recorded size
  Attributes attributes;                                  // those of a segment of a pool have the kind kPool
  std::vector<std::pair<std::string, std::string>> tags;  // keys and values, sorted by key
  // Where it was allocated. Snapshot::modules and named_frames of a snapshot that was taken later describe the frames.
  Snapshot::Stack stack;
};

// Thread safety: any thread may call any function at any time, except where stated otherwise. The functions that begin
// with Record may also be called in signal handlers, and need less than 4 KiB of stack. The first call of Default(),
// which makes the profiler, must not be made in a signal handler and needs 16 KiB. A forked child records only if its
// parent had recorded nothing. Otherwise it is off: enabled() is false, and a snapshot is empty and has a warning.
//
// Exceptions: std::bad_alloc from the constructor, from the first call of Default(), and from functions that keep or
// return a string, a function, a Snapshot or a FoundBuffer; none from others.
//
// Recording allocates no host memory once the tables are large enough, takes no lock that is held for long (except
// while every live record is visited, see RecordSegment), and calls nothing that could call a recorded allocator.
//
// Order: call RecordAlloc after the allocation succeeded and RecordFree before the memory is freed. As soon as it is
// free, another thread may get and record the same address. The same order is required for RecordBlock and
// RecordBlockFree, and for RecordSegment.
class Profiler {
 public:
  explicit Profiler(const Options& options = {});
  // A profiler of your own writes no files, so it does not accept DefaultOptions. Pass Options, or call InitDefault.
  template <typename T, typename = std::enable_if_t<std::is_same_v<T, DefaultOptions>>>
  explicit Profiler(const T& options) = delete;
  // Ends all records. Frees no memory of any device. REQUIRES: no other thread uses the profiler.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Returns the profiler of the process. If InitDefault has not made it, the first use of it makes it with
  // OptionsFromEnvironment(), and the problems that this function finds are printed on stderr. It is never destroyed,
  // so allocations in static destructors are recorded too. While a thread makes it, calls of that same thread (from an
  // operator new that records, for example) get a profiler that is off and records nothing.
  //
  // In a program that was started with libhbmprof_gpu.so (`hbmprof run`), it uses the profiler of that library: all
  // functions act on one set of records, and no memory counts twice. Memory that the driver has allocated is recorded
  // by the driver's calls, which the library wraps. Calls of the program have these effects on such memory:
  // - RecordAlloc with the address and size of an allocation of the driver gives that allocation's record the caller's
  //   stack and tags, and the allocator name if there is one (stream-ordered memory keeps its own name). Its device and
  //   kind do not change. The record ends when the driver frees the memory, not at RecordFree.
  // - RecordAlloc and RecordBlock inside device memory of the driver record a block of it, as if RecordSegment had been
  //   called. The block has the device of that memory, and the name of the allocator. Inside managed, pinned or graph
  //   memory they record nothing and return false. RecordAlloc of kind kDevice with a handle (BufferId::Handle) also
  //   records nothing and returns false, if the driver has allocated on that device.
  // - RecordSegmentFree has no effect on memory of the driver: it stays a segment until the driver frees it.
  // - RecordResize does not change the driver's memory and returns false.
  // - If the driver has allocated on a device, DropDevice has no effect on that device.
  // - SetEnabled turns only the recording of the program's own calls on or off; the driver's calls are still recorded.
  // The program reaches that library through its C interface (c_api.h), and what this does not have is not there:
  // - A Snapshot has the devices with their statistics and a warning, but no samples; TrackerStats::unwinder is not
  //   known. save_device_memory_profile, device_memory_profile and AnswerHttpGet are complete.
  // - RecordFree, RecordBlockFree and RecordSegmentFree return 0 for a record that has ended, instead of its size.
  // - FindBuffer and FindBufferAt find nothing, KeepSite returns 0, and SetDeviceProbe has no effect.
  static Profiler& Default();

  // Makes the profiler that Default() returns, with `options`. The environment is not read. Call it at the start of
  // main(), before anything else of hbmprof. To change only some options and keep the environment variables for the
  // others:
  //
  //   std::vector<std::string> problems;
  //   hbmprof::DefaultOptions options = hbmprof::OptionsFromEnvironment(&problems);
  //   for (const std::string& problem : problems) std::cerr << problem << "\n";
  //   options.output = "/tmp/%p.%n.pb.gz";
  //   absl::Status made = hbmprof::Profiler::InitDefault(options);
  //
  // In a program that uses the injected library (see Default()), only these options have an effect: `enabled`,
  // `output` (with output_mode; the profile is written at exit), `oom_report` and `log`. All others are those of the
  // injected library, which reads them from the environment.
  //
  // After an error nothing is changed. A path of the options that cannot be written is no error: a line on stderr says
  // so. Errors: kInvalidArgument if an option is outside its range; kFailedPrecondition if the profiler exists already;
  // kResourceExhausted if the host has no memory.
  static absl::Status InitDefault(const DefaultOptions& options);

  // Returns the options that Default() was made with; makes it first if it does not exist.
  static DefaultOptions OptionsOfDefault();

  // Turns recording on or off. While it is off, events are ignored: buffers that are allocated meanwhile stay unknown,
  // and buffers that are freed meanwhile stay recorded. So call it at the start of a program, and do not use it to
  // pause recording.
  void SetEnabled(bool enabled);
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  // Returns whether this profiler passes its calls on to that of the injected library: see Default().
  bool uses_injected() const { return injected_ != nullptr; }

  // Returns the id of the device `name`, such as "GPU:0"; a new name is added. The label `device` shows the name. There
  // are 63 names at most besides "other": all further names share the id of "other". A name is cut at 64 bytes, or
  // before the UTF-8 character that would be split there. Takes a lock: call it once and keep the id.
  DeviceId Device(std::string_view name);
  // Returns the id of the allocator `name`; a new name is added. The label `allocator` shows the name. There are 254
  // names at most besides "other". Otherwise like Device().
  AllocatorId Allocator(std::string_view name);

  // Sets the probe of a device: the function that Stats and TakeSnapshot call for the device's own numbers. It is
  // called by any thread, also by several at once, without a lock of the profiler. It should report
  // DeviceStats::baseline, which the profiler does not compute. It may use the profiler, and what it
  // allocates is recorded. If it calls Stats or TakeSnapshot itself, these call no probe. If it throws a std::exception
  // other than std::bad_alloc, its values are not known. A device has one probe: a new one replaces the old one, and
  // waits until no other thread runs the old one. `owner` is any pointer; RemoveDeviceProbe must get the same one.
  void SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner = nullptr);
  // Removes the probe of a device if it was set with the same `owner`. When this returns, no thread runs the probe and
  // it will not be called again. Exception: a probe that sets or removes a probe does not wait for calls in progress.
  // REQUIRES: the caller holds no lock that the probe takes.
  void RemoveDeviceProbe(DeviceId device, const void* owner);

  // Records that `id` is a live buffer of `bytes` bytes, with the calling thread's stack and tags. Returns whether it
  // was recorded. It is not recorded if recording is off, if `id` is null, if the call is made inside the profiler, or
  // if a limit was reached or `id` has its highest bit set (dropped_records and dropped_bytes then count it). A buffer
  // or segment has at most 2^40-1 bytes; a larger one is dropped. A buffer of 0 bytes is recorded. If `id` is live
  // already, that record ends first (replaced_records counts it). Memory inside a segment counts in addition to the
  // segment: record it as a block (RecordBlock). Kind kAlias counts as 0 bytes. Kind kPool is recorded as kDevice:
  // RecordSegment records segments.
  // Always inlined, so that it is not a frame of the stack.
  [[gnu::always_inline]] bool RecordAlloc(BufferId id, size_t bytes, const Attributes& attributes = {}) {
    return enabled() && Alloc(id, bytes, internal::PackAttributes(attributes));
  }
  // Like RecordAlloc, with a stack that begins at `caller`. For wrappers.
  bool RecordAllocFrom(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) {
    return enabled() && AllocFrom(caller, id, bytes, internal::PackAttributes(attributes));
  }

  // Removes the record of `id` and returns its size in bytes. Returns no value if recording is off, if `id` is null, or
  // if `id` is not live (foreign_frees counts that). The record does not come back if the memory then cannot be freed.
  std::optional<int64_t> RecordFree(BufferId id) { return enabled() ? Free(id) : std::nullopt; }
  // Counts in refused_frees that the memory of a removed record could not be freed. Does nothing if recording is off.
  void RecordRefusedFree();

  // Keeps the stack at `caller` and the thread's tags for memory that will exist later, perhaps several times, such as
  // the memory of a CUDA graph, which exists from a launch on. Returns a number for RecordAllocAt. Returns 0 in the
  // cases in which RecordAlloc returns false.
  uint32_t KeepSite(const Caller& caller, size_t bytes, const Attributes& attributes);
  // Like RecordAlloc, with the stack, the tags and the attributes that KeepSite has kept as `site`. `bytes`: those that
  // KeepSite got. Returns false if `site` is 0.
  bool RecordAllocAt(uint32_t site, BufferId id, size_t bytes);

  // Records that the pool has reserved [address, address+bytes): device memory that it hands out in blocks. The bytes
  // in use contain all segments that the device has handed out. A profile shows a pool's blocks with their own stacks,
  // and one row for its idle memory: the bytes of its segments minus those that it has allocated.
  // - If `address` is the id of a live buffer, that buffer becomes the segment. It keeps its stack, tags, size, and its
  //   device, which must be that of the pool.
  // - Otherwise, if a live block of another pool of the device begins at `address`, it becomes the segment: a pool
  //   inside a pool. It keeps its stack, tags and size.
  // - Otherwise a new segment is recorded, with the calling thread's stack.
  // Record a segment before its blocks, and all segments of a pool: profiles have a warning if a pool's blocks have
  // more bytes than its segments. Blocks of a pool that has no segment count in the bytes in use, like buffers. Two
  // pools of which one is inside the other must have different names.
  //
  // A segment ends with RecordSegmentFree, or with what ends its memory: RecordFree (also if a wrapper calls it) or the
  // outer pool's RecordBlockFree. Blocks that begin in it end at the latest before they can be seen in a profile.
  //
  // Returns whether there is a segment of the pool at `address` now. There is none in the cases in which RecordAlloc
  // returns false, if the live buffer at `address` is not in MemorySpace::kDevice, is of another device or is a segment
  // of another pool, or if there are too many pools.
  bool RecordSegment(const Pool& pool, BufferId address, size_t bytes);
  bool RecordSegmentFrom(const Caller& caller, const Pool& pool, BufferId address, size_t bytes);
  // Ends the pool's segment at `address`, and returns its size in bytes. A segment that was a block becomes a block of
  // the outer pool again. Returns no value if recording is off or if there is no such segment (foreign_frees counts
  // that).
  std::optional<int64_t> RecordSegmentFree(const Pool& pool, BufferId address);
  // Records a block: memory that the pool has handed out. Like RecordAlloc, with kind kDevice. The block adds to what
  // the pool has allocated, and not to the bytes in use. Blocks and other buffers have separate ids: a block may begin
  // where its segment begins. Addresses (within their name space, see BufferId) must be below 2^50; others are dropped
  // (dropped_records counts them).
  bool RecordBlock(const Pool& pool, BufferId address, size_t bytes);
  bool RecordBlockFrom(const Caller& caller, const Pool& pool, BufferId address, size_t bytes);
  // Like RecordFree, for the pool's block at `address`, also if it has become a segment of another pool.
  std::optional<int64_t> RecordBlockFree(const Pool& pool, BufferId address);

  // Gives a live buffer or segment another size, in bytes: for memory that was resized at its address, and for a
  // segment that grows or shrinks. It keeps its stack and tags. It does not count as one more allocation, but growth is
  // added to the bytes ever allocated. A buffer of kind kAlias keeps its 0 bytes. Blocks stay as they are. Returns
  // false and changes nothing if recording is off, if `id` is not live, or if a limit was reached.
  bool RecordResize(BufferId id, size_t bytes);
  // Like RecordResize, for the pool's block at `address`.
  bool RecordBlockResize(const Pool& pool, BufferId address, size_t bytes);

  // Counts an allocation of `bytes` bytes in dropped_records and dropped_bytes. For a wrapper that cannot record it
  // because the host has no memory. Does nothing if recording is off.
  void RecordDropped(size_t bytes);

  // Sets the program's counter `name`, such as the number of requests served, to `value`. Profiles contain it, so that
  // growth can be reported per request (`hbmprof leaks --per requests`). Names are cut like those of devices;
  // there are 64 at most, further ones are ignored. Takes a lock: call it once per request or batch.
  void SetCounter(std::string_view name, int64_t value);

  // Returns the live record of `id`. No value if there is none. Blocks of pools (RecordBlock) are not found.
  std::optional<LiveBuffer> FindBuffer(BufferId id) const;
  // Returns the live buffer that contains `address`, for example an address from an error message of the device. If
  // several buffers contain it, returns the innermost one: the block, not its segment. No value if there is none, if
  // `address` is a handle, or if called inside the profiler. Buffers of 0 bytes contain no address. A buffer that is
  // live during the whole call is always found. Time: about 30 ns for each live record; other threads record
  // meanwhile. Do not call it in signal handlers.
  std::optional<FoundBuffer> FindBufferAt(BufferId address) const;

  // Returns the recorded numbers of one memory space of a device at one instant. Calls the device's probe first,
  // so the probe's numbers can be older than the others.
  DeviceStats Stats(DeviceId device, MemorySpace space = MemorySpace::kDevice) const;
  // Returns the numbers of the profiler's own work, such as dropped allocations.
  TrackerStats GetTrackerStats() const;

  // Returns everything that is recorded at one instant. For each device and space, the sum of the samples' in-use bytes
  // is exactly its bytes_in_use, and the sum of their peak bytes exactly its peak_bytes_in_use, also while other
  // threads record. Call sites that have allocated nothing are left out. After that instant, reads all that is not an
  // event: the loaded libraries, the numbers of the tracker, the ages, the counters, and the devices' probes, which it
  // calls.
  Snapshot TakeSnapshot() const;

  // Starts a new peak of each memory space of `device`: the peak becomes the bytes that are in use now.
  void ResetPeak(DeviceId device);

  // Removes all live records of a device, as after a device reset. The records of the allocator `survivor` and of the
  // ids in `kept` stay, but not the blocks in them. Counts of past allocations stay.
  void DropDevice(DeviceId device, std::optional<AllocatorId> survivor = std::nullopt, std::vector<BufferId> kept = {});

 private:
  friend class internal::ProfilerAccess;

  // Makes the profiler that Default() returns to the thread that is making the real one. It is never enabled.
  struct IsOff {};
  constexpr explicit Profiler(IsOff) noexcept;
  // Makes a profiler that uses the injected library.
  Profiler(const internal::InjectedProfiler& injected, bool enabled);

  // RecordAlloc, RecordAllocFrom and RecordFree while recording is on. `attributes`: from PackAttributes.
  bool Alloc(BufferId id, size_t bytes, uint64_t attributes);
  bool AllocFrom(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes);
  std::optional<int64_t> Free(BufferId id);

  // Returns the only profiler that was made with IsOff. It needs no initialization and is never destroyed.
  static Profiler& Off();

  std::atomic<bool> enabled_;
  std::unique_ptr<internal::ProfilerImpl> impl_;  // null if uses_injected(), and in Off()
  const internal::InjectedProfiler* const injected_ = nullptr;
};

}  // namespace hbmprof

#endif  // HBMPROF_PROFILER_H_
