#include "src/core/snapshot_builder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/utc_time.h"
#include "src/capture/modules.h"
#include "src/capture/python/interpreter.h"
#include "src/capture/python/named_frames.h"
#include "src/core/joined/injected.h"
#include "src/core/pool_samples.h"
#include "src/core/run_environment.h"
#include "src/core/tables/births.h"

namespace hbmprof::internal {
namespace {

// Adds the devices. Returns the index in the snapshot for each DeviceId; UINT32_MAX if the snapshot does not have the
// device.
std::vector<uint32_t> AddDevices(const ProfilerImpl& profiler, const std::vector<AccountTotals>& accounts,
                                 hbmprof::Snapshot* snapshot) {
  std::vector<std::string> names = profiler.names.devices.All();
  const auto named_devices = static_cast<int>(names.size());
  for (int device = named_devices; device < kMaxDevices; ++device) {
    // A caller may use a number that Device() did not return.
    names.push_back("unnamed:" + std::to_string(device));
  }
  std::vector<uint32_t> index_of(kMaxDevices, UINT32_MAX);
  snapshot->tracker.live_records = 0;
  for (int device = 0; device < kMaxDevices; ++device) {
    bool used = false;
    hbmprof::Snapshot::Device entry;
    entry.name = names[device];
    DeviceProbe probe = profiler.probes.Ask(device);
    if (ProbeLimit::IsSilent(device)) {
      snapshot->warnings.push_back(names[device] +
                                   " did not answer at the end of the process; the numbers that only "
                                   "the device knows, such as its free memory, are missing");
    }
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      const AccountTotals& totals = accounts[AccountOf(DeviceId(device), MemorySpace(space))];
      entry.spaces[space] = StatsOf(totals, MemorySpace(space), probe);
      snapshot->tracker.live_records += totals.num_live;
      used = used || totals.is_used();
    }
    // A named device is shown even if nothing was allocated on it. Device 0 has a name even if no caller gave it one.
    const bool named = device > 0 ? device < named_devices : profiler.names.devices.first_is_requested();
    if (!used && !named) continue;
    entry.uuid = std::move(probe.uuid);
    entry.processes = std::move(probe.processes);
    index_of[device] = static_cast<uint32_t>(snapshot->devices.size());
    snapshot->devices.push_back(std::move(entry));
  }
  return index_of;
}

void SetValues(const SiteTotals& totals, hbmprof::Snapshot::Sample* sample) {
  sample->alloc_objects = totals.alloc_objects;
  sample->alloc_bytes = totals.alloc_bytes;
  sample->peak_objects = totals.peak_objects;
  sample->peak_bytes = totals.peak_bytes;
  sample->inuse_objects = totals.inuse_objects;
  sample->inuse_bytes = totals.inuse_bytes;
  sample->pool_peak_objects = totals.pool_peak_objects;
  sample->pool_peak_bytes = totals.pool_peak_bytes;
}

// Returns the index in the snapshot of an allocator: 0, which has no name, if the number is not of Allocator().
uint32_t IndexOf(AllocatorId allocator, const hbmprof::Snapshot& snapshot) {
  const auto index = static_cast<uint32_t>(allocator);
  return index < snapshot.allocators.size() ? index : 0;
}

// Returns the element of `from` (SeparatePools) for a site with this key.
uint32_t FromOf(const ProfilerImpl& profiler, const SiteKey& key, const hbmprof::Snapshot& snapshot) {
  return key.from == 0 ? 0 : 1 + IndexOf(profiler.sites().pools().Of(key.from).allocator, snapshot);
}

// Adds one sample for all sites of a device with the same kind, pool and tags. All have one empty stack.
void AddSums(const ProfilerImpl& profiler, const std::vector<SiteTotals>& sites,
             const std::vector<uint32_t>& device_index, hbmprof::Snapshot* snapshot) {
  std::map<uint64_t, SiteTotals> sums;  // by SiteWord, without the allocators of buffers and blocks
  for (SiteId site = 0; site < sites.size(); ++site) {
    SiteKey key = profiler.sites().Key(site);
    if (key.attributes.kind != MemoryKind::kPool) key.attributes.allocator = {};
    sums[SiteWord(key).value].Add(sites[site]);
  }
  const Labels process_tags = profiler.names.tags.All();
  std::vector<uint32_t> from;
  for (const auto& [word, totals] : sums) {
    const SiteKey key = SiteWord(word).WithStack(nullptr);
    hbmprof::Snapshot::Sample& sample = snapshot->samples.emplace_back();
    sample.device = device_index[static_cast<size_t>(key.attributes.device)];
    sample.kind = key.attributes.kind;
    sample.allocator = IndexOf(key.attributes.allocator, *snapshot);
    sample.tags = WithProcessTags(TagsOf(key.tags), process_tags);
    SetValues(totals, &sample);
    from.push_back(FromOf(profiler, key, *snapshot));
  }
  snapshot->stacks.emplace_back();
  SeparatePools(
      from, [](const std::string&) { return uint64_t{0}; }, snapshot);
}

// Adds the samples and their stacks.
void AddSamples(const ProfilerImpl& profiler, const std::vector<SiteTotals>& sites, const Births& births,
                const std::vector<uint32_t>& device_index, hbmprof::Snapshot* snapshot) {
  std::unordered_map<const StackRecord*, uint32_t> stack_index;
  std::unordered_map<TagSetId, Labels> tags;
  const Labels process_tags = profiler.names.tags.All();
  std::vector<uint32_t> from;
  for (SiteId site = 0; site < sites.size(); ++site) {
    const SiteTotals& totals = sites[site];
    if (totals.alloc_objects == 0 && totals.alloc_bytes == 0 && totals.inuse_objects == 0 && totals.inuse_bytes == 0 &&
        totals.peak_objects == 0 && totals.peak_bytes == 0 && totals.pool_peak_bytes == 0) {
      continue;
    }
    const SiteKey key = profiler.sites().Key(site);
    hbmprof::Snapshot::Sample sample;
    const auto [stack, is_new] = stack_index.emplace(key.stack, static_cast<uint32_t>(snapshot->stacks.size()));
    if (is_new) snapshot->stacks.push_back({profiler.sites().PcsOf(*key.stack), key.stack->truncated});
    sample.stack = stack->second;
    sample.device = device_index[static_cast<size_t>(key.attributes.device)];
    sample.kind = key.attributes.kind;
    sample.allocator = IndexOf(key.attributes.allocator, *snapshot);
    const auto [set, is_new_set] = tags.try_emplace(key.tags);
    if (is_new_set) set->second = WithProcessTags(TagsOf(key.tags), process_tags);
    sample.tags = set->second;
    SetValues(totals, &sample);
    sample.born = births.Of(site, totals.inuse_objects, totals.inuse_bytes);
    sample.freed_by_octave = profiler.ledger().freed_ages().Of(site, totals.alloc_objects - totals.inuse_objects);
    from.push_back(FromOf(profiler, key, *snapshot));
    snapshot->samples.push_back(std::move(sample));
  }
  SeparatePools(
      from, [](const std::string& text) { return InternNamedFrame(text, "", 0, 0); }, snapshot);
}

}  // namespace

