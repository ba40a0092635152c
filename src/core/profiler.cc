// Profiler: forwards to ProfilerImpl, or to the injected library's profiler (joined.h).

#include "hbmprof/profiler.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "src/core/joined/joined.h"
#include "src/core/profiler_impl.h"

namespace hbmprof {
namespace {

using internal::Joined;
using internal::ProfilerImpl;

}  // namespace

Profiler::Profiler(const Options& options)
    : enabled_(options.enabled), impl_(std::make_unique<ProfilerImpl>(options, enabled_)) {}

Profiler::Profiler(const internal::InjectedProfiler& joined, bool enabled) : enabled_(enabled), joined_(&joined) {}

void Profiler::SetEnabled(bool enabled) {
  const bool can_record = impl_ != nullptr ? !impl_->has_given_up() : joined_ != nullptr;
  enabled_.store(enabled && can_record, std::memory_order_relaxed);
}

Profiler& Profiler::Off() {
  // All bytes are zero: it is not enabled and has no implementation. It needs no constructor and no destructor.
  alignas(Profiler) static char memory[sizeof(Profiler)];
  return *reinterpret_cast<Profiler*>(memory);
}

Profiler::~Profiler() = default;

// A profiler without `impl_` has joined another one, or is Off().

DeviceId Profiler::Device(std::string_view name) {
  if (joined_ != nullptr) return Joined(*joined_).Device(name);
  return impl_ == nullptr ? kDefaultDevice : DeviceId(impl_->names.devices.NumberOf(name));
}
AllocatorId Profiler::Allocator(std::string_view name) {
  if (joined_ != nullptr) return Joined(*joined_).Allocator(name);
  return impl_ == nullptr ? AllocatorId() : AllocatorId(impl_->names.allocators.NumberOf(name));
}

void Profiler::SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) {
  if (joined_ != nullptr) return Joined(*joined_).SetDeviceProbe(device, std::move(probe), owner);
  if (impl_ != nullptr) impl_->probes.Set(device, std::move(probe), owner);
}
void Profiler::RemoveDeviceProbe(DeviceId device, const void* owner) {
  if (joined_ != nullptr) return Joined(*joined_).RemoveDeviceProbe(device, owner);
  if (impl_ != nullptr) impl_->probes.Remove(device, owner);
}

[[gnu::noinline, gnu::cold]] static bool AllocJoined(const internal::InjectedProfiler& joined, Caller caller,
                                                     BufferId id, size_t bytes, uint64_t attributes) {
  return Joined(joined).RecordAlloc(caller, id, bytes, internal::UnpackAttributes(attributes));
}
[[gnu::noinline, gnu::cold]] static FreedRecord FreeJoined(const internal::InjectedProfiler& joined, BufferId id) {
  return Joined(joined).RecordFree(id);
}

// The functions without a Caller must not be inlined: a stack begins at the function that called them. A profiler that
// is enabled and has no `impl_` has joined. gnu::flatten inlines all functions that a common event calls: with a deep
// stack, the processor mispredicts the return of each call that is not inlined.
[[gnu::noinline, gnu::flatten]] bool Profiler::Alloc(BufferId id, size_t bytes, uint64_t attributes) {
  const Caller caller = Caller::OfThisFunction();
  if (impl_ == nullptr) return AllocJoined(*joined_, caller, id, bytes, attributes);
  return impl_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::flatten]] bool Profiler::AllocFrom(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) {
  if (impl_ == nullptr) return AllocJoined(*joined_, caller, id, bytes, attributes);
  return impl_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::noinline]] bool Profiler::RecordSegment(BufferId address, size_t bytes, const Attributes& attributes) {
  return RecordSegmentFrom(Caller::OfThisFunction(), address, bytes, attributes);
}
bool Profiler::RecordSegmentFrom(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) {
  if (!enabled()) return false;
  if (impl_ == nullptr) return Joined(*joined_).RecordSegment(caller, address, bytes, attributes);
  return impl_->RecordSegment(caller, address, bytes, attributes);
}
[[gnu::noinline, gnu::flatten]] bool Profiler::RecordBlock(BufferId address, size_t bytes,
                                                           const Attributes& attributes) {
  if (!enabled()) return false;
  const Caller caller = Caller::OfThisFunction();
  if (impl_ == nullptr) return Joined(*joined_).RecordBlock(caller, address, bytes, attributes);
  return impl_->RecordBlock(caller, address, bytes, attributes);
}
[[gnu::flatten]] bool Profiler::RecordBlockFrom(const Caller& caller, BufferId address, size_t bytes,
                                                const Attributes& attributes) {
  if (!enabled()) return false;
  if (impl_ == nullptr) return Joined(*joined_).RecordBlock(caller, address, bytes, attributes);
  return impl_->RecordBlock(caller, address, bytes, attributes);
}

