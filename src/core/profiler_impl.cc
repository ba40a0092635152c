#include "src/core/profiler_impl.h"

#include <algorithm>
#include <new>
#include <utility>

#include "src/base/pages.h"
#include "src/base/saturating.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/tables/tags.h"

namespace hbmprof::internal {
namespace {

// With a small limit, each event changes the common count of live records, so that the limit is exact. With a larger
// limit, each shard adds up several records first, at most 64.
int FlushEvery(int64_t max_live) { return static_cast<int>(std::clamp<int64_t>(max_live / 65536, 1, 64)); }

}  // namespace

ProfilerImpl::ProfilerImpl(const Options& options, std::atomic<bool>& is_enabled)
    : enabled(is_enabled),
      max_host_bytes(std::clamp<int64_t>(options.max_host_bytes, 1, kMaxHostBytesLimit)),
      names(options.tags),
      max_live_(std::clamp<int64_t>(options.max_live_buffers, 1, kMaxLiveBuffersLimit)),
      sites_(options.max_sites),
      ledger_(sites_, FlushEvery(options.max_live_buffers)),
      finder_(options, sites_, ledger_),
      size_limit_(usual_size_limit()),
      pools_(sites_, live_, ledger_) {
  LookAtClock();  // the first profiler's begin is the start of all ages
  if (options.unwinder != Unwinder::kNone) WatchForPython();
}

uint64_t ProfilerImpl::ClampSlow(uint64_t packed) {
  Attributes attributes = UnpackAttributes(packed);
  if (static_cast<int>(attributes.device) >= kMaxDevices) attributes.device = DeviceId{kMaxDevices - 1};
  if (static_cast<int>(attributes.allocator) >= kMaxAllocators) attributes.allocator = AllocatorId{kMaxAllocators - 1};
  if (static_cast<int>(attributes.kind) >= kMemoryKindCount) attributes.kind = MemoryKind::kDevice;
  return PackAttributes(attributes);
}

// --- Buffers ---

[[gnu::noinline]] bool ProfilerImpl::RecordAllocUncommon(Caller caller, BufferId id, size_t bytes, uint64_t attributes,
                                                         bool is_uncached, SiteId known) noexcept {
  const UncommonEvent event(*this);
  if (!event.is_recorded() || id.is_null()) return false;
  if (!IsBuffer(id)) return Drop(bytes);
  if (AreUncommon(attributes)) {
    attributes = ClampSlow(attributes);
    if (UnpackAttributes(attributes).kind == MemoryKind::kAlias) bytes = 0;
  }
  // The removal of a buffer whose free was not recorded may make space.
  const auto remove_stale = [&] { return CountReplaced(pools_.Remove(id.value()).has_value()); };
  if (!HasCapacity(bytes) && !(remove_stale() && HasCapacity(bytes))) return Drop(bytes);
  const auto size = static_cast<int64_t>(bytes);
  const SiteId site = known != kNoSite ? known : SiteOf(caller, size, attributes, /*in_pool=*/false, is_uncached);
  if (site != kNoSite) return Enter(id, site, size);
  remove_stale();
  return Drop(bytes);
}

void ProfilerImpl::Flush() noexcept {
  ledger_.CountRecords();
  Resize();
}

bool ProfilerImpl::Enter(BufferId id, SiteId site, int64_t bytes) {
  const Ledger::Entered entered = pools_.TryAdd(live_.Prefetch(id.value()), id.value(), site, bytes);
  if (entered == Ledger::kEnteredAndCounted) Flush();
  if (entered != Ledger::kNotEntered) return true;
  bool replaced = false;
  const Pools::Added added = pools_.Add({id.value(), {site, PresentGeneration(), bytes}}, &replaced);
  return Complete(added, replaced, bytes);
}

bool ProfilerImpl::Complete(Pools::Added added, bool replaced, int64_t bytes) {
  CountReplaced(replaced);
  Resize();
  return added == Pools::Added::kAdded || Drop(static_cast<uint64_t>(bytes));
}

bool ProfilerImpl::CountReplaced(bool is_removed) {
  if (!is_removed) return false;
  replaced_records_.fetch_add(1, std::memory_order_relaxed);
  Resize();
  return true;
}

[[gnu::flatten]] std::optional<int64_t> ProfilerImpl::RecordFree(BufferId id) noexcept {
  if (!thread_state.inside && HasRecordedHere() && IsBuffer(id)) {
    const TrackerSection section;
    uint64_t packed = 0;
    const Ledger::Entered entered = pools_.TryRemove(id.value(), &packed);
    if (entered == Ledger::kEnteredAndCounted) Flush();
    if (entered != Ledger::kNotEntered) return LiveTable::Unpack(packed).bytes;
  }
  return RecordFreeUncommon(id, /*is_block=*/false);
}

[[gnu::noinline]] std::optional<int64_t> ProfilerImpl::RecordFreeUncommon(BufferId id, bool is_block) noexcept {
  const UncommonEvent event(*this);
  if (!event.is_recorded() || id.is_null()) return {};
  std::optional<Pools::Block> removed;
  if (is_block && Pools::IsBlockAddress(id.value())) removed = pools_.RemoveBlock(id.value());
  if (!is_block && IsBuffer(id)) removed = pools_.Remove(id.value());
  if (!removed.has_value()) {
    foreign_frees_.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  Resize();
  return removed->record.bytes;
}

void ProfilerImpl::RecordDropped(uint64_t bytes) {
  dropped_records_.fetch_add(1, std::memory_order_relaxed);
  const auto more = static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX));
  int64_t total = dropped_bytes_.load(std::memory_order_relaxed);
  while (!dropped_bytes_.compare_exchange_weak(total, SaturatingSum(total, more), std::memory_order_relaxed)) {
  }
}