hbmprof::Snapshot SnapshotOf(Profiler& profiler, SnapshotParts parts) {
  return ProfilerAccess::HasImpl(profiler) ? ProfilerAccess::ImplOf(profiler).TakeSnapshot(parts)
                                           : profiler.TakeSnapshot();
}

bool HasRecorded(Profiler& profiler) {
  const hbmprof::Snapshot snapshot = SnapshotOf(profiler, SnapshotParts::kDevices);
  return std::any_of(snapshot.devices.begin(), snapshot.devices.end(), [](const hbmprof::Snapshot::Device& device) {
    return std::any_of(std::begin(device.spaces), std::end(device.spaces),
                       [](const DeviceStats& stats) { return stats.num_allocs != 0; });
  });
}

DeviceStats StatsOf(const AccountTotals& totals, MemorySpace space, const DeviceProbe& probe) {
  DeviceStats stats;
  stats.bytes_in_use = totals.bytes_in_use;
  stats.peak_bytes_in_use = totals.peak_bytes_in_use;
  stats.num_allocs = totals.num_allocs;
  stats.num_live = totals.num_live;
  stats.largest_alloc_size = totals.largest_alloc;
  stats.pool_bytes = totals.pool_bytes;
  stats.idle_bytes = totals.idle_bytes;
  if (space != MemorySpace::kDevice) return stats;
  stats.bytes_limit = probe.bytes_limit;
  stats.bytes_free = probe.bytes_free;
  stats.largest_free_block_bytes = probe.largest_free_block_bytes;
  stats.driver_bytes_in_use = probe.driver_bytes_in_use;
  stats.driver_peak_bytes_in_use = probe.driver_peak_bytes_in_use;
  stats.driver_scope = probe.driver_scope;
  stats.driver_cache_bytes = probe.driver_cache_bytes;
  stats.baseline = probe.baseline;
  if (probe.driver_bytes_in_use.has_value()) {
    stats.unaccounted =
        *probe.driver_bytes_in_use - totals.bytes_in_use - std::max<int64_t>(probe.driver_cache_bytes.value_or(0), 0);
  }
  return stats;
}

