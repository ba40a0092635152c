#include "src/core/profiler_impl.h"

#include <algorithm>

#include "src/base/fork.h"
#include "src/base/mutex.h"
#include "src/base/pages.h"
#include "src/base/saturating.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/device_driver.h"
#include "src/core/tables/tags.h"

namespace hbmprof::internal {

// All profilers of the process, for forks and for the limit of host memory. The list is changed only under the mutex.
// The handler of a fork reads it without.
class AllProfilers {
 public:
  static void Add(ProfilerImpl* profiler) {
    MutexLock hold(mutex_);
    profiler->next_.store(first_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    first_.store(profiler, std::memory_order_release);
    LimitHostBytes();
  }
  static void Remove(ProfilerImpl* profiler) {
    MutexLock hold(mutex_);
    std::atomic<ProfilerImpl*>* link = &first_;
    while (link->load(std::memory_order_relaxed) != profiler) link = &link->load(std::memory_order_relaxed)->next_;
    link->store(profiler->next_.load(std::memory_order_relaxed), std::memory_order_release);
    LimitHostBytes();
  }
  static void StartInChild(bool is_off) {
    // A child must not call its parent's driver, whose locks may be held.
    device_driver.store(nullptr);
    ForEach([is_off](ProfilerImpl& impl) {
      if (is_off) return impl.enabled_.store(false, std::memory_order_relaxed);
      impl.probes.DropAll();
    });
  }

 private:
  template <typename Visit>
  static void ForEach(const Visit& visit) {
    for (ProfilerImpl* impl = first_.load(std::memory_order_acquire); impl != nullptr;
         impl = impl->next_.load(std::memory_order_acquire)) {
      visit(*impl);
    }
  }
  // They share tables, so the smallest limit holds for all.
  static void LimitHostBytes() {
    int64_t least = INT64_MAX;
    ForEach([&](const ProfilerImpl& impl) { least = std::min(least, impl.max_host_bytes_); });
    SetMaxHostBytes(least);
  }

  static Mutex mutex_;
  static std::atomic<ProfilerImpl*> first_;
};
Mutex AllProfilers::mutex_;
std::atomic<ProfilerImpl*> AllProfilers::first_{nullptr};

namespace {

[[gnu::constructor]] void GuardForks() { HandleForks(&AllProfilers::StartInChild); }

// With a small limit, each event changes the common count of live records, so that the limit is exact. With a larger
// limit, each shard adds up several records first, at most 64.
int FlushEvery(int64_t max_live) { return static_cast<int>(std::clamp<int64_t>(max_live / 65536, 1, 64)); }

}  // namespace

ProfilerImpl::ProfilerImpl(const Options& options, std::atomic<bool>& is_enabled)
    : names(options.tags),
      enabled_(is_enabled),
      max_host_bytes_(std::clamp<int64_t>(options.max_host_bytes, 1, kMaxHostBytesLimit)),
      max_live_(std::clamp<int64_t>(options.max_live_buffers, 1, kMaxLiveBuffersLimit)),
      sites_(options.max_sites),
      ledger_(sites_, FlushEvery(options.max_live_buffers)),
      finder_(options, sites_),
      pools_(sites_, live_, ledger_) {
  LookAtClock();  // the first profiler's begin is the start of all ages
  if (!options.enabled) Switches(false);
  if (options.unwinder != Unwinder::kNone) WatchForPython();
  AllProfilers::Add(this);
}

ProfilerImpl::~ProfilerImpl() { AllProfilers::Remove(this); }

uint64_t ProfilerImpl::ClampSlow(uint64_t packed) {
  Attributes attributes = UnpackAttributes(packed);
  if (static_cast<int>(attributes.device) >= kMaxDevices) attributes.device = DeviceId{kMaxDevices - 1};
  if (static_cast<int>(attributes.allocator) >= kMaxAllocators) attributes.allocator = AllocatorId{kMaxAllocators - 1};
  const bool is_kind = static_cast<int>(attributes.kind) < kMemoryKindCount && attributes.kind != MemoryKind::kPool;
  if (!is_kind) attributes.kind = MemoryKind::kDevice;
  return PackAttributes(attributes);
}

// --- Buffers ---

[[gnu::noinline]] bool ProfilerImpl::RecordSlow(Caller caller, uint64_t id, size_t bytes, SiteLabels labels) noexcept {
  const GuardedEvent event(*this);
  if (!event.is_recorded()) return false;
  if (!HasCapacity(bytes) && !(pools_.RemoveReplaced(id) && HasCapacity(bytes))) return Drop(bytes);
  const SiteId site = finder_.SiteOf(caller, labels);
  TraceStep(EventStep::kSiteFound);
  if (site != kNoSite) return Enter(id, site, static_cast<int64_t>(bytes));
  pools_.RemoveReplaced(id);
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

[[gnu::flatten]] std::optional<int64_t> ProfilerImpl::RecordFree(BufferId id) noexcept {
  return id.is_null() ? std::nullopt : End(IsBuffer(id) ? id.value() : 0);
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
  const SiteId site = HasCapacity(bytes) ? SiteOf(caller, Clamp(attributes), 0) : kNoSite;
  if (site == kNoSite) Drop(bytes);
  return site + 1;
}

bool ProfilerImpl::RecordAllocAt(uint32_t site, BufferId id, size_t bytes) {
  const GuardedEvent event(*this);
  if (!event.is_recorded() || id.is_null() || site == 0) return false;
  if (!IsBuffer(id) || site > sites_.size() || !HasCapacity(bytes)) return Drop(bytes);
  return Enter(id.value(), site - 1, static_cast<int64_t>(bytes));
}

// --- Segments and blocks ---

bool ProfilerImpl::RecordSegment(const Caller& caller, const Pool& pool, BufferId address, size_t bytes) {
  const Pool named = Clamp(pool);
  {
    const GuardedEvent event(*this);
    if (!event.is_recorded() || address.is_null()) return false;
    if (!IsBuffer(address) || sites_.pools().FindOrMake(named) == 0) return Drop(bytes);
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
  return event.is_recorded() && IsBuffer(id) && pools_.MakeSegment(id.value(), Clamp(pool)).value_or(false);
}

std::optional<int64_t> ProfilerImpl::RecordSegmentFree(const Pool& pool, BufferId address) {
  const GuardedEvent event(*this);
  if (!event.is_recorded() || address.is_null()) return {};
  std::optional<int64_t> bytes;
  if (IsBuffer(address)) bytes = pools_.EndSegment(address.value(), Clamp(pool));
  if (!bytes.has_value()) foreign_frees_.fetch_add(1, std::memory_order_relaxed);
  return bytes;
}

PoolNumber ProfilerImpl::MakePoolNumber(const Pool& pool) {
  const GuardedEvent event(*this);
  return event.is_recorded() ? sites_.pools().FindOrMake(pool) : PoolNumber{0};
}

[[gnu::flatten]] std::optional<int64_t> ProfilerImpl::RecordBlockFree(const Pool& pool, BufferId address) noexcept {
  return address.is_null() ? std::nullopt : End(IdOfBlock(sites_.pools().Find(Clamp(pool)), address));
}

bool ProfilerImpl::RecordResize(BufferId id, size_t bytes) {
  const GuardedEvent event(*this);
  return event.is_recorded() && IsBuffer(id) && bytes <= LiveTable::kMaxBytes &&
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

// --- Changes of a record, and what is known about it ---

bool ProfilerImpl::Refine(const Caller& caller, BufferId id, AllocatorId allocator) {
  const GuardedEvent event(*this);
  LiveRecord live;
  if (!event.is_recorded() || !IsBuffer(id) || !live_.Find(id.value(), &live)) return false;
  const SiteLabels labels = sites_.At(live.site).labels;
  Attributes attributes = labels.attributes();
  if (attributes.kind == MemoryKind::kPool) return true;
  if (allocator != AllocatorId{}) attributes.allocator = allocator;
  const SiteId site = SiteOf(caller, Clamp(attributes), labels.from());
  if (site == kNoSite || site == live.site || sites_.At(site).stack->is_other) return true;
  return pools_.ChangeSite(id.value(), live, site);
}

SiteId ProfilerImpl::SiteOfFailure(const Caller& caller, DeviceId device, MemorySpace space) {
  // The first kinds are those of the spaces.
  static_assert(kMemorySpaceCount == 3 && SpaceOf(MemoryKind(0)) == MemorySpace(0) &&
                SpaceOf(MemoryKind(1)) == MemorySpace(1) && SpaceOf(MemoryKind(2)) == MemorySpace(2));
  return SiteOf(caller, Clamp({device, MemoryKind(space)}), 0);
}

std::optional<LiveBuffer> ProfilerImpl::Find(uint64_t id) const {
  const ReentryGuard guard;
  LiveRecord record;
  if (IsOff() || id == 0 || !live_.Find(id, &record)) return std::nullopt;
  return LiveBuffer{record.bytes, sites_.At(record.site).labels.attributes()};
}

std::optional<FoundBuffer> ProfilerImpl::FindBufferAt(BufferId address) const {
  const ReentryGuard guard;
  if (address.is_null() || address.is_handle() || !guard.entered()) return std::nullopt;
  uint64_t found_id = 0;
  LiveRecord found;
  live_.ForEach([&](uint64_t id, const LiveRecord& record) {
    const uint64_t start = Pools::AddressOf(id);
    if (BufferId(start).is_handle() || address.value() - start >= static_cast<uint64_t>(record.bytes)) return;
    // Of two buffers with equal addresses, the inner one has the larger id (Pools::IsBlockId).
    const bool is_inner = record.bytes < found.bytes || (record.bytes == found.bytes && id > found_id);
    if (found_id != 0 && !is_inner) return;
    found_id = id;
    found = record;
  });
  if (found_id == 0) return std::nullopt;
  const Site& site = sites_.At(found.site);
  const Snapshot::Stack stack = {sites_.PcsOf(*site.stack), site.stack->truncated};
  return FoundBuffer{Pools::AddressOf(found_id), found.bytes, site.labels.attributes(),
                     WithProcessTags(TagsOf(site.labels.tags()), names.tags.All()), stack};
}

// --- Totals and snapshots ---

TrackerStats ProfilerImpl::GetTrackerStats() const {
  const ReentryGuard guard;
  return TrackerStatsWith(ledger_.Totals().num_live());
}

TrackerStats ProfilerImpl::TrackerStatsWith(int64_t live_records) const {
  TrackerStats stats;
  stats.foreign_frees = foreign_frees_.load(std::memory_order_relaxed);
  stats.refused_frees = refused_frees_.load(std::memory_order_relaxed);
  stats.replaced_records = pools_.replaced();
  stats.dropped_records = dropped_records_.load(std::memory_order_relaxed);
  stats.dropped_bytes = dropped_bytes_.load(std::memory_order_relaxed);
  stats.reentrant_events = reentrant_events_.load(std::memory_order_relaxed);
  stats.truncated_stacks = sites_.truncated_stacks();
  stats.dropped_tag_values = DroppedTagValues();
  stats.live_records = live_records;
  stats.sites = sites_.size();
  stats.unwinder = finder_.unwinder();
  stats.host_bytes = HostBytes();
  stats.max_host_bytes = MaxHostBytes();
  return stats;
}

void ProfilerImpl::ResetPeak(DeviceId device) {
  if (static_cast<int>(device) >= kMaxDevices) return;
  const ReentryGuard guard;
  for (int space = 0; space < kMemorySpaceCount; ++space) ledger_.ResetPeak(AccountOf(device, MemorySpace(space)));
}

void ProfilerImpl::DropDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<BufferId>& kept) {
  const ReentryGuard guard;
  std::vector<uint64_t> ids;
  for (const BufferId id : kept) ids.push_back(id.value());
  std::sort(ids.begin(), ids.end());
  pools_.DropDevice(device, survivor, ids);
}

}  // namespace hbmprof::internal
