// InjectedProfiler: a table of the functions of the injected library's profiler. The copies of this library that are
// linked into a program call these functions to record, so that one profiler counts all memory of the process. The
// table has no types of the C++ library, which may be another one in the program. The two libraries share no object:
// each has its own locks and thread state.
#ifndef HBMPROF_SRC_CORE_JOINED_INJECTED_H_
#define HBMPROF_SRC_CORE_JOINED_INJECTED_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"

namespace hbmprof::internal {

// The contents of a RecordingOptions.
struct InjectedRecording {
  int64_t max_bytes;
  int64_t buffer_bytes;
  int64_t sample_millis;
};

// The data that `read` passes to Receive.
enum InjectedPart : uint32_t {
  kInjectedSnapshot,      // a Snapshot
  kInjectedExitSnapshot,  // the Snapshot that all profiles at exit show
  kInjectedDeviceStats,   // the DeviceStats of one memory space
  kInjectedTrackerStats,  // the TrackerStats
};

// The functions of Profiler that a joined profiler only passes on while it is enabled: F(Result, Name, parameters,
// arguments). Each of them is a function of the table, of ProfilerImpl and of src/inject/injected_profiler.cc.
#define HBMPROF_FORWARDED(F)                                                                             \
  F(bool, RecordResize, (BufferId id, size_t bytes), (id, bytes))                                        \
  F(bool, RecordBlockResize, (const Pool& pool, BufferId address, size_t bytes), (pool, address, bytes)) \
  F(void, RecordDropped, (size_t bytes), (bytes))                                                        \
  F(void, RecordRefusedFree, (), ())                                                                     \
  F(uint32_t, KeepSite, (const Caller& caller, size_t bytes, const Attributes& attributes),              \
    (caller, bytes, attributes))                                                                         \
  F(bool, RecordAllocAt, (uint32_t site, BufferId id, size_t bytes), (site, id, bytes))

// No function throws. Only functions with a Receive, probes and the `end` of a probe call functions of the linked copy.
// Devices, allocators and kinds are the injected profiler's numbers. Texts need no terminating zero. Each function has
// the effect of the function of Profiler with that name; those with its very name have its parameters, too. Functions
// that return an int return 0 if the host has no memory.
struct InjectedProfiler {
  using Record = bool(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes);
  using RecordInPool = bool(const Caller& caller, const Pool& pool, BufferId address, size_t bytes);
  using EndInPool = int64_t(const Pool& pool, BufferId address);  // -1: no record
  // Receives bytes (snapshot_bytes.h), which are valid only during the call. Must not throw. If the injected library
  // calls it, allocations of the thread during the call are not recorded.
  using Receive = void(void* argument, const char* bytes, size_t size);
  // Passes the bytes of a DeviceProbe to `receive`. Must not throw. Returns 0 if the host has no memory.
  using Probe = int(void* argument, Receive* receive, void* receiver);

  size_t struct_size;
  uint32_t version;
  const void* copy;  // identifies the library that has this table: the address of its `found_injected`

  int (*start)();  // makes the profiler
  Record* RecordAlloc;
  RecordInPool* RecordSegment;
  RecordInPool* RecordBlock;
  int64_t (*record_free)(BufferId id);  // -1: no record
  EndInPool* record_segment_free;
  EndInPool* record_block_free;
#define HBMPROF_DECLARE(Result, Name, parameters, arguments) Result(*Name) parameters;
  HBMPROF_FORWARDED(HBMPROF_DECLARE)
#undef HBMPROF_DECLARE
  bool (*find_buffer)(BufferId id, LiveBuffer* buffer);

  int (*device)(const char* name, size_t size, uint32_t* number);
  int (*allocator)(const char* name, size_t size, uint32_t* number);
  // Calls end(argument) when the probe is no longer needed, also if set_device_probe fails.
  int (*set_device_probe)(DeviceId device, Probe* probe, void* argument, void (*end)(void* argument),
                          const void* owner);
  void (*RemoveDeviceProbe)(DeviceId device, const void* owner);
  int (*set_counter)(const char* name, size_t name_size, int64_t value);

