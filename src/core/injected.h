// InjectedProfiler: the table of functions through which the copies of this library that are linked into a program
// record into the injected library's profiler, so that the process has one account of its memory. In plain C types,
// since the two may be of different versions and share no object: each keeps its locks and its thread's state to
// itself.
//
// Lives here: the table, and how a copy finds it. Not here: who serves it (src/inject/injected_profiler.cc), what a
// joined Profiler does with it (joined.h).
#ifndef HBMPROF_SRC_CORE_INJECTED_H_
#define HBMPROF_SRC_CORE_INJECTED_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"

namespace hbmprof::internal {

// A FreedRecord.
struct InjectedRecord {
  uint64_t id;
  int64_t bytes;  // -1: there is none
  uint32_t site;
};

struct InjectedBuffer {
  int64_t bytes;
  uint32_t device;
  uint32_t kind;
  uint32_t allocator;
};

// A DeviceProbe.
struct InjectedProbe {
  int64_t bytes_limit;
  int64_t largest_free_block_bytes;
  int64_t driver_bytes_in_use;
  int64_t driver_peak_bytes_in_use;
  int64_t driver_cache_bytes;
  int64_t baseline;
  uint32_t driver_scope;
  uint32_t has_baseline;
};

// What `read` hands over.
enum InjectedPart : uint32_t {
  kInjectedSnapshot,      // a Snapshot
  kInjectedExitSnapshot,  // the one that all profiles at exit show
  kInjectedDeviceStats,   // the DeviceStats of one memory space
  kInjectedTrackerStats,  // the TrackerStats
};

// No function throws or calls back, but for `read` and the probes. Devices, allocators and kinds are the
// injected profiler's numbers. Texts need no terminating zero. Each function does what the Profiler's of that name
// does; those that say whether they succeeded return 0 where the host has no memory.
struct InjectedProfiler {
  using Record = int(const Caller* caller, uint64_t id, uint64_t bytes, uint32_t device, uint32_t kind,
                     uint32_t allocator);
  // Must not throw. Returns 0 where the host has no memory.
  using Probe = int(void* argument, InjectedProbe* probe);
  // Takes over bytes that are valid during the call (snapshot_bytes.h). Must not throw. What the thread allocates
  // meanwhile is not recorded.
  using Receive = void(void* argument, const char* bytes, size_t size);

  size_t struct_size;
  uint32_t version;
  const void* copy;  // of the library that serves it: its `found_injected`

  int (*start)();  // makes the profiler
  Record* record_alloc;
  Record* record_segment;
  Record* record_block;
  InjectedRecord (*record_free)(uint64_t id);
  InjectedRecord (*record_block_free)(uint64_t address);
  int (*record_resize)(uint64_t id, uint64_t bytes);
  int (*record_block_resize)(uint64_t address, uint64_t bytes);
  int (*split_segment)(uint64_t address, uint64_t bytes);
  int (*merge_segments)(uint64_t first, uint64_t second);
  void (*restore_record)(const InjectedRecord* record);
  InjectedRecord (*prepare_record)(const Caller* caller, uint64_t id, uint64_t bytes, uint32_t device, uint32_t kind,
                                   uint32_t allocator);
  void (*record_dropped)(uint64_t bytes);
  int (*find_buffer)(uint64_t id, InjectedBuffer* buffer);

  int (*device)(const char* name, size_t size, uint32_t* number);
  int (*allocator)(const char* name, size_t size, uint32_t* number);
  // Calls end(argument) once the probe is not needed any more, also where it fails.
  int (*set_device_probe)(uint32_t device, Probe* probe, void* argument, void (*end)(void* argument),
                          const void* owner);
  void (*remove_device_probe)(uint32_t device, const void* owner);
  int (*set_counter)(const char* name, size_t name_size, int64_t value);

  int (*read)(uint32_t part, uint32_t device, uint32_t space, Receive* receive, void* argument);
  void (*reset_peak)(uint32_t device);
  int (*drop_device)(uint32_t device, int32_t survivor, const uint64_t* kept, size_t count);

  // The tags of the calling thread: adds one and returns the set there was before; sets them.
  uint32_t (*extend_tags)(const char* key, size_t key_size, const char* value, size_t value_size);
  void (*set_tags)(uint32_t tags);
};
static_assert(std::is_standard_layout_v<InjectedProfiler> && std::is_trivial_v<InjectedProfiler>);

// Raised whenever anything above changes its meaning, and whenever snapshot_bytes.h does. Tables with more functions
// than this one are the same version.
inline constexpr uint32_t kInjectedVersion = 2;

// What the injected library exports under this name: const InjectedProfiler* hbmprof_cuda_profiler().
inline constexpr char kInjectedSymbol[] = "hbmprof_cuda_profiler";
using GetInjected = const InjectedProfiler*();

extern const InjectedProfiler kNoInjected;
// What this copy has joined, kNoInjected if there is nothing to join, null if nobody has looked yet.
extern std::atomic<const InjectedProfiler*> found_injected;

// JoinedProfiler, for whoever comes before the decision.
const InjectedProfiler* FindInjected();

// The injected library's profiler, which this copy of the library has joined; null if it keeps to its own: there is no
// injected library, or one of another version (then a line says so), or this is that library itself. Decided once, when
// this copy is loaded or at the first call before that.
inline const InjectedProfiler* JoinedProfiler() {
  const InjectedProfiler* injected = found_injected.load(std::memory_order_acquire);
  if (injected == &kNoInjected) return nullptr;
  return injected != nullptr ? injected : FindInjected();
}

// Lets this copy keep to its own profiler. To be called before anything else of the library's.
void StaySeparate();

// What only the two ends of the table may see of a Profiler.
class ProfilerAccess {
 public:
  static InjectedRecord Of(const FreedRecord& record) { return {record.id_.value(), record.bytes_, record.site_}; }
  static FreedRecord From(const InjectedRecord& record) {
    FreedRecord freed;
    freed.id_ = BufferId(record.id);
    freed.bytes_ = record.bytes;
    freed.site_ = record.site;
    return freed;
  }
  // A profiler that records into `injected`.
  static Profiler* NewJoined(const InjectedProfiler& injected, bool enabled) { return new Profiler(injected, enabled); }
  // What a profiler has joined; null for others.
  static const InjectedProfiler* JoinedBy(const Profiler& profiler) { return profiler.joined_; }
  // Of a profiler that has not joined another.
  static ProfilerImpl& ImplOf(Profiler& profiler) { return *profiler.impl_; }
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_INJECTED_H_
