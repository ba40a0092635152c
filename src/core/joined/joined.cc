#include "src/core/joined/joined.h"

#include <new>
#include <optional>
#include <string>
#include <utility>

#include "src/base/completes.h"
#include "src/core/joined/snapshot_bytes.h"

namespace hbmprof::internal {
namespace {

using Probe = std::function<DeviceProbe()>;

// The injected library calls this function, so no exception may leave it. (The exception that cancels a thread may
// leave it.)
int QueryProbe(void* argument, InjectedProfiler::Receive* receive, void* receiver) {
  return Completes([&] {
    const auto& call = *static_cast<const Probe*>(argument);
    const std::string bytes = ToBytes(call ? call() : DeviceProbe());
    receive(receiver, bytes.data(), bytes.size());
  });
}

void EndProbe(void* argument) { delete static_cast<Probe*>(argument); }

void ReceiveText(void* argument, const char* bytes, size_t size) noexcept {
  auto& text = *static_cast<std::string*>(argument);
  if (!Completes([&] { text.assign(bytes, size); })) text.clear();
}

// Calls a function of the table that returns the code of a status and passes the message of an error to a Receive.
template <typename Function, typename... Arguments>
absl::Status StatusOf(Function* call, Arguments... arguments) {
  std::string message;
  const int code = call(arguments..., &ReceiveText, &message);
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

}  // namespace

std::optional<LiveBuffer> Joined::FindBuffer(BufferId id) const {
  LiveBuffer buffer;
  return injected_.find_buffer(id, &buffer) ? std::optional<LiveBuffer>(buffer) : std::nullopt;
}

std::optional<FoundBuffer> Joined::FindBufferAt(BufferId address) const {
  Answer<FoundBuffer> answer;
  const int found = injected_.find_buffer_at(address, &Answer<FoundBuffer>::Receive, &answer);
  if (found == 0) return std::nullopt;
  if (found < 0 || !answer.complete) throw std::bad_alloc();
  return std::move(answer.value);
}

absl::Status Joined::StartRecording(std::string_view path, const RecordingOptions& options) const {
  const InjectedRecording recording = {options.max_bytes, options.buffer_bytes, options.sample_interval.count()};
  return StatusOf(injected_.start_recording, path.data(), path.size(), &recording);
}

absl::Status Joined::StopRecording() const { return StatusOf(injected_.stop_recording); }

absl::Status Joined::SaveFlightRecording(std::string_view path) const {
  return StatusOf(injected_.save_flight_recording, path.data(), path.size());
}

uint32_t Joined::NumberOf(int (*number_of)(const char*, size_t, uint32_t*), std::string_view name) {
  uint32_t number = 0;
  if (number_of(name.data(), name.size(), &number) == 0) throw std::bad_alloc();
  return number;
}

void Joined::SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) const {
  auto* const own = new Probe(std::move(probe));
  if (injected_.set_device_probe(device, &QueryProbe, own, &EndProbe, owner) == 0) throw std::bad_alloc();
}

void Joined::SetCounter(std::string_view name, int64_t value) const {
  if (injected_.set_counter(name.data(), name.size(), value) == 0) throw std::bad_alloc();
}

template <typename T>
T Joined::Read(InjectedPart part, DeviceId device, MemorySpace space) const {
  Answer<T> answer;
  const int is_read = injected_.read(part, device, space, &Answer<T>::Receive, &answer);
  if (is_read == 0 || !answer.complete) throw std::bad_alloc();
  return std::move(answer.value);
}

DeviceStats Joined::Stats(DeviceId device, MemorySpace space) const {
  return Read<DeviceStats>(kInjectedDeviceStats, device, space);
}
TrackerStats Joined::GetTrackerStats() const { return Read<TrackerStats>(kInjectedTrackerStats); }
Snapshot Joined::TakeSnapshot() const { return Read<Snapshot>(kInjectedSnapshot); }
Snapshot Joined::TakeExitSnapshot() const { return Read<Snapshot>(kInjectedExitSnapshot); }

void Joined::DropDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<BufferId>& kept) const {
  const int32_t allocator = survivor.has_value() ? static_cast<int32_t>(*survivor) : -1;
  if (injected_.drop_device(device, allocator, kept.data(), kept.size()) == 0) throw std::bad_alloc();
}

}  // namespace hbmprof::internal