uint32_t ProfilerImpl::KeepSite(const Caller& caller, size_t bytes, const Attributes& attributes) {
  const UncommonEvent event(*this);
  if (!event.is_recorded()) return 0;
  if (attributes.kind == MemoryKind::kAlias) bytes = 0;
  const SiteId site =
      HasCapacity(bytes) ? SiteOf(caller, static_cast<int64_t>(bytes), Clamp(attributes), /*in_pool=*/false) : kNoSite;
  if (site == kNoSite) Drop(bytes);
  return site + 1;
}

bool ProfilerImpl::RecordAllocAt(uint32_t site, BufferId id, size_t bytes) {
  const UncommonEvent event(*this);
  if (!event.is_recorded() || id.is_null() || site == 0) return false;
  if (!IsBuffer(id) || site > sites_.size() || !HasCapacity(bytes)) return Drop(bytes);
  return Enter(id, site - 1, static_cast<int64_t>(bytes));
}

// --- Segments and blocks ---

bool ProfilerImpl::RecordSegment(const Caller& caller, BufferId address, size_t bytes, const Attributes& attributes) {
  const UncommonEvent event(*this);
  const uint64_t start = address.value();
  if (!event.is_recorded() || address.is_null()) return false;
  if (!IsBuffer(address)) return Drop(bytes);
  Attributes pool = attributes;
  pool.kind = MemoryKind::kPool;
  const auto size = static_cast<int64_t>(bytes);
  const std::optional<bool> made = pools_.MakeSegment(start, size, UnpackAttributes(Clamp(pool)).allocator);
  if (made.has_value()) return *made;
  if (!HasCapacity(bytes)) return Drop(bytes);
  const SiteId site = SiteOf(caller, size, Clamp(pool), /*in_pool=*/true);
  TraceStep(EventStep::kSegmentPlaced);
  const auto added = site == kNoSite ? Pools::Added::kNoMemory : pools_.AddSegment(start, site, size);
  if (added == Pools::Added::kNoMemory) return Drop(bytes);
  Resize();
  return added == Pools::Added::kAdded;
}

