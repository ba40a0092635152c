#include "src/core/snapshot_builder.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/monotonic_clock.h"
#include "src/base/utc_time.h"
#include "src/capture/modules.h"
#include "src/capture/python/interpreter.h"
#include "src/capture/python/named_frames.h"
#include "src/core/injected/injected.h"
#include "src/core/pool_samples.h"
#include "src/core/run_environment.h"

namespace hbmprof::internal {
namespace {

// Adds the devices. Returns the index in the snapshot for each DeviceId; UINT32_MAX if the snapshot does not have the
// device.
std::vector<uint32_t> AddDevices(const ProfilerImpl& profiler, const LedgerTotals& all, hbmprof::Snapshot* snapshot) {
  std::vector<std::string> names = profiler.names.devices.All();
  const auto named_devices = static_cast<int>(names.size());
  for (int device = named_devices; device < kMaxDevices; ++device) {
    // A caller may use a number that Device() did not return.
    names.push_back("unnamed:" + std::to_string(device));
  }
  std::vector<uint32_t> index_of(kMaxDevices, UINT32_MAX);
  snapshot->tracker.live_records = all.num_live();
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
      const AccountTotals& totals = all.accounts[AccountOf(DeviceId(device), MemorySpace(space))];
      entry.spaces[space] = StatsOf(totals, MemorySpace(space), probe);
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
  const StackRecord* stack;  // null: those of several sites
  SiteLabels labels;
  SiteTotals totals;
};

// Leaves out sites without events, such as that of a failed allocation: the snapshot may not have their device.
std::vector<Row> RowsOf(const ProfilerImpl& profiler, const std::vector<SiteTotals>& sites) {
  std::vector<Row> rows;
  for (SiteId site = 0; site < sites.size(); ++site) {
    const SiteTotals& totals = sites[site];
    if (totals.alloc_objects == 0 && totals.alloc_bytes == 0 && totals.inuse_objects == 0 && totals.inuse_bytes == 0 &&
        totals.peak_objects == 0 && totals.peak_bytes == 0 && totals.pool_peak_bytes == 0) {
      continue;
    }
    rows.push_back({site, profiler.sites().At(site).stack, profiler.sites().At(site).labels, totals});
  }
  return rows;
}

// One row for all sites of a device with the same kind, pool and tags.
std::vector<Row> SumsOf(const ProfilerImpl& profiler, const std::vector<SiteTotals>& sites) {
  std::map<uint64_t, SiteTotals> sums;  // by SiteLabels, without the allocators of buffers and blocks
  for (const Row& row : RowsOf(profiler, sites)) {
    Attributes attributes = row.labels.attributes();
    if (attributes.kind != MemoryKind::kPool) attributes.allocator = {};
    sums[row.labels.With(attributes).value].Add(row.totals);
  }
  std::vector<Row> rows;
  for (const auto& [labels, totals] : sums) rows.push_back({kNoSite, nullptr, SiteLabels(labels), totals});
  return rows;
}

using Born = hbmprof::Snapshot::Sample::Born;

// Returns, by site, when the live buffers of the sites below `sites` were born, in classes up to that of
// `uptime_seconds`. Reads the live table in steps, so that no event waits for longer than a step. Events during that
// time may be missed.
std::vector<std::vector<Born>> ReadBirths(const LiveTable& live, size_t sites, int64_t uptime_seconds) {
  const int log2 = BirthClassLog2(uptime_seconds);
  std::vector<std::vector<Born>> births(sites);
  // No memory is allocated while VisitSome holds locks of the table. After each step other threads get these locks.
  constexpr int kPauses = 8;
  std::vector<LiveRecord> step(LiveTable::kMostVisited);
  uint64_t next = LiveTable::kFirstHash;
  for (bool more = true; more;) {
    size_t count = 0;
    more = live.VisitSome(&next, [&](uint64_t, const LiveRecord& record) {
      if (record.site < sites && count < step.size()) step[count++] = record;
    });
    for (size_t i = 0; i < count; ++i) {
      const int64_t birth = std::min(StartOfGeneration(step[i].birth), uptime_seconds);
      const auto birth_class = static_cast<uint32_t>(birth >> log2);
      std::vector<Born>& born = births[step[i].site];
      auto found =
          std::find_if(born.begin(), born.end(), [&](const Born& one) { return one.birth_class == birth_class; });
      if (found == born.end()) found = born.insert(found, {birth_class, 0, 0});
      ++found->objects;
      found->bytes += step[i].bytes;
    }
    for (int i = 0; i < kPauses; ++i) CpuRelax();
  }
  return births;
}

// Makes the values of the classes add up to `total`: the youngest takes the difference. If that makes it negative,
// older ones get the rest.
void MakeSum(std::vector<Born>* classes, int64_t Born::*value, int64_t total) {
  int64_t difference = total;
  for (const Born& born : *classes) difference -= born.*value;
  for (size_t i = classes->size(); i-- > 0 && difference != 0;) {
    int64_t& sum = (*classes)[i].*value;
    sum += difference;
    difference = std::min<int64_t>(sum, 0);
    if (i != 0) sum -= difference;
  }
}

// Returns the birth classes of a site (Sample::born), from those that were read. They add up to `objects` and `bytes`,
// the site's exact numbers.
std::vector<Born> BirthsOf(const std::vector<Born>& read, int64_t objects, int64_t bytes, int64_t uptime_seconds) {
  if (objects == 0 && bytes == 0) return {};
  std::vector<Born> classes(static_cast<size_t>(uptime_seconds >> BirthClassLog2(uptime_seconds)) + 1);
  for (size_t i = 0; i < classes.size(); ++i) classes[i].birth_class = static_cast<uint32_t>(i);
  for (const Born& born : read) classes[born.birth_class] = born;
  MakeSum(&classes, &Born::objects, objects);
  MakeSum(&classes, &Born::bytes, bytes);
  const auto is_unused = [](const Born& born) { return born.objects == 0 && born.bytes == 0; };
  return {classes.begin(), std::remove_if(classes.begin(), classes.end(), is_unused)};
}

// Adds the samples and their stacks. `births`: from ReadBirths; null for rows of SumsOf.
void AddSamples(const ProfilerImpl& profiler, const std::vector<Row>& rows,
                const std::vector<std::vector<Born>>* births, const std::vector<uint32_t>& device_index,
                hbmprof::Snapshot* snapshot) {
  std::unordered_map<const StackRecord*, uint32_t> stack_index;
  std::unordered_map<TagSetId, Labels> tags;
  const Labels process_tags = profiler.names.tags.All();
  std::vector<uint32_t> from;
  for (const auto& [site, record, labels, totals] : rows) {
    const Attributes attributes = labels.attributes();
    hbmprof::Snapshot::Sample& sample = snapshot->samples.emplace_back();
    const auto [stack, is_new] = stack_index.emplace(record, static_cast<uint32_t>(snapshot->stacks.size()));
    if (is_new) snapshot->stacks.emplace_back();
    if (is_new && record != nullptr) snapshot->stacks.back() = {profiler.sites().PcsOf(*record), record->truncated};
    sample.stack = stack->second;
    sample.device = device_index[static_cast<size_t>(attributes.device)];
    sample.kind = attributes.kind;
    sample.allocator = IndexOf(attributes.allocator, *snapshot);
    const auto [set, is_new_set] = tags.try_emplace(labels.tags());
    if (is_new_set) set->second = WithProcessTags(TagsOf(labels.tags()), process_tags);
    sample.tags = set->second;
    totals.SetValuesOf(&sample);
    // The element of `from` (SeparatePools).
    const PoolNumber pool = labels.from();
    from.push_back(pool == 0 ? 0 : 1 + IndexOf(profiler.sites().pools().Of(pool).allocator, *snapshot));
    if (births == nullptr) continue;
    sample.born = BirthsOf((*births)[site], totals.inuse_objects, totals.inuse_bytes, *snapshot->uptime_seconds);
    sample.freed_by_octave = profiler.ledger().FreedByOctave(site, totals.alloc_objects - totals.inuse_objects);
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
  snapshot->tracker = profiler.TrackerStatsWith(/*live_records=*/0);
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
  return internal::StatsOf(ledger_.Totals(AccountOf(device, space)), space, probes.Ask(device, space));
}

PoolStats ProfilerImpl::StatsOf(const Pool& pool) const {
  const ReentryGuard guard;
  const PoolNumber number = sites_.pools().Find(Clamp(pool));
  if (number == 0 || IsOff()) return {};
  return ledger_.Totals(number);
}

void ProfilerImpl::Switches(bool on) {
  const int64_t now = UnixNanos();
  (on ? last_on_ : last_off_).store(now, std::memory_order_relaxed);
  int64_t never = 0;
  if (!on) first_off_.compare_exchange_strong(never, now, std::memory_order_relaxed);
  if (!on) return;
  LookAtClock();
  resumed_.store(PresentGeneration(), std::memory_order_relaxed);
  if (auto* const resumes = resumes_.load(std::memory_order_acquire); resumes != nullptr) resumes();
}

std::string ProfilerImpl::PauseWarning() const {
  const int64_t off = last_off_.load(std::memory_order_relaxed);
  const int64_t on = last_on_.load(std::memory_order_relaxed);
  if (off == 0) return "";
  const std::string time =
      on < off ? "has been off since " + UtcTime(off) : "was off from " + UtcTime(off) + " to " + UtcTime(on);
  const int64_t first = first_off_.load(std::memory_order_relaxed);
  return "Recording " + time + ": allocations and frees of that time are missing" +
         (first != 0 && first < off ? "; it was off before, first at " + UtcTime(first) : "");
}

Snapshot ProfilerImpl::TakeSnapshot(SnapshotParts parts) const {
  // A profiler that also records the host's allocator must not record the memory allocated here.
  const ReentryGuard guard;
  const LedgerTotals totals = parts == SnapshotParts::kDevices ? ledger_.Totals() : ledger_.Snapshot();

  hbmprof::Snapshot snapshot;
  snapshot.uptime_seconds = LookAtClock() / kNanosPerSecond;
  snapshot.birth_class_log2 = BirthClassLog2(*snapshot.uptime_seconds);
  snapshot.time_unix_nanos = UnixNanos();
  DescribeProcess(*this, &snapshot);
  snapshot.allocators = names.allocators.All();
  snapshot.counters = names.counters.All();
  // No lock of the profiler is held here: listing the modules takes the dynamic linker's lock, and a library's
  // constructor, which runs under that lock, may be waiting for one of ours. The finisher needs the modules.
  snapshot.modules = LoadedModules();
  const std::vector<uint32_t> device_index = AddDevices(*this, totals, &snapshot);
  AddPools(*this, totals.pools, device_index, &snapshot);
  if (std::string warning = PauseWarning(); !warning.empty()) snapshot.warnings.push_back(std::move(warning));
  if (sites_.is_full()) {
    snapshot.warnings.push_back("The table of call sites is full: new call sites are shown as " +
                                std::string(SiteTable::kOtherStacks) +
                                ". HBMPROF_MAX_SITES raises the limit, if HBMPROF_MAX_HOST_BYTES allows it");
  }
  if (parts == SnapshotParts::kSums) AddSamples(*this, SumsOf(*this, totals.sites), nullptr, device_index, &snapshot);
  if (parts == SnapshotParts::kAll) {
    const auto births = ReadBirths(live_, totals.sites.size(), *snapshot.uptime_seconds);
    AddSamples(*this, RowsOf(*this, totals.sites), &births, device_index, &snapshot);
    AddPython(*this, &snapshot);
  }
  if (auto* const finish = finish_snapshot_.load(std::memory_order_acquire)) finish(&snapshot);
  return snapshot;
}

}  // namespace hbmprof::internal

// That of a profiler that cannot record is empty.
hbmprof::Snapshot hbmprof::Profiler::TakeSnapshot() const {
  const bool is_off = internal::IsOff();
  if (!is_off && impl_ != nullptr) return impl_->TakeSnapshot();
  if (!is_off && injected_ != nullptr) return injected_->TakeSnapshot();
  Snapshot snapshot;
  if (is_off) snapshot.warnings.emplace_back(internal::kOffText);
  return snapshot;
}
