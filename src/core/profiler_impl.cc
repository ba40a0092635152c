#include "src/core/profiler_impl.h"

#include <algorithm>

#include "src/base/fork.h"
#include "src/base/mutex.h"
#include "src/base/pages.h"
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
      impl.probes.RemoveAll();
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

// --- Changes of a record, and what is known about it ---

bool ProfilerImpl::Reattribute(const Caller& caller, BufferId id, AllocatorId allocator) {
  const GuardedEvent event(*this);
  LiveRecord live;
  if (!event.is_recorded() || !Pools::IsBufferId(id) || !live_.Find(id.value(), &live)) return false;
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

void ProfilerImpl::EndDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<BufferId>& kept) {
  const ReentryGuard guard;
  std::vector<uint64_t> ids;
  for (const BufferId id : kept) ids.push_back(id.value());
  std::sort(ids.begin(), ids.end());
  pools_.EndDevice(device, survivor, ids);
}

}  // namespace hbmprof::internal
