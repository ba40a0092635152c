// Joined: those functions of a Profiler that has joined the injected library's profiler which must convert arguments or
// results for the table (injected.h). There is no state on this side, so there are no locks. If a signal handler
// interrupts the injected profiler and records here, that profiler's own re-entry guard detects it.
#ifndef HBMPROF_SRC_CORE_JOINED_JOINED_H_
#define HBMPROF_SRC_CORE_JOINED_JOINED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "hbmprof/profiler.h"
#include "hbmprof/recording.h"
#include "src/core/joined/injected.h"

namespace hbmprof::internal {

class Joined {
 public:
  explicit Joined(const InjectedProfiler& injected) : injected_(injected) {}

  std::optional<int64_t> RecordFree(BufferId id) const { return Freed(injected_.record_free(id)); }
  std::optional<int64_t> RecordSegmentFree(const Pool& pool, BufferId address) const {
    return Freed(injected_.record_segment_free(pool, address));
  }
  std::optional<int64_t> RecordBlockFree(const Pool& pool, BufferId address) const {
    return Freed(injected_.record_block_free(pool, address));
  }
  std::optional<LiveBuffer> FindBuffer(BufferId id) const;
  std::optional<FoundBuffer> FindBufferAt(BufferId address) const;

  DeviceId Device(std::string_view name) const { return DeviceId(NumberOf(injected_.device, name)); }
  AllocatorId Allocator(std::string_view name) const { return AllocatorId(NumberOf(injected_.allocator, name)); }
  void SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) const;
  void SetCounter(std::string_view name, int64_t value) const;

  DeviceStats Stats(DeviceId device, MemorySpace space) const;
  TrackerStats GetTrackerStats() const;
  Snapshot TakeSnapshot() const;
  // Returns the snapshot for all profiles that are written at exit. The first call takes it.
  Snapshot TakeExitSnapshot() const;
  void DropDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<BufferId>& kept) const;

  // The functions of recording.h.
  absl::Status StartRecording(std::string_view path, const RecordingOptions& options) const;
  absl::Status StopRecording() const;
  absl::Status SaveFlightRecording(std::string_view path) const;
  void BeginMark(std::string_view name) const { injected_.begin_mark(name.data(), name.size()); }
  void EndMark() const { injected_.end_mark(); }

 private:
  static std::optional<int64_t> Freed(int64_t bytes) { return bytes < 0 ? std::nullopt : std::optional(bytes); }
  static uint32_t NumberOf(int (*number_of)(const char*, size_t, uint32_t*), std::string_view name);
  template <typename T>
  T Read(InjectedPart part, DeviceId device = kDefaultDevice, MemorySpace space = MemorySpace::kDevice) const;

  const InjectedProfiler& injected_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_JOINED_JOINED_H_
