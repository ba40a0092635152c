// InjectedProfiler: the profiler of the injected library (libhbmprof_gpu.so), for a copy of this library in the
// program. The copy records into it, so that one profiler counts all memory of the process. The two libraries share no
// object: each has its own locks and thread state. The copy calls functions of the C interface (hbmprof/c_api.h), which
// it finds by name. If a signal handler interrupts the injected profiler and records here, that profiler's own re-entry
// guard detects it.
//
// What the C interface does not have is not there (Profiler::Default() in profiler.h has the list for users).
#ifndef HBMPROF_SRC_CORE_INJECTED_INJECTED_H_
#define HBMPROF_SRC_CORE_INJECTED_INJECTED_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/allocation.h"
#include "hbmprof/c_api.h"
#include "hbmprof/caller.h"
#include "hbmprof/http.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"

// clang-format off
// Functions of the C interface that injected_profiler.cc defines anew, because the driver's memory is recorded by the
// driver's calls.
#define HBMPROF_INJECTED_EVENTS(F)                                                                        \
  F(record_alloc_with) F(record_free) F(record_resize) F(record_segment) F(record_segment_free)           \
  F(record_block) F(record_block_free) F(record_block_resize) F(drop_device)
// Functions of injected_profiler.cc that the C interface does not have.
#define HBMPROF_INJECTED_OWN(F) F(exit_profile) F(join) F(record_dropped)
// Functions of c_api.cc.
#define HBMPROF_INJECTED_OTHERS(F)                                                                        \
  F(allocator) F(answer_http_get) F(begin_caller) F(device) F(device_name) F(devices) F(end_caller)       \
  F(free_http_answer) F(free_profile) F(get_space_stats) F(get_tracker_stats) F(last_error)               \
  F(record_refused_free) F(report_out_of_memory) F(reset_peak) F(save_device_memory_profile)              \
  F(save_flight_recording) F(set_counter) F(start_recording) F(stop_recording) F(tag_pop) F(tag_push) F(version)
// clang-format on

extern "C" {
// The first function that a copy calls: makes the injected profiler and starts what its options require. A copy that
// then registers an exit handler calls it again: the injected library's handler runs before that one. Returns whether
// the profiler is enabled.
[[gnu::visibility("default")]] int hbmprof_injected_join();
// Like hbmprof_device_memory_profile, with the state that the injected library shows in its own profile at exit.
[[gnu::visibility("default")]] int hbmprof_injected_exit_profile(uint8_t** bytes, size_t* size);
// Profiler::RecordDropped.
[[gnu::visibility("default")]] void hbmprof_injected_record_dropped(size_t bytes);
}

namespace hbmprof::internal {

// The functions that a copy has found, and functions of Profiler, hbmprof.h, http.h, recording.h and out_of_memory.h
// that call them.
struct InjectedProfiler {
  // The injected library exports `name` as hbmprof_injected_NAME, so that no program that uses the shared library finds
  // it instead of that library's function. gpu.cmake reads the lists.
#define HBMPROF_DECLARE(name) decltype(&::hbmprof_##name) name;
#define HBMPROF_DECLARE_OWN(name) decltype(&::hbmprof_injected_##name) name;
  HBMPROF_INJECTED_EVENTS(HBMPROF_DECLARE)
  HBMPROF_INJECTED_OWN(HBMPROF_DECLARE_OWN)
  HBMPROF_INJECTED_OTHERS(HBMPROF_DECLARE)
#undef HBMPROF_DECLARE
#undef HBMPROF_DECLARE_OWN

  // `attributes`: from PackAttributes.
  [[gnu::cold]] bool RecordAlloc(Caller caller, BufferId id, size_t bytes, uint64_t attributes) const;
  bool RecordSegment(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) const;
  [[gnu::cold]] bool RecordBlock(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) const;
  // These return 0 for a record that has ended: its size is not known here.
  [[gnu::cold]] std::optional<int64_t> RecordFree(BufferId id) const;
  std::optional<int64_t> RecordSegmentFree(const Pool& pool, BufferId address) const;
  [[gnu::cold]] std::optional<int64_t> RecordBlockFree(const Pool& pool, BufferId address) const;
  bool RecordResize(BufferId id, size_t bytes) const;
  bool RecordBlockResize(const Pool& pool, BufferId address, size_t bytes) const;
  void RecordDropped(size_t bytes) const { record_dropped(bytes); }
  void RecordRefusedFree() const { record_refused_free(); }

  DeviceId Device(std::string_view name) const;
  AllocatorId Allocator(std::string_view name) const;
  void SetCounter(std::string_view name, int64_t value) const;

  DeviceStats Stats(DeviceId device, MemorySpace space) const;
  TrackerStats GetTrackerStats() const;
  // Has the devices, their statistics and the tracker's, and a warning.
  Snapshot TakeSnapshot() const;
  void ResetPeak(DeviceId device) const;
  // The injected library knows itself what survives.
  void EndDevice(DeviceId device, std::optional<AllocatorId>, const std::vector<BufferId>&) const;

  absl::StatusOr<std::string> Profile(const PprofOptions& options) const;
  std::string ExitProfile() const;
  absl::Status SaveProfile(std::string_view path) const;
  HttpAnswer AnswerGet(std::string_view target) const;
  absl::Status StartRecording(std::string_view path) const;
  absl::Status StopRecording() const;
  absl::Status SaveFlightRecording(std::string_view path) const;
  bool ReportOutOfMemory(const FailedAllocation& failure, DeviceId device, const Caller& caller) const;

 private:
  // Returns the error of a function that returned `code`.
  absl::Status StatusOf(int code) const;
};

extern const InjectedProfiler kNoInjected;
// The injected profiler; kNoInjected if this copy uses its own; null before the search.
extern std::atomic<const InjectedProfiler*> found_injected;

// Searches for the injected library, sets found_injected, and returns what InjectedOfProcess returns.
const InjectedProfiler* FindInjected();

// Returns the functions of the injected library, whose profiler this copy uses. Returns null if this copy uses
// its own profiler: there is no injected library, its C interface does not have all of the functions above or is not
// that of this version (docs/versions.md; then a message says so), or StaySeparate was called. The search is made once:
// when this copy is loaded, or at the first call if that is earlier.
inline const InjectedProfiler* InjectedOfProcess() {
  const InjectedProfiler* injected = found_injected.load(std::memory_order_acquire);
  if (injected == &kNoInjected) return nullptr;
  return injected != nullptr ? injected : FindInjected();
}

// Makes this copy use its own profiler. Must be called before any other function of the library.
void StaySeparate();

// Access to the private members of Profiler.
class ProfilerAccess {
 public:
  union OffProfiler;  // holds that of Profiler::Off(): see profiler.cc
  // Returns a profiler that records into `injected`.
  static Profiler RecordsInto(const InjectedProfiler& injected, bool enabled) { return Profiler(injected, enabled); }
  // Returns the injected profiler that `profiler` uses, or null.
  static const InjectedProfiler* InjectedOf(const Profiler& profiler) { return profiler.injected_; }
  // Returns whether the profiler neither uses the injected library nor is Profiler::Off().
  static bool HasImpl(const Profiler& profiler) { return profiler.impl_ != nullptr; }
  // REQUIRES: HasImpl.
  static ProfilerImpl& ImplOf(Profiler& profiler) { return *profiler.impl_; }
};

// Returns the injected profiler that Profiler::Default() uses, or null.
inline const InjectedProfiler* InjectedOfDefault() { return ProfilerAccess::InjectedOf(Profiler::Default()); }

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_INJECTED_INJECTED_H_