PoolStats StatsOf(const PoolTotals& totals, std::string name) {
  PoolStats stats;
  stats.name = std::move(name);
  stats.bytes_reserved = totals.bytes_reserved;
  stats.bytes_allocated = totals.bytes_allocated;
  stats.idle_bytes = totals.idle_bytes();
  stats.peak_bytes_reserved = totals.peak_bytes_reserved;
  stats.peak_bytes_allocated = totals.peak_bytes_allocated;
  stats.segments = totals.segments;
  return stats;
}

void AddPools(const ProfilerImpl& profiler, const std::vector<PoolTotals>& totals,
              const std::vector<uint32_t>& device_index, hbmprof::Snapshot* snapshot) {
  for (size_t number = 1; number < totals.size(); ++number) {
    if (totals[number].peak_bytes_reserved == 0) continue;  // its blocks count as buffers
    const Pool& pool = profiler.sites().pools().Of(static_cast<PoolNumber>(number));
    const uint32_t device = device_index[static_cast<size_t>(pool.device)];
    if (device == UINT32_MAX) continue;
    std::string name = snapshot->allocators[IndexOf(pool.allocator, *snapshot)];
    snapshot->devices[device].pools.push_back(StatsOf(totals[number], std::move(name)));
  }
}

void DescribeProcess(const ProfilerImpl& profiler, hbmprof::Snapshot* snapshot) {
  snapshot->process_id = getpid();
  char host[256] = {};
  snapshot->host = gethostname(host, sizeof(host) - 1) == 0 ? host : "";
  snapshot->environment = RunEnvironment();
  snapshot->tracker = profiler.TrackerStatsOfParts();
}

void AddPython(const ProfilerImpl& profiler, hbmprof::Snapshot* snapshot) {
  if (const PythonInterpreter* python = FoundPython()) {
    snapshot->python.version = python->version;
    snapshot->python.problem =
        profiler.finder().reads_python() ? python->problem.load(std::memory_order_acquire) : "turned off";
  }
  // All named frames of the process, so that the words of stacks are their entries in the snapshot.
  static_assert(kNamedFrameWord == hbmprof::Snapshot::kNamedFrame);
  const uint32_t count = NamedFrameCount();
  snapshot->named_frames.reserve(count);
  for (auto number = static_cast<uint32_t>(snapshot->named_frames.size()); number < count; ++number) {
    const NamedFrame& frame = *NamedFrameOf(kNamedFrameWord | number);
    snapshot->named_frames.push_back(
        {std::string(frame.function()), std::string(frame.file()), frame.line, frame.first_line});
  }
}