[[gnu::flatten]] FreedRecord Profiler::Free(BufferId id) {
  return impl_ == nullptr ? FreeJoined(*joined_, id) : impl_->RecordFree(id);
}
[[gnu::flatten]] FreedRecord Profiler::RecordBlockFree(BufferId address) {
  if (!enabled()) return {};
  return impl_ == nullptr ? Joined(*joined_).RecordBlockFree(address) : impl_->RecordBlockFree(address);
}
bool Profiler::RecordResize(BufferId id, size_t bytes) {
  if (!enabled()) return false;
  return impl_ == nullptr ? Joined(*joined_).RecordResize(id, bytes) : impl_->RecordResize(id, bytes);
}
bool Profiler::RecordBlockResize(BufferId address, size_t bytes) {
  if (!enabled()) return false;
  return impl_ == nullptr ? Joined(*joined_).RecordBlockResize(address, bytes)
                          : impl_->RecordBlockResize(address, bytes);
}
bool Profiler::SplitSegment(BufferId address, size_t bytes) {
  if (!enabled()) return false;
  return impl_ == nullptr ? Joined(*joined_).SplitSegment(address, bytes) : impl_->SplitSegment(address, bytes);
}
bool Profiler::MergeSegments(BufferId first, BufferId second) {
  if (!enabled()) return false;
  return impl_ == nullptr ? Joined(*joined_).MergeSegments(first, second) : impl_->MergeSegments(first, second);
}
FreedRecord Profiler::PrepareRecordFrom(const Caller& caller, BufferId id, size_t bytes, const Attributes& attributes) {
  if (!enabled()) return {};
  return impl_ == nullptr ? Joined(*joined_).PrepareRecord(caller, id, bytes, attributes)
                          : impl_->PrepareRecord(caller, id, bytes, attributes);
}
void Profiler::RestoreRecord(const FreedRecord& record) {
  if (joined_ != nullptr) return Joined(*joined_).RestoreRecord(record);
  if (impl_ != nullptr) impl_->RestoreRecord(record);
}
void Profiler::SetCounter(std::string_view name, int64_t value) {
  if (joined_ != nullptr) return Joined(*joined_).SetCounter(name, value);
  if (impl_ != nullptr) impl_->names.counters.Set(name, value);
}
std::optional<LiveBuffer> Profiler::FindBuffer(BufferId id) const {
  if (joined_ != nullptr) return Joined(*joined_).FindBuffer(id);
  return impl_ == nullptr ? std::nullopt : impl_->FindBuffer(id);
}
std::optional<FoundBuffer> Profiler::FindBufferAt(BufferId address) const {
  if (joined_ != nullptr) return Joined(*joined_).FindBufferAt(address);
  return impl_ == nullptr ? std::nullopt : impl_->FindBufferAt(address);
}
DeviceStats Profiler::Stats(DeviceId device, MemorySpace space) const {
  if (joined_ != nullptr) return Joined(*joined_).Stats(device, space);
  return impl_ == nullptr ? DeviceStats() : impl_->Stats(device, space);
}
TrackerStats Profiler::GetTrackerStats() const {
  if (joined_ != nullptr) return Joined(*joined_).GetTrackerStats();
  return impl_ == nullptr ? TrackerStats() : impl_->GetTrackerStats();
}
Snapshot Profiler::TakeSnapshot() const {
  if (joined_ != nullptr) return Joined(*joined_).TakeSnapshot();
  return impl_ == nullptr ? Snapshot() : impl_->TakeSnapshot();
}
void Profiler::ResetPeak(DeviceId device) {
  if (joined_ != nullptr) return Joined(*joined_).ResetPeak(device);
  if (impl_ != nullptr) impl_->ResetPeak(device);
}
void Profiler::RecordDropped(size_t bytes) {
  if (!enabled()) return;
  if (impl_ == nullptr) return Joined(*joined_).Drop(bytes);
  impl_->Drop(bytes);
}
void Profiler::DropDevice(DeviceId device, std::optional<AllocatorId> survivor, std::vector<BufferId> kept) {
  if (joined_ != nullptr) return Joined(*joined_).DropDevice(device, survivor, kept);
  if (impl_ != nullptr) impl_->DropDevice(device, survivor, std::move(kept));
}

}  // namespace hbmprof
