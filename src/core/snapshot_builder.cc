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

// Returns the index in the snapshot of an allocator: 0, which has no name, if the number is not of Allocator().
uint32_t IndexOf(AllocatorId allocator, const hbmprof::Snapshot& snapshot) {
  const auto index = static_cast<uint32_t>(allocator);
  return index < snapshot.allocators.size() ? index : 0;
}

// What becomes a sample.
struct Row {
  SiteId site;
  SiteKey key;
  SiteTotals totals;
};

std::vector<Row> RowsOf(const ProfilerImpl& profiler, const std::vector<SiteTotals>& sites) {
  std::vector<Row> rows;
  for (SiteId site = 0; site < sites.size(); ++site) {
    const SiteTotals& totals = sites[site];
    if (totals.alloc_objects == 0 && totals.alloc_bytes == 0 && totals.inuse_objects == 0 && totals.inuse_bytes == 0 &&
        totals.peak_objects == 0 && totals.peak_bytes == 0 && totals.pool_peak_bytes == 0) {
      continue;
    }
    rows.push_back({site, profiler.sites().Key(site), totals});
  }
  return rows;
}

// One row for all sites of a device with the same kind, pool and tags.
std::vector<Row> SumsOf(const ProfilerImpl& profiler, const std::vector<SiteTotals>& sites) {
  std::map<uint64_t, SiteTotals> sums;  // by SiteWord, without the allocators of buffers and blocks
  for (SiteId site = 0; site < sites.size(); ++site) {
    SiteKey key = profiler.sites().Key(site);
    if (key.attributes.kind != MemoryKind::kPool) key.attributes.allocator = {};
    sums[SiteWord(key).value].Add(sites[site]);
  }
  std::vector<Row> rows;
  for (const auto& [word, totals] : sums) rows.push_back({kNoSite, SiteWord(word).WithStack(nullptr), totals});
  return rows;
}

// Adds the samples and their stacks. `births`: null for rows of SumsOf.
void AddSamples(const ProfilerImpl& profiler, const std::vector<Row>& rows, const Births* births,
                const std::vector<uint32_t>& device_index, hbmprof::Snapshot* snapshot) {
  std::unordered_map<const StackRecord*, uint32_t> stack_index;
  std::unordered_map<TagSetId, Labels> tags;
  const Labels process_tags = profiler.names.tags.All();
  std::vector<uint32_t> from;
  for (const auto& [site, key, totals] : rows) {
    hbmprof::Snapshot::Sample& sample = snapshot->samples.emplace_back();
    const auto [stack, is_new] = stack_index.emplace(key.stack, static_cast<uint32_t>(snapshot->stacks.size()));
    if (is_new) snapshot->stacks.emplace_back();
    if (is_new && key.stack != nullptr) {
      snapshot->stacks.back() = {profiler.sites().PcsOf(*key.stack), key.stack->truncated};
    }
    sample.stack = stack->second;
    sample.device = device_index[static_cast<size_t>(key.attributes.device)];
    sample.kind = key.attributes.kind;
    sample.allocator = IndexOf(key.attributes.allocator, *snapshot);
    const auto [set, is_new_set] = tags.try_emplace(key.tags);
    if (is_new_set) set->second = WithProcessTags(TagsOf(key.tags), process_tags);
    sample.tags = set->second;
    totals.SetValuesOf(&sample);
    // The element of `from` (SeparatePools).
    from.push_back(key.from == 0 ? 0 : 1 + IndexOf(profiler.sites().pools().Of(key.from).allocator, *snapshot));
    if (births == nullptr) continue;
    sample.born = births->Of(site, totals.inuse_objects, totals.inuse_bytes);
    sample.freed_by_octave = profiler.ledger().freed_ages().Of(site, totals.alloc_objects - totals.inuse_objects);
  }
  SeparatePools(
      from, [&](const std::string& text) { return births == nullptr ? 0 : InternNamedFrame(text, "", 0, 0); },
      snapshot);
}

// Sets the pools of the snapshot's devices. `totals`: by PoolNumber.
void AddPools(const ProfilerImpl& profiler, const std::vector<PoolTotals>& totals,
              const std::vector<uint32_t>& device_index, hbmprof::Snapshot* snapshot) {
  for (size_t number = 1; number < totals.size(); ++number) {
    if (totals[number].peak_bytes_reserved == 0) continue;  // its blocks count as buffers
    const Pool& pool = profiler.sites().pools().Of(static_cast<PoolNumber>(number));
    const uint32_t device = device_index[static_cast<size_t>(pool.device)];
    if (device == UINT32_MAX) continue;
    PoolStats& stats = snapshot->devices[device].pools.emplace_back(totals[number]);
    stats.name = snapshot->allocators[IndexOf(pool.allocator, *snapshot)];
  }
}

}  // namespace

hbmprof::Snapshot SnapshotOf(Profiler& profiler, SnapshotParts parts) {
  return ProfilerAccess::HasImpl(profiler) ? ProfilerAccess::ImplOf(profiler).TakeSnapshot(parts)
                                           : profiler.TakeSnapshot();
}

bool HasRecorded(Profiler& profiler) {
  if (ProfilerAccess::HasImpl(profiler)) {
    std::vector<AccountTotals> accounts;
    std::vector<PoolTotals> pools;
    ProfilerAccess::ImplOf(profiler).ledger().AllTotals(&accounts, &pools);
    return std::any_of(accounts.begin(), accounts.end(), [](const AccountTotals& totals) { return totals.is_used(); });
  }
  const hbmprof::Snapshot snapshot = profiler.TakeSnapshot();
  return std::any_of(snapshot.devices.begin(), snapshot.devices.end(), [](const hbmprof::Snapshot::Device& device) {
    return std::any_of(std::begin(device.spaces), std::end(device.spaces),
                       [](const DeviceStats& stats) { return stats.num_allocs != 0; });
  });
}

DeviceStats StatsOf(const AccountTotals& totals, MemorySpace space, const DeviceProbe& probe) {
  DeviceStats stats = totals;
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
    snapshot->python.problem = profiler.finder().reads_python() ? python->problem : "turned off";
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
  return ledger_.Totals(number);
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
  if (parts == SnapshotParts::kSums) AddSamples(*this, SumsOf(*this, sites), nullptr, device_index, &snapshot);
  if (parts == SnapshotParts::kAll) {
    const Births births(live_, static_cast<SiteId>(sites.size()), *snapshot.uptime_seconds);
    AddSamples(*this, RowsOf(*this, sites), &births, device_index, &snapshot);
    AddPython(*this, &snapshot);
  }
  if (auto* const finish = finish_snapshot_.load(std::memory_order_acquire)) finish(&snapshot);
  return snapshot;
}

}  // namespace hbmprof::internal