[[gnu::noinline]] bool ProfilerImpl::RecordBlockUncommon(Caller caller, BufferId address, size_t bytes,
                                                         const Attributes& attributes, bool is_uncached) noexcept {
  const UncommonEvent event(*this);
  const uint64_t start = address.value();
  if (!event.is_recorded() || start == 0) return false;
  if (!Pools::IsBlockAddress(start)) return Drop(bytes);
  if (attributes.kind == MemoryKind::kAlias) bytes = 0;
  // The removal of a block whose free was not recorded may make space.
  const auto remove_stale = [&] { return CountReplaced(pools_.RemoveBlock(start).has_value()); };
  if (!HasCapacity(bytes) && !(remove_stale() && HasCapacity(bytes))) return Drop(bytes);
  const auto size = static_cast<int64_t>(bytes);
  const Attributes named = UnpackAttributes(Clamp(attributes));
  // The site that the block probably has.
  const Pools::Position position = pools_.PositionOfBlock(start, size);
  const SiteId site = SiteOf(caller, size, PackAttributes(position.AttributesOf(named)), position.in_pool, is_uncached);
  TraceStep(EventStep::kBlockPlaced);
  bool replaced = false;
  const Pools::Addition block{position.id, {site, PresentGeneration(), size}, named};
  const auto added = site == kNoSite ? Pools::Added::kNoMemory : pools_.Add(block, &replaced);
  if (added == Pools::Added::kNoMemory) remove_stale();
  return Complete(added, replaced, size);
}

[[gnu::flatten]] std::optional<int64_t> ProfilerImpl::RecordBlockFree(BufferId address) noexcept {
  const uint64_t start = address.value();
  if (!thread_state.inside && HasRecordedHere() && Pools::IsBlockAddress(start)) {
    const TrackerSection section;
    uint64_t packed = 0;
    const Ledger::Entered entered = pools_.TryRemoveBlock(start, &packed);
    if (entered == Ledger::kEnteredAndCounted) Flush();
    if (entered != Ledger::kNotEntered) return LiveTable::Unpack(packed).bytes;
  }
  return RecordFreeUncommon(address, /*is_block=*/true);
}

bool ProfilerImpl::RecordResize(BufferId id, size_t bytes) {
  const UncommonEvent event(*this);
  return event.is_recorded() && IsBuffer(id) && bytes <= LiveTable::kMaxBytes &&
         pools_.Resize(id.value(), static_cast<int64_t>(bytes));
}

bool ProfilerImpl::RecordBlockResize(BufferId address, size_t bytes) {
  const UncommonEvent event(*this);
  return event.is_recorded() && !address.is_null() && Pools::IsBlockAddress(address.value()) &&
         bytes <= LiveTable::kMaxBytes && pools_.ResizeBlock(address.value(), static_cast<int64_t>(bytes));
}

bool ProfilerImpl::SplitSegment(BufferId address, size_t bytes) {
  const UncommonEvent event(*this);
  if (!event.is_recorded() || bytes > LiveTable::kMaxBytes ||
      !pools_.SplitSegment(address.value(), address.value() + bytes)) {
    return false;
  }
  Resize();
  return true;
}

bool ProfilerImpl::MergeSegments(BufferId first, BufferId second) {
  const UncommonEvent event(*this);
  if (!event.is_recorded() || !pools_.MergeSegments(first.value(), second.value())) return false;
  Resize();
  return true;
}

void ProfilerImpl::EndBlocks(DeviceId device, AllocatorId allocator) {
  const UncommonEvent event(*this);
  if (!event.is_recorded()) return;
  pools_.EndBlocks(device, allocator);
  Resize();
}

std::optional<int64_t> ProfilerImpl::BlockBytes(DeviceId device, AllocatorId allocator) {
  const UncommonEvent event(*this);
  if (!event.is_recorded()) return std::nullopt;
  return pools_.BlockBytes(device, allocator);
}

// --- Changes of a record, and what is known about it ---

