// Profiler, and the functions of ProfilerImpl that record an event: it goes from here to the site finder and to Pools.
// All other functions of ProfilerImpl are in profiler_impl.cc, and snapshots in snapshot_builder.cc. A profiler that
// uses the injected library passes its calls on (injected.h).
#include "hbmprof/profiler.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/attributes.h"
#include "src/base/fork.h"
#include "src/base/saturating.h"
#include "src/base/thread_state.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/tables/tags.h"

namespace hbmprof {

Profiler::Profiler(const Options& options)
    : enabled_(options.enabled && !internal::IsOff()),
      impl_(internal::IsOff() ? nullptr : std::make_unique<internal::ProfilerImpl>(options, enabled_)) {}

Profiler::Profiler(const internal::InjectedProfiler& injected, bool enabled)
    : enabled_(enabled), injected_(&injected) {}

void Profiler::SetEnabled(bool enabled) {
  const bool can_record = (impl_ != nullptr || injected_ != nullptr) && !internal::IsOff();
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

// A profiler without `impl_` uses the injected library, or is Off(), which is never enabled.

DeviceId Profiler::Device(std::string_view name) {
  if (injected_ != nullptr) return injected_->Device(name);
  return impl_ == nullptr ? kDefaultDevice : DeviceId(impl_->names.devices.NumberOf(name));
}
AllocatorId Profiler::Allocator(std::string_view name) {
  if (injected_ != nullptr) return injected_->Allocator(name);
  return impl_ == nullptr ? AllocatorId() : AllocatorId(impl_->names.allocators.NumberOf(name));
}
void Profiler::SetDeviceProbe(DeviceId device, std::function<DeviceProbe()> probe, const void* owner) {
  if (impl_ != nullptr && !internal::IsOff()) impl_->probes.Set(device, std::move(probe), owner);
}
void Profiler::RemoveDeviceProbe(DeviceId device, const void* owner) {
  if (impl_ != nullptr && !internal::IsOff()) impl_->probes.Remove(device, owner);
}
void Profiler::SetCounter(std::string_view name, int64_t value) {
  if (injected_ != nullptr) return injected_->SetCounter(name, value);
  if (impl_ != nullptr) impl_->names.counters.Set(name, value);
}

namespace internal {

// --- Events: buffers ---

inline bool ProfilerImpl::Enter(uint64_t id, SiteId site, int64_t bytes, bool* is_live) {
  const bool is_added = pools_.Add(id, site, bytes, is_live);
  live_.Grow(ledger_.live_records());
  if (__builtin_expect(static_cast<int64_t>(is_added), 1) != 0) return true;
  return (is_live == nullptr || !*is_live) && Drop(static_cast<size_t>(bytes));
}

inline bool ProfilerImpl::Record(const Caller& caller, uint64_t id, size_t bytes, SiteLabels labels,
                                 bool* is_live) noexcept {
  if (thread_state.is_common() && HasRecordedHere()) {
    const TrackerSection section;
    const SiteId site = ledger_.HasCapacity(bytes, max_live_) ? finder_.CachedSiteOf(caller, labels) : kNoSite;
    if (site != kNoSite) return Enter(id, site, static_cast<int64_t>(bytes), is_live);
  }
  return RecordSlow(caller, id, bytes, labels, is_live);
}

inline bool ProfilerImpl::RecordAlloc(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) noexcept {
  if (NeedClamp(attributes)) {
    attributes = ClampSlow(attributes);
    if (UnpackAttributes(attributes).kind == MemoryKind::kAlias) bytes = 0;
  }
  if (!Pools::IsBufferId(id)) return !id.is_null() && Drop(bytes);
  return Record(caller, id.value(), bytes, {attributes, current_tags, 0});
}

[[gnu::flatten]] bool ProfilerImpl::RecordBlock(const Caller& caller, const Pool& pool, BufferId address, size_t bytes,
                                                const Pool* around, bool* is_live) noexcept {
  const Pool named = Clamp(pool);
  PoolNumber from = sites_.pools().Find(named);
  if (from == 0) from = MakePoolNumber(named);
  const uint64_t id = IdOfBlock(from, address);
  if (id == 0) return !address.is_null() && Drop(bytes);
  if (!ledger_.HasSegments(from)) from = around != nullptr ? sites_.pools().Find(Clamp(*around)) : PoolNumber{0};
  const Attributes attributes = {named.device, MemoryKind::kDevice, named.allocator};
  return Record(caller, id, bytes, {attributes, current_tags, from}, is_live);
}

bool ProfilerImpl::RecordSlow(Caller caller, uint64_t id, size_t bytes, SiteLabels labels, bool* is_live) noexcept {
  const GuardedEvent event(*this);
  if (!event.is_recorded()) return false;
  const bool replaces = is_live == nullptr;
  if (!ledger_.HasCapacity(bytes, max_live_) &&
      !(replaces && pools_.RemoveReplaced(id) && ledger_.HasCapacity(bytes, max_live_)))
    return Drop(bytes);
  const SiteId site = finder_.SiteOf(caller, labels);
  TraceStep(EventStep::kSiteFound);
  if (site != kNoSite) return Enter(id, site, static_cast<int64_t>(bytes), is_live);
  if (replaces) pools_.RemoveReplaced(id);
  return Drop(bytes);
}

inline std::optional<int64_t> ProfilerImpl::End(uint64_t id) noexcept {
  const auto end = [&]() -> std::optional<int64_t> {
    const std::optional<LiveRecord> removed = id != 0 ? pools_.Remove(id) : std::nullopt;
    if (!removed.has_value()) {
      foreign_frees_.fetch_add(1, std::memory_order_relaxed);
      return {};
    }
    return removed->bytes;
  };
  if (!thread_state.inside && HasRecordedHere()) {
    const TrackerSection section;
    return end();
  }
  const GuardedEvent event(*this);
  return event.is_recorded() ? end() : std::nullopt;
}

inline std::optional<int64_t> ProfilerImpl::RecordFree(BufferId id) noexcept {
  return id.is_null() ? std::nullopt : End(Pools::IsBufferId(id) ? id.value() : 0);
}

void ProfilerImpl::RecordDropped(uint64_t bytes) {
  dropped_records_.fetch_add(1, std::memory_order_relaxed);
  const auto more = static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX));
  int64_t total = dropped_bytes_.load(std::memory_order_relaxed);
  while (!dropped_bytes_.compare_exchange_weak(total, SaturatingSum(total, more), std::memory_order_relaxed)) {
  }
}

uint32_t ProfilerImpl::KeepSite(const Caller& caller, size_t bytes, const Attributes& attributes) {
  const GuardedEvent event(*this);
  if (!event.is_recorded()) return 0;
  if (attributes.kind == MemoryKind::kAlias) bytes = 0;
  const SiteId site = ledger_.HasCapacity(bytes, max_live_) ? SiteOf(caller, Clamp(attributes), 0) : kNoSite;
  if (site == kNoSite) Drop(bytes);
  return site + 1;
}

bool ProfilerImpl::RecordAllocAt(uint32_t site, BufferId id, size_t bytes) {
  const GuardedEvent event(*this);
  if (!event.is_recorded() || id.is_null() || site == 0) return false;
  if (!Pools::IsBufferId(id) || site > sites_.size() || !ledger_.HasCapacity(bytes, max_live_)) return Drop(bytes);
  return Enter(id.value(), site - 1, static_cast<int64_t>(bytes));
}

// --- Segments and blocks ---

bool ProfilerImpl::RecordSegment(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) {
  const Pool named = Clamp(pool);
  {
    const GuardedEvent event(*this);
    if (!event.is_recorded() || address.is_null()) return false;
    if (!Pools::IsBufferId(address) || sites_.pools().FindOrMake(named) == 0) return Drop(bytes);
    // If recording was off meanwhile, a known segment is an earlier one, whose end and whose blocks' ends were not
    // seen.
    LiveRecord known;
    if (live_.Find(address.value(), &known) && known.birth < resumed_.load(std::memory_order_relaxed)) {
      pools_.EndSegment(address.value(), named);
    }
    std::optional<bool> made = pools_.MakeSegment(address.value(), named, static_cast<int64_t>(bytes));
    // The first block of a segment has the address of the segment.
    if (!made.value_or(false) && Pools::IsBlockAddress(address.value())) {
      const std::optional<bool> nested = pools_.MakeSegmentOfBlock(address.value(), named);
      if (nested.has_value()) made = nested;
    }
    if (made.has_value()) return *made;
  }
  const Attributes attributes = {named.device, MemoryKind::kPool, named.allocator};
  return RecordSlow(caller, address.value(), bytes, {attributes, current_tags, 0});
}

bool ProfilerImpl::MakeSegment(BufferId id, const Pool& pool) {
  const GuardedEvent event(*this);
  return event.is_recorded() && Pools::IsBufferId(id) && pools_.MakeSegment(id.value(), Clamp(pool)).value_or(false);
}

std::optional<int64_t> ProfilerImpl::RecordSegmentFree(const Pool& pool, BufferId address) {
  const GuardedEvent event(*this);
  if (!event.is_recorded() || address.is_null()) return {};
  std::optional<int64_t> bytes;
  if (Pools::IsBufferId(address)) bytes = pools_.EndSegment(address.value(), Clamp(pool));
  if (!bytes.has_value()) foreign_frees_.fetch_add(1, std::memory_order_relaxed);
  return bytes;
}

PoolNumber ProfilerImpl::MakePoolNumber(const Pool& pool) {
  const GuardedEvent event(*this);
  return event.is_recorded() ? sites_.pools().FindOrMake(pool) : PoolNumber{0};
}

inline std::optional<int64_t> ProfilerImpl::RecordBlockFree(const Pool& pool, BufferId address) noexcept {
  return address.is_null() ? std::nullopt : End(IdOfBlock(sites_.pools().Find(Clamp(pool)), address));
}

bool ProfilerImpl::RecordResize(BufferId id, size_t bytes) {
  const GuardedEvent event(*this);
  return event.is_recorded() && Pools::IsBufferId(id) && bytes <= LiveTable::kMaxBytes &&
         pools_.Resize(id.value(), static_cast<int64_t>(bytes));
}

bool ProfilerImpl::RecordBlockResize(const Pool& pool, BufferId address, size_t bytes) {
  const GuardedEvent event(*this);
  const uint64_t id = IdOfBlock(sites_.pools().Find(Clamp(pool)), address);
  return event.is_recorded() && id != 0 && bytes <= LiveTable::kMaxBytes &&
         pools_.Resize(id, static_cast<int64_t>(bytes));
}

void ProfilerImpl::EndBlocks(const Pool& pool, uint64_t start, uint64_t bytes) {
  const GuardedEvent event(*this);
  const PoolNumber number = sites_.pools().Find(Clamp(pool));
  if (!event.is_recorded() || number == 0) return;
  pools_.EndBlocks(number, start, start + std::min(bytes, UINT64_MAX - start));
}

}  // namespace internal

