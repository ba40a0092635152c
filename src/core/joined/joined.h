// Joined: the functions of a Profiler that has joined the injected library's profiler (injected.h). There are no locks
// on this side. If a signal handler interrupts the injected profiler and records here, that profiler's own re-entry
// guard detects it.
//
// What the C interface does not have is not there (Profiler::Default() in profiler.h has the list for users).
#ifndef HBMPROF_SRC_CORE_JOINED_JOINED_H_
#define HBMPROF_SRC_CORE_JOINED_JOINED_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/http.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/pprof.h"
#include "hbmprof/snapshot.h"
#include "src/core/joined/injected.h"

namespace hbmprof::internal {

class Joined {
 public:
  explicit Joined(const InjectedProfiler& injected) : injected_(injected) {}

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
  // The bytes are not counted.
  void RecordDropped(size_t bytes) const;
  void RecordRefusedFree() const { injected_.record_refused_free(); }

  DeviceId Device(std::string_view name) const;
  AllocatorId Allocator(std::string_view name) const;
  void SetCounter(std::string_view name, int64_t value) const;

  DeviceStats Stats(DeviceId device, MemorySpace space) const;
  TrackerStats GetTrackerStats() const;
  // Has the devices, their statistics and the tracker's, and a warning.
  Snapshot TakeSnapshot() const;
  void ResetPeak(DeviceId device) const;
  // The injected library knows itself what survives.
  void DropDevice(DeviceId device, std::optional<AllocatorId>, const std::vector<BufferId>&) const;

  // The functions of hbmprof.h, http.h, recording.h and out_of_memory.h.
  absl::StatusOr<std::string> Profile(const PprofOptions& options) const;
  absl::Status SaveProfile(std::string_view path) const;
  HttpAnswer AnswerGet(std::string_view target) const;
  absl::Status StartRecording(std::string_view path) const;
  absl::Status StopRecording() const;
  absl::Status SaveFlightRecording(std::string_view path) const;
  bool ReportOutOfMemory(const FailedAllocation& failure, DeviceId device, const Caller& caller) const;

 private:
  // Returns the error of a function that returned `code`.
  absl::Status StatusOf(int code) const;

  const InjectedProfiler& injected_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_JOINED_JOINED_H_