  int (*read)(InjectedPart part, DeviceId device, MemorySpace space, Receive* receive, void* argument);
  void (*ResetPeak)(DeviceId device);
  int (*drop_device)(DeviceId device, int32_t survivor, const BufferId* kept, size_t count);

  // The calling thread's set of tags. extend_tags adds a tag and returns the previous set. set_tags replaces the set.
  uint32_t (*extend_tags)(const char* key, size_t key_size, const char* value, size_t value_size);
  void (*set_tags)(uint32_t tags);

  // The calling thread's ScopedCaller: begin_scope returns whether it has begun one, which end_scope then ends.
  bool (*begin_scope)(const Caller& caller);
  void (*end_scope)();

  // Receives the bytes of a FoundBuffer. Returns 1 if there is one, 0 if there is none, -1 if the host has no memory.
  int (*find_buffer_at)(BufferId address, Receive* receive, void* argument);
  // RecordFailure of src/recording/recorder/recorder.h.
  void (*record_failure)(const Caller& caller, DeviceId device, MemorySpace space, int64_t bytes);
  // The functions of recording.h. They return the code of their absl::Status. After an error, `receive` gets its
  // message.
  int (*start_recording)(const char* path, size_t path_size, const InjectedRecording* options, Receive* receive,
                         void* argument);
  int (*stop_recording)(Receive* receive, void* argument);
  int (*save_flight_recording)(const char* path, size_t path_size, Receive* receive, void* argument);
  // The snapshots of the calling thread between the two calls are marks of this name in the recording.
  void (*begin_mark)(const char* name, size_t name_size);
  void (*end_mark)();
};
static_assert(std::is_standard_layout_v<InjectedProfiler> && std::is_trivial_v<InjectedProfiler>);

// Must be increased if the meaning of anything above or in snapshot_bytes.h changes, but not if functions are only
// added at the end of the table.
inline constexpr uint32_t kInjectedVersion = 8;

// The injected library exports: const InjectedProfiler* hbmprof_cuda_profiler().
inline constexpr char kInjectedSymbol[] = "hbmprof_cuda_profiler";
using GetInjected = const InjectedProfiler*();

extern const InjectedProfiler kNoInjected;
// The profiler that this copy has joined; kNoInjected if there is none to join; null before the search.
extern std::atomic<const InjectedProfiler*> found_injected;

// Searches for the injected library's profiler, sets found_injected, and returns what JoinedProfiler returns.
const InjectedProfiler* FindInjected();

// Returns the injected library's profiler, which this copy of the library has joined. Returns null if this copy uses
// its own profiler: there is no injected library, it has another version (then a message says so), or this copy is the
// injected library itself. The search is made once: when this copy is loaded, or at the first call if that is earlier.
inline const InjectedProfiler* JoinedProfiler() {
  const InjectedProfiler* injected = found_injected.load(std::memory_order_acquire);
  if (injected == &kNoInjected) return nullptr;
  return injected != nullptr ? injected : FindInjected();
}

// Makes this copy use its own profiler. Must be called before any other function of the library.
void StaySeparate();

// Access to the private members of Profiler, for the code on both sides of the table.
class ProfilerAccess {
 public:
  union OffProfiler;  // holds that of Profiler::Off(): see profiler.cc
  // Returns a profiler that records into `injected`.
  static Profiler Joined(const InjectedProfiler& injected, bool enabled) { return Profiler(injected, enabled); }
  // Returns the injected profiler that `profiler` has joined, or null.
  static const InjectedProfiler* JoinedBy(const Profiler& profiler) { return profiler.joined_; }
  // Returns whether the profiler is neither a joined one nor Profiler::Off().
  static bool HasImpl(const Profiler& profiler) { return profiler.impl_ != nullptr; }
  // REQUIRES: HasImpl.
  static ProfilerImpl& ImplOf(Profiler& profiler) { return *profiler.impl_; }
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_JOINED_INJECTED_H_