DeviceStats ProfilerImpl::Stats(DeviceId device, MemorySpace space) const {
  if (static_cast<int>(device) >= kMaxDevices) return {};
  const ReentryGuard guard;
  const DeviceProbe probe = probes.Ask(device, space);
  return internal::StatsOf(ledger_.Totals(AccountOf(device, space)), space, probe);
}

PoolStats ProfilerImpl::StatsOf(const Pool& pool) const {
  const ReentryGuard guard;
  const PoolNumber number = sites_.pools().Find(Clamp(pool));
  if (number == 0 || IsOff()) return {};
  return internal::StatsOf(ledger_.Totals(number), "");
}

namespace {

int64_t UnixNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void ProfilerImpl::Switches(bool on) {
  (on ? last_on_ : last_off_).store(UnixNanos(), std::memory_order_relaxed);
  if (on) times_resumed_.fetch_add(1, std::memory_order_release);
}

std::string ProfilerImpl::PauseWarning() const {
  const int64_t off = last_off_.load(std::memory_order_relaxed);
  const int64_t on = last_on_.load(std::memory_order_relaxed);
  if (off == 0) return "";
  const std::string time =
      on < off ? "has been off since " + UtcTime(off) : "was off from " + UtcTime(off) + " to " + UtcTime(on);
  return "Recording " + time + ": allocations and frees of that time are missing";
}

Snapshot ProfilerImpl::TakeSnapshot(SnapshotParts parts) const {
  // A profiler that also records the host's allocator must not record the memory allocated here.
  const ReentryGuard guard;
  std::vector<SiteTotals> sites;
  std::vector<AccountTotals> accounts;
  std::vector<PoolTotals> pools;
  if (parts == SnapshotParts::kDevices) {
    ledger_.AllTotals(&accounts, &pools);
  } else {
    ledger_.Snapshot(&sites, &accounts, &pools);
  }

  hbmprof::Snapshot snapshot;
  snapshot.uptime_seconds = LookAtClock() / 1'000'000'000;
  snapshot.birth_class_log2 = BirthClassLog2(*snapshot.uptime_seconds);
  snapshot.time_unix_nanos = UnixNanos();
  DescribeProcess(*this, &snapshot);
  snapshot.allocators = names.allocators.All();
  snapshot.counters = names.counters.All();
  // No lock of the profiler is held here: listing the modules takes the dynamic linker's lock, and a library's
  // constructor, which runs under that lock, may be waiting for one of ours. The finisher needs the modules.
  snapshot.modules = LoadedModules();
  const std::vector<uint32_t> device_index = AddDevices(*this, accounts, &snapshot);
  AddPools(*this, pools, device_index, &snapshot);
  if (std::string warning = PauseWarning(); !warning.empty()) snapshot.warnings.push_back(std::move(warning));
  if (sites_.is_full()) {
    snapshot.warnings.push_back("The table of call sites is full: new call sites are shown as " +
                                std::string(SiteTable::kOtherStacks) +
                                ". HBMPROF_MAX_SITES raises the limit, if HBMPROF_MAX_HOST_BYTES allows it");
  }
  if (parts == SnapshotParts::kSums) AddSums(*this, sites, device_index, &snapshot);
  if (parts == SnapshotParts::kAll) {
    const Births births(live_, static_cast<SiteId>(sites.size()), *snapshot.uptime_seconds);
    AddSamples(*this, sites, births, device_index, &snapshot);
    AddPython(*this, &snapshot);
  }
  if (auto* const finish = finish_snapshot_.load(std::memory_order_acquire)) finish(&snapshot);
  return snapshot;
}

}  // namespace hbmprof::internal
