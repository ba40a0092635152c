// Profiler: passes calls to ProfilerImpl, or to the injected library's profiler (injected.h).

#include "hbmprof/profiler.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/attributes.h"
#include "src/core/joined/injected.h"
#include "src/core/profiler_impl.h"

namespace hbmprof {

Profiler::Profiler(const Options& options)
    : enabled_(options.enabled && !internal::IsOff()),
      impl_(internal::IsOff() ? nullptr : std::make_unique<internal::ProfilerImpl>(options, enabled_)) {}

Profiler::Profiler(const internal::InjectedProfiler& joined, bool enabled) : enabled_(enabled), joined_(&joined) {}

void Profiler::SetEnabled(bool enabled) {
  const bool can_record = (impl_ != nullptr || joined_ != nullptr) && !internal::IsOff();
  const bool on = enabled && can_record;
  if (impl_ != nullptr && on != this->enabled()) impl_->Switches(on);
  enabled_.store(on, std::memory_order_relaxed);
}

constexpr Profiler::Profiler(IsOff) noexcept : enabled_(false) {}

// Constant-initialized, and of a type with a destructor that does nothing.
union internal::ProfilerAccess::OffProfiler {
  constexpr OffProfiler() : profiler(Profiler::IsOff{}) {}
  ~OffProfiler() {}
  Profiler profiler;
};

namespace {

ABSL_CONST_INIT internal::ProfilerAccess::OffProfiler off;

}  // namespace

Profiler& Profiler::Off() { return off.profiler; }

Profiler::~Profiler() {
  // The tables of a process that is off stay: another thread of the parent may have been changing them.
  if (internal::IsOff()) static_cast<void>(impl_.release());
}

// A profiler without `impl_` has joined another one, or is Off(). One that is enabled and has no `impl_` has joined.

DeviceId Profiler::Device(std::string_view name) {
  if (joined_ != nullptr) return joined_->Device(name);
  return impl_ == nullptr ? kDefaultDevice : DeviceId(impl_->names.devices.NumberOf(name));
}
AllocatorId Profiler::Allocator(std::string_view name) {
  if (joined_ != nullptr) return joined_->Allocator(name);
  return impl_ == nullptr ? AllocatorId() : AllocatorId(impl_->names.allocators.NumberOf(name));
}
void Profiler::SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) {
  if (impl_ != nullptr && !internal::IsOff()) impl_->probes.Set(device, std::move(probe), owner);
}
void Profiler::RemoveDeviceProbe(DeviceId device, const void* owner) {
  if (impl_ != nullptr && !internal::IsOff()) impl_->probes.Remove(device, owner);
}
void Profiler::SetCounter(std::string_view name, int64_t value) {
  if (joined_ != nullptr) return joined_->SetCounter(name, value);
  if (impl_ != nullptr) impl_->names.counters.Set(name, value);
}

// The functions without a Caller must not be inlined: a stack begins at the function that called them. gnu::flatten
// inlines all functions that a common event calls: with a deep stack, the processor mispredicts the return of each call
// that is not inlined.
[[gnu::noinline, gnu::flatten]] bool Profiler::Alloc(BufferId id, size_t bytes, uint64_t attributes) {
  const Caller caller = Caller::OfThisFunction();
  return impl_ != nullptr ? impl_->RecordAlloc(caller, id, bytes, attributes)
                          : joined_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::flatten]] bool Profiler::AllocFrom(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) {
  return impl_ != nullptr ? impl_->RecordAlloc(caller, id, bytes, attributes)
                          : joined_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::flatten]] std::optional<int64_t> Profiler::Free(BufferId id) {
  return impl_ != nullptr ? impl_->RecordFree(id) : joined_->RecordFree(id);
}
[[gnu::noinline, gnu::flatten]] bool Profiler::RecordBlock(const Pool& pool, BufferId address, size_t bytes) {
  return RecordBlockFrom(Caller::OfThisFunction(), pool, address, bytes);
}
[[gnu::noinline]] bool Profiler::RecordSegment(const Pool& pool, BufferId address, size_t bytes) {
  return RecordSegmentFrom(Caller::OfThisFunction(), pool, address, bytes);
}

