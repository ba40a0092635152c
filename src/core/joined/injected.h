// The functions of the injected library (libhbmprof_cuda.so) that a copy of this library in the program calls to
// record, so that one profiler counts all memory of the process. They are functions of the C interface
// (hbmprof/c_api.h), and are found by name. The two libraries share no object: each has its own locks and thread state.
#ifndef HBMPROF_SRC_CORE_JOINED_INJECTED_H_
#define HBMPROF_SRC_CORE_JOINED_INJECTED_H_

#include <atomic>

#include "hbmprof/c_api.h"
#include "hbmprof/profiler.h"

namespace hbmprof::internal {

// clang-format off
// Functions that injected_profiler.cc defines, because the driver's memory is recorded by the driver's calls.
#define HBMPROF_INJECTED_EVENTS(F)                                                                         \
  F(enabled) F(record_alloc_with) F(record_free) F(record_resize) F(record_segment) F(record_segment_free) \
  F(record_block) F(record_block_free) F(record_block_resize) F(drop_device)
// Functions of c_api.cc.
#define HBMPROF_INJECTED_OTHERS(F)                                                                            \
  F(allocator) F(answer_http_get) F(begin_caller) F(device) F(device_name) F(devices) F(end_caller)           \
  F(free_http_answer) F(get_space_stats) F(get_tracker_stats) F(last_error) F(record_refused_free)            \
  F(report_out_of_memory) F(reset_peak) F(save_device_memory_profile) F(save_flight_recording) F(set_counter) \
  F(start_recording) F(stop_recording) F(tag_pop) F(tag_push) F(version)
// clang-format on

// The injected library exports `name` as hbmprof_injected_NAME, so that no program that uses the shared library finds
// it instead of that library's function. cuda.cmake reads the two lists.
struct InjectedProfiler {
#define HBMPROF_DECLARE(name) decltype(&::hbmprof_##name) name;
  HBMPROF_INJECTED_EVENTS(HBMPROF_DECLARE)
  HBMPROF_INJECTED_OTHERS(HBMPROF_DECLARE)
#undef HBMPROF_DECLARE
};

extern const InjectedProfiler kNoInjected;
// The profiler that this copy has joined; kNoInjected if there is none to join; null before the search.
extern std::atomic<const InjectedProfiler*> found_injected;

// Searches for the injected library, sets found_injected, and returns what JoinedProfiler returns.
const InjectedProfiler* FindInjected();

// Returns the functions of the injected library, whose profiler this copy has joined. Returns null if this copy uses
// its own profiler: there is no injected library, its C interface does not have all of the functions above or is not
// that of this version (docs/versions.md; then a message says so), or StaySeparate was called. The search is made once:
// when this copy is loaded, or at the first call if that is earlier.
inline const InjectedProfiler* JoinedProfiler() {
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
