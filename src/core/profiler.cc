// Profiler: forwards to ProfilerImpl, or to the injected library's profiler (joined.h).

#include "hbmprof/profiler.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/attributes.h"
#include "src/core/joined/joined.h"
#include "src/core/profiler_impl.h"

namespace hbmprof {

using internal::GuardCheck;
using internal::Joined;

Profiler::Profiler(const Options& options)
    : enabled_(options.enabled && !internal::IsOff()),
      impl_(internal::IsOff() ? nullptr : std::make_unique<internal::ProfilerImpl>(options, enabled_)) {}

Profiler::Profiler(const internal::InjectedProfiler& joined, bool enabled) : enabled_(enabled), joined_(&joined) {}

void Profiler::SetEnabled(bool enabled) {
  const bool can_record = (impl_ != nullptr || joined_ != nullptr) && !internal::IsOff();
  enabled_.store(enabled && can_record, std::memory_order_relaxed);
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
  if (joined_ != nullptr) return Joined(*joined_).Device(name);
  return impl_ == nullptr ? kDefaultDevice : DeviceId(impl_->names.devices.NumberOf(name));
}
AllocatorId Profiler::Allocator(std::string_view name) {
  if (joined_ != nullptr) return Joined(*joined_).Allocator(name);
  return impl_ == nullptr ? AllocatorId() : AllocatorId(impl_->names.allocators.NumberOf(name));
}
void Profiler::SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) {
  if (joined_ != nullptr) return Joined(*joined_).SetDeviceProbe(device, std::move(probe), owner);
  if (impl_ != nullptr && !internal::IsOff()) impl_->probes.Set(device, std::move(probe), owner);
}
void Profiler::RemoveDeviceProbe(DeviceId device, const void* owner) {
  if (joined_ != nullptr) return joined_->RemoveDeviceProbe(device, owner);
  if (impl_ != nullptr && !internal::IsOff()) impl_->probes.Remove(device, owner);
}
void Profiler::SetCounter(std::string_view name, int64_t value) {
  if (joined_ != nullptr) return Joined(*joined_).SetCounter(name, value);
  if (impl_ != nullptr) impl_->names.counters.Set(name, value);
}

[[gnu::noinline, gnu::cold]] static bool AllocJoined(const internal::InjectedProfiler& joined, Caller caller,
                                                     BufferId id, size_t bytes, uint64_t attributes) {
  return joined.RecordAlloc(caller, id, bytes, internal::UnpackAttributes(attributes));
}
[[gnu::noinline, gnu::cold]] static std::optional<int64_t> FreeJoined(const internal::InjectedProfiler& joined,
                                                                      BufferId id) {
  return Joined(joined).RecordFree(id);
}

// The functions without a Caller must not be inlined: a stack begins at the function that called them. gnu::flatten
// inlines all functions that a common event calls: with a deep stack, the processor mispredicts the return of each call
// that is not inlined.
[[gnu::noinline, gnu::flatten]] bool Profiler::Alloc(BufferId id, size_t bytes, uint64_t attributes) {
  const GuardCheck check;
  const Caller caller = Caller::OfThisFunction();
  if (impl_ == nullptr) return AllocJoined(*joined_, caller, id, bytes, attributes);
  return impl_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::flatten]] bool Profiler::AllocFrom(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) {
  const GuardCheck check;
  if (impl_ == nullptr) return AllocJoined(*joined_, caller, id, bytes, attributes);
  return impl_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::flatten]] std::optional<int64_t> Profiler::Free(BufferId id) {
  const GuardCheck check;
  if (impl_ == nullptr) return FreeJoined(*joined_, id);
  return impl_->RecordFree(id);
}
[[gnu::noinline, gnu::flatten]] bool Profiler::RecordBlock(const Pool& pool, BufferId address, size_t bytes) {
  return RecordBlockFrom(Caller::OfThisFunction(), pool, address, bytes);
}
[[gnu::noinline]] bool Profiler::RecordSegment(const Pool& pool, BufferId address, size_t bytes) {
  return RecordSegmentFrom(Caller::OfThisFunction(), pool, address, bytes);
}

// The functions of ProfilerImpl and of `joined` that have the same name are called, or `otherwise` is the result.
#define HBMPROF_PASS_ON(joined, arguments, Function, otherwise) \
  const GuardCheck check;                                       \
  if (impl_ != nullptr) return impl_->Function arguments;       \
  if (joined_ != nullptr) return (joined).Function arguments;   \
  return otherwise

// The same for functions that record no event. (An event finds out itself whether the process is off.)
#define HBMPROF_QUERY(joined, arguments, Function, otherwise) \
  if (internal::IsOff()) return otherwise;                    \
  HBMPROF_PASS_ON(joined, arguments, Function, otherwise)

[[gnu::flatten]] bool Profiler::RecordBlockFrom(const Caller& caller, const Pool& pool, BufferId address,
                                                size_t bytes) {
  if (!enabled()) return false;
  HBMPROF_PASS_ON(*joined_, (caller, pool, address, bytes), RecordBlock, false);
}
[[gnu::flatten]] std::optional<int64_t> Profiler::RecordBlockFree(const Pool& pool, BufferId address) {
  if (!enabled()) return {};
  HBMPROF_PASS_ON(Joined(*joined_), (pool, address), RecordBlockFree, std::nullopt);
}
bool Profiler::RecordSegmentFrom(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) {
  if (!enabled()) return false;
  HBMPROF_PASS_ON(*joined_, (caller, pool, address, bytes), RecordSegment, false);
}
std::optional<int64_t> Profiler::RecordSegmentFree(const Pool& pool, BufferId address) {
  if (!enabled()) return {};
  HBMPROF_PASS_ON(Joined(*joined_), (pool, address), RecordSegmentFree, std::nullopt);
}
std::optional<LiveBuffer> Profiler::FindBuffer(BufferId id) const {
  HBMPROF_QUERY(Joined(*joined_), (id), FindBuffer, std::nullopt);
}
std::optional<FoundBuffer> Profiler::FindBufferAt(BufferId address) const {
  HBMPROF_QUERY(Joined(*joined_), (address), FindBufferAt, std::nullopt);
}
DeviceStats Profiler::Stats(DeviceId device, MemorySpace space) const {
  HBMPROF_QUERY(Joined(*joined_), (device, space), Stats, DeviceStats());
}
TrackerStats Profiler::GetTrackerStats() const { HBMPROF_QUERY(Joined(*joined_), (), GetTrackerStats, TrackerStats()); }

// That of a profiler that cannot record.
static Snapshot EmptySnapshot() {
  Snapshot snapshot;
  if (internal::IsOff()) snapshot.warnings.emplace_back(internal::kOffText);
  return snapshot;
}

Snapshot Profiler::TakeSnapshot() const { HBMPROF_QUERY(Joined(*joined_), (), TakeSnapshot, EmptySnapshot()); }
void Profiler::ResetPeak(DeviceId device) { HBMPROF_QUERY(*joined_, (device), ResetPeak, void()); }
void Profiler::DropDevice(DeviceId device, std::optional<AllocatorId> survivor, std::vector<BufferId> kept) {
  HBMPROF_QUERY(Joined(*joined_), (device, survivor, kept), DropDevice, void());
}

#define HBMPROF_FORWARD(Result, Name, parameters, arguments)                   \
  Result Profiler::Name parameters {                                           \
    const GuardCheck check;                                                    \
    if (!enabled()) return Result();                                           \
    return impl_ != nullptr ? impl_->Name arguments : joined_->Name arguments; \
  }
HBMPROF_FORWARDED(HBMPROF_FORWARD)

}  // namespace hbmprof