// Calls the function of ProfilerImpl, or that of InjectedProfiler with the same name, if the profiler is enabled.
#define HBMPROF_EVENT(Function, arguments, otherwise) \
  if (!enabled()) return otherwise;                   \
  return impl_ != nullptr ? impl_->Function arguments : joined_->Function arguments

// The same for functions that record no event: also if it is not enabled, but not in a process that is off. (An event
// finds out itself whether the process is off.)
#define HBMPROF_QUERY(Function, arguments, otherwise)         \
  if (internal::IsOff()) return otherwise;                    \
  if (impl_ != nullptr) return impl_->Function arguments;     \
  if (joined_ != nullptr) return joined_->Function arguments; \
  return otherwise

[[gnu::flatten]] bool Profiler::RecordBlockFrom(const Caller& caller, const Pool& pool, BufferId address,
                                                size_t bytes) {
  HBMPROF_EVENT(RecordBlock, (caller, pool, address, bytes), false);
}
[[gnu::flatten]] std::optional<int64_t> Profiler::RecordBlockFree(const Pool& pool, BufferId address) {
  HBMPROF_EVENT(RecordBlockFree, (pool, address), {});
}
bool Profiler::RecordSegmentFrom(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) {
  HBMPROF_EVENT(RecordSegment, (caller, pool, address, bytes), false);
}
std::optional<int64_t> Profiler::RecordSegmentFree(const Pool& pool, BufferId address) {
  HBMPROF_EVENT(RecordSegmentFree, (pool, address), {});
}
bool Profiler::RecordResize(BufferId id, size_t bytes) { HBMPROF_EVENT(RecordResize, (id, bytes), false); }
bool Profiler::RecordBlockResize(const Pool& pool, BufferId address, size_t bytes) {
  HBMPROF_EVENT(RecordBlockResize, (pool, address, bytes), false);
}
void Profiler::RecordDropped(size_t bytes) { HBMPROF_EVENT(RecordDropped, (bytes), void()); }
void Profiler::RecordRefusedFree() { HBMPROF_EVENT(RecordRefusedFree, (), void()); }
uint32_t Profiler::KeepSite(const Caller& caller, size_t bytes, const Attributes& attributes) {
  return enabled() && impl_ != nullptr ? impl_->KeepSite(caller, bytes, attributes) : 0;
}
bool Profiler::RecordAllocAt(uint32_t site, BufferId id, size_t bytes) {
  return enabled() && impl_ != nullptr && impl_->RecordAllocAt(site, id, bytes);
}

std::optional<LiveBuffer> Profiler::FindBuffer(BufferId id) const {
  return internal::IsOff() || impl_ == nullptr ? std::nullopt : impl_->FindBuffer(id);
}
std::optional<FoundBuffer> Profiler::FindBufferAt(BufferId address) const {
  return internal::IsOff() || impl_ == nullptr ? std::nullopt : impl_->FindBufferAt(address);
}
DeviceStats Profiler::Stats(DeviceId device, MemorySpace space) const {
  HBMPROF_QUERY(Stats, (device, space), DeviceStats());
}
TrackerStats Profiler::GetTrackerStats() const { HBMPROF_QUERY(GetTrackerStats, (), TrackerStats()); }

// That of a profiler that cannot record.
static Snapshot EmptySnapshot() {
  Snapshot snapshot;
  if (internal::IsOff()) snapshot.warnings.emplace_back(internal::kOffText);
  return snapshot;
}

Snapshot Profiler::TakeSnapshot() const { HBMPROF_QUERY(TakeSnapshot, (), EmptySnapshot()); }
void Profiler::ResetPeak(DeviceId device) { HBMPROF_QUERY(ResetPeak, (device), void()); }
void Profiler::DropDevice(DeviceId device, std::optional<AllocatorId> survivor, std::vector<BufferId> kept) {
  HBMPROF_QUERY(DropDevice, (device, survivor, kept), void());
}

}  // namespace hbmprof
