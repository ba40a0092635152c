// Joined: the functions of a Profiler that has joined the injected library's profiler (injected.h). Each calls the
// injected profiler's function of the same name. There is no state on this side, so there are no locks. If a signal
// handler interrupts the injected profiler and records here, that profiler's own re-entry guard detects it.
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

  bool RecordAlloc(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) const {
    return Record(injected_.record_alloc, caller, id, bytes, attributes);
  }
  bool RecordSegment(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) const {
    return Record(injected_.record_segment, caller, address, bytes, attributes);
  }
  bool RecordBlock(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) const {
    return Record(injected_.record_block, caller, address, bytes, attributes);
  }
  FreedRecord RecordFree(BufferId id) const { return injected_.record_free(id); }
  FreedRecord RecordBlockFree(BufferId address) const { return injected_.record_block_free(address); }
  FreedRecord PrepareRecord(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) const {
    return injected_.prepare_record(caller, id, bytes, attributes);
  }
  void RestoreRecord(const FreedRecord& record) const { injected_.restore_record(record); }
  std::optional<LiveBuffer> FindBuffer(BufferId id) const;
  std::optional<FoundBuffer> FindBufferAt(BufferId address) const;

  DeviceId Device(std::string_view name) const { return DeviceId(NumberOf(injected_.device, name)); }
  AllocatorId Allocator(std::string_view name) const { return AllocatorId(NumberOf(injected_.allocator, name)); }
  void SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) const;
  void RemoveDeviceProbe(DeviceId device, const void* owner) const {
    injected_.remove_device_probe(static_cast<uint32_t>(device), owner);
  }
  void SetCounter(std::string_view name, int64_t value) const;

  DeviceStats Stats(DeviceId device, MemorySpace space) const;
  TrackerStats GetTrackerStats() const;
  Snapshot TakeSnapshot() const;
  // Returns the snapshot for all profiles that are written at exit. The first call takes it.
  Snapshot TakeExitSnapshot() const;
  void ResetPeak(DeviceId device) const { injected_.reset_peak(static_cast<uint32_t>(device)); }
  void DropDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<BufferId>& kept) const;

  // RecordFailure of src/api/recording/recorder.h, and the functions of recording.h.
  void RecordFailure(const Caller& caller, DeviceId device, MemorySpace space, int64_t bytes) const {
    injected_.record_failure(&caller, static_cast<uint32_t>(device), static_cast<uint32_t>(space), bytes);
  }
  absl::Status StartRecording(std::string_view path, const RecordingOptions& options) const;
  absl::Status StopRecording() const;
  absl::Status SaveFlightRecording(std::string_view path) const;
  void BeginMark(std::string_view name) const { injected_.begin_mark(name.data(), name.size()); }
  void EndMark() const { injected_.end_mark(); }

 private:
  static bool Record(InjectedProfiler::Record* record, const Caller& caller, BufferId id, size_t bytes,
                     const Attributes& attributes) {
    return record(&caller, id.value(), bytes, static_cast<uint32_t>(attributes.device),
                  static_cast<uint32_t>(attributes.kind), static_cast<uint32_t>(attributes.allocator)) != 0;
  }
  static uint32_t NumberOf(int (*number_of)(const char*, size_t, uint32_t*), std::string_view name);
  template <typename T>
  T Read(InjectedPart part, DeviceId device = kDefaultDevice, MemorySpace space = MemorySpace::kDevice) const;

  const InjectedProfiler& injected_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_JOINED_JOINED_H_