bool ProfilerImpl::Refine(const Caller& caller, BufferId id, AllocatorId allocator) {
  const UncommonEvent event(*this);
  LiveRecord live;
  if (!event.is_recorded() || !live_.Find(id.value(), &live)) return false;
  const SiteKey key = sites_.Key(live.site);
  Attributes attributes = key.attributes;
  if (attributes.kind == MemoryKind::kPool) return true;
  if (allocator != AllocatorId{}) attributes.allocator = allocator;
  const SiteId site = SiteOf(caller, live.bytes, Clamp(attributes), key.in_pool);
  if (site == kNoSite || site == live.site || sites_.At(site).stack->is_other) return true;
  return pools_.ChangeSite(id.value(), live, site);
}

bool ProfilerImpl::Rename(BufferId id, BufferId new_id) {
  const UncommonEvent event(*this);
  return event.is_recorded() && pools_.Rename(id.value(), new_id.value());
}

SiteId ProfilerImpl::SiteOfFailure(const Caller& caller, DeviceId device, MemorySpace space) {
  const MemoryKind kind = space == MemorySpace::kManaged      ? MemoryKind::kManaged
                          : space == MemorySpace::kPinnedHost ? MemoryKind::kPinnedHost
                                                              : MemoryKind::kDevice;
  const SiteId site = SiteOf(caller, 0, Clamp({device, kind}), /*in_pool=*/false);
  finder_.CountTruncated();
  return site;
}

std::optional<LiveBuffer> ProfilerImpl::FindBuffer(BufferId id) const {
  const ReentryGuard guard;
  LiveRecord record;
  if (!IsBuffer(id) || !live_.Find(id.value(), &record)) return std::nullopt;
  return LiveBuffer{record.bytes, sites_.Key(record.site).attributes};
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
  const SiteKey key = sites_.Key(found.site);
  const Snapshot::Stack stack = {sites_.PcsOf(*key.stack), key.stack->truncated};
  return FoundBuffer{Pools::AddressOf(found_id), found.bytes, key.attributes,
                     WithProcessTags(TagsOf(key.tags), names.tags.All()), stack};
}

std::optional<LiveBuffer> ProfilerImpl::FindBlock(BufferId address) {
  const ReentryGuard guard;
  if (IsOff() || address.is_null() || !Pools::IsBlockAddress(address.value())) return std::nullopt;
  const std::optional<Pools::Block> found = pools_.LookUpBlock(address.value());
  if (!found.has_value()) return std::nullopt;
  return LiveBuffer{found->record.bytes, sites_.Key(found->record.site).attributes};
}

// --- Totals and snapshots ---

TrackerStats ProfilerImpl::GetTrackerStats() const {
  const ReentryGuard guard;
  TrackerStats stats = TrackerStatsOfParts();
  stats.live_records = ledger_.CountLive();
  return stats;
}

TrackerStats ProfilerImpl::TrackerStatsOfParts() const {
  TrackerStats stats;
  stats.foreign_frees = foreign_frees_.load(std::memory_order_relaxed);
  stats.refused_frees = refused_frees_.load(std::memory_order_relaxed);
  stats.replaced_records = replaced_records_.load(std::memory_order_relaxed);
  stats.dropped_records = dropped_records_.load(std::memory_order_relaxed);
  stats.dropped_bytes = dropped_bytes_.load(std::memory_order_relaxed);
  stats.reentrant_events = reentrant_events_.load(std::memory_order_relaxed);
  stats.truncated_stacks = finder_.truncated_stacks();
  stats.dropped_tag_values = DroppedTagValues();
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
  DroppedRecords dropped{device, survivor, {}};
  for (const BufferId id : kept) dropped.kept.push_back(id.value());
  std::sort(dropped.kept.begin(), dropped.kept.end());
  pools_.DropDevice(dropped);
  for (Backoff backoff; !Resize();) backoff.Wait();
}

}  // namespace hbmprof::internal