// --- Events: what the program calls ---

// The functions without a Caller must not be inlined: a stack begins at the function that called them. gnu::flatten
// inlines all functions that a common event calls: with a deep stack, the processor mispredicts the return of each call
// that is not inlined.
[[gnu::noinline, gnu::flatten]] bool Profiler::Alloc(BufferId id, size_t bytes, uint64_t attributes) {
  const Caller caller = Caller::OfThisFunction();
  return impl_ != nullptr ? impl_->RecordAlloc(caller, id, bytes, attributes)
                          : injected_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::flatten]] bool Profiler::AllocFrom(const Caller& caller, BufferId id, size_t bytes, uint64_t attributes) {
  return impl_ != nullptr ? impl_->RecordAlloc(caller, id, bytes, attributes)
                          : injected_->RecordAlloc(caller, id, bytes, attributes);
}
[[gnu::flatten]] std::optional<int64_t> Profiler::Free(BufferId id) {
  return impl_ != nullptr ? impl_->RecordFree(id) : injected_->RecordFree(id);
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
  return impl_ != nullptr ? impl_->Function arguments : injected_->Function arguments

// The same for functions that record no event: also if it is not enabled, but not in a process that is off. (An event
// finds out itself whether the process is off.)
#define HBMPROF_QUERY(Function, arguments, otherwise)             \
  if (internal::IsOff()) return otherwise;                        \
  if (impl_ != nullptr) return impl_->Function arguments;         \
  if (injected_ != nullptr) return injected_->Function arguments; \
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

void Profiler::ResetPeak(DeviceId device) { HBMPROF_QUERY(ResetPeak, (device), void()); }
void Profiler::DropDevice(DeviceId device, std::optional<AllocatorId> survivor, std::vector<BufferId> kept) {
  HBMPROF_QUERY(EndDevice, (device, survivor, kept), void());
}

}  // namespace hbmprof
