#include "src/recording/recorder/source.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "hbmprof/pprof.h"
#include "src/base/descriptor.h"
#include "src/base/spin_lock.h"
#include "src/base/utc_time.h"
#include "src/capture/modules.h"
#include "src/core/snapshot_builder.h"
#include "src/core/tables/tags.h"
#include "src/recording/events.h"

namespace hbmprof::internal {

// --- Marks ---

uint64_t Marks::Number(std::string_view name) {
  constexpr size_t kMostNames = 100'000;
  MutexLock hold(mutex_);
  if (const auto found = numbers_.find(name); found != numbers_.end()) return found->second + 1;
  if (names_.size() == kMostNames) return 0;
  names_.emplace_back(name);
  numbers_.emplace(names_.back(), names_.size() - 1);
  return names_.size();
}

std::string Marks::Name(uint64_t number) const {
  MutexLock hold(mutex_);
  return names_[number];
}

// --- Tables ---

LedgerState RecordingSource::ReadLedger(ProfilerImpl& profiler, const EventLog::Mode* mode) {
  LedgerState state;
  // This must be read before the call of Snapshot, which continues for some time after its instant.
  state.unix_nanos = UnixNanos();
  static_cast<LedgerTotals&>(state) = profiler.ledger().Snapshot(&state.instant, mode);
  return state;
}

uint32_t RecordingSource::IndexOf(DeviceId device) {
  uint32_t& index = device_index_[static_cast<size_t>(device)];
  if (index == UINT32_MAX) {
    const auto number = static_cast<size_t>(device);
    const std::vector<std::string> names = profiler_.names.devices.All();
    index = static_cast<uint32_t>(devices_.size());
    devices_.push_back(device);
    tables_.names.devices.emplace_back().name =
        number < names.size() ? names[number] : "unnamed:" + std::to_string(number);
  }
  return index;
}

void RecordingSource::Begin(const LedgerState& state, int64_t time) {
  tables_.start_time = time;
  tables_.start_unix_nanos = state.unix_nanos;
  tables_.live_is_complete = false;
  tables_.tag_sets.emplace_back();
  tables_.threads.emplace_back();
  DescribeProcess(profiler_, &tables_.names);
  for (AccountId account = 0; account < kAccounts; ++account) {
    const AccountTotals& totals = state.accounts[static_cast<size_t>(account)];
    if (!totals.is_used()) continue;
    const auto device = static_cast<DeviceId>(account / kMemorySpaceCount);
    const auto space = static_cast<MemorySpace>(account % kMemorySpaceCount);
    const uint32_t index = IndexOf(device);
    tables_.names.devices[index].spaces[account % kMemorySpaceCount] =
        StatsOf(totals, space, profiler_.probes.Ask(device, space));
  }
  Update();
  const PoolNumbers& pools = profiler_.sites().pools();
  for (size_t number = 1; number < state.pools.size() && number <= static_cast<size_t>(pools.size()); ++number) {
    const Pool& pool = pools.Of(static_cast<PoolNumber>(number));
    PoolStats& stats = tables_.names.devices[IndexOf(pool.device)].pools.emplace_back(state.pools[number]);
    stats.name = tables_.names.allocators[AllocatorIndex(pool.allocator)];
    stats.idle_bytes = std::max<int64_t>(stats.bytes_reserved - stats.bytes_allocated, 0);
  }
  for (size_t site = 0; site < state.sites.size(); ++site) {
    state.sites[site].SetValuesOf(&tables_.sites[site]);
  }
}

uint32_t RecordingSource::AllocatorIndex(AllocatorId allocator) const {
  const auto index = static_cast<uint32_t>(allocator);
  return index < tables_.names.allocators.size() ? index : 0;
}

void RecordingSource::Update() {
  tables_.names.allocators = profiler_.names.allocators.All();
  const size_t first_stack = tables_.names.stacks.size();
  AddSites();
  AddPython(profiler_, &tables_.names);
  if (tables_.names.stacks.size() > first_stack) AddNames(first_stack);
  AddThreads();
}

void RecordingSource::AddSites() {
  const SiteTable& sites = profiler_.sites();
  const SiteId count = sites.size();
  if (tables_.sites.size() == count) return;
  const std::vector<std::pair<std::string, std::string>> process_tags = profiler_.names.tags.All();
  for (auto site = static_cast<SiteId>(tables_.sites.size()); site < count; ++site) {
    const StackRecord* const record = sites.At(site).stack;
    const SiteLabels labels = sites.At(site).labels;
    const Attributes attributes = labels.attributes();
    const auto [stack, is_new] = stack_index_.emplace(record, static_cast<uint32_t>(tables_.names.stacks.size()));
    if (is_new) tables_.names.stacks.push_back({sites.PcsOf(*record), record->truncated});
    Snapshot::Sample& sample = tables_.sites.emplace_back();
    sample.stack = stack->second;
    sample.device = IndexOf(attributes.device);
    sample.kind = attributes.kind;
    sample.allocator = AllocatorIndex(attributes.allocator);
    sample.tags = WithProcessTags(TagsOf(labels.tags()), process_tags);
    tables_.site_pools.push_back(labels.from() == 0 ? 0
                                                    : 1 + AllocatorIndex(sites.pools().Of(labels.from()).allocator));
  }
}

void RecordingSource::AddNames(size_t first_stack) {
  std::vector<Snapshot::Module>& known = tables_.names.modules;
  std::vector<Snapshot::Module> modules = LoadedModules();
  for (Snapshot::Module& module : modules) {
    const auto is_same = [&](const Snapshot::Module& other) {
      return other.start == module.start && other.path == module.path;
    };
    if (std::none_of(known.begin(), known.end(), is_same)) known.push_back(module);
  }
  std::vector<uint64_t> addresses;
  for (size_t stack = first_stack; stack < tables_.names.stacks.size(); ++stack) {
    for (const uint64_t address : tables_.names.stacks[stack].return_addresses) {
      if (address >> 32 == Snapshot::kNamedFrame >> 32) continue;
      if (tables_.functions.try_emplace(address - 1).second) addresses.push_back(address - 1);
    }
  }
  const std::vector<Symbolizer::Name> names = ElfSymbolizer().Symbolize(modules, addresses);
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (names[i].name.empty()) {
      tables_.functions.erase(addresses[i]);
    } else {
      tables_.functions[addresses[i]] = {std::string(names[i].system_name), std::string(names[i].name)};
    }
  }
}

void RecordingSource::AddThreads() {
  const uint32_t count = EventLog::ThreadCount();
  while (tables_.threads.size() < count) {
    int32_t id = 0;
    // A thread that is taking its number sets its id next.
    for (Backoff backoff; id == 0; backoff.Wait()) {
      id = EventLog::ThreadOf(static_cast<uint16_t>(tables_.threads.size()));
    }
    tables_.threads.push_back({id, NameInProc("self/task/" + std::to_string(id))});
  }
}

void RecordingSource::Translate(RecordedEvent* event) {
  if (event->kind == RecordedKind::kResetPeak || event->kind == RecordedKind::kFailed) {
    event->id = uint64_t{IndexOf(static_cast<DeviceId>(event->id / kMemorySpaceCount))} * kMemorySpaceCount +
                event->id % kMemorySpaceCount;
  } else if (event->kind == RecordedKind::kMark) {
    const auto [index, is_new] = mark_index_.try_emplace(event->id, static_cast<uint32_t>(tables_.marks.size()));
    if (is_new) tables_.marks.push_back({marks_.Name(event->id)});
    event->id = index->second;
  } else if (event->kind == RecordedKind::kTags) {
    while (tables_.tag_sets.size() <= event->id) {
      tables_.tag_sets.push_back(TagsOf(static_cast<TagSetId>(tables_.tag_sets.size())));
    }
  }
}

DriverSample RecordingSource::Sample() {
  DriverSample sample;
  sample.time = MonotonicNanos();
  for (uint32_t index = 0; index < devices_.size(); ++index) {
    const DeviceStats stats = profiler_.Stats(devices_[index], MemorySpace::kDevice);
    sample.devices.push_back({index, stats.driver_bytes_in_use, stats.bytes_free, stats.bytes_limit,
                              stats.largest_free_block_bytes, stats.driver_cache_bytes});
  }
  long pages = 0;
  if (std::sscanf(ReadProcFile("/proc/self/statm").c_str(), "%*d %ld", &pages) == 1) {
    sample.host_resident_bytes = int64_t{pages} * sysconf(_SC_PAGESIZE);
  }
  sample.counters = profiler_.names.counters.All();
  return sample;
}

bool RecordingSource::ListLive(const ProfilerImpl& profiler, size_t max, std::vector<RecordingTables::Live>* live) {
  // Memory is allocated before the table is read: its locks are held while it is read.
  for (size_t space = 1024;; space *= 2) {
    live->clear();
    live->reserve(std::min(space, max));
    size_t count = 0;
    profiler.live().ForEach([&](uint64_t id, const LiveRecord& record) {
      if (++count <= live->capacity()) live->push_back({id, record.site, record.bytes});
    });
    if (count <= live->capacity()) return true;
    if (space >= max) return false;
    while (space < count) space *= 2;
  }
}

// --- Live buffers ---

void LiveResolver::AddEvent(const RecordedEvent& event) {
  if (!HasBuffer(event.kind)) return;
  First& first = first_[event.id];
  if (event.time >= first.time) return;
  const bool was_live = event.kind == RecordedKind::kFree || event.kind == RecordedKind::kMoveFrom;
  first = {event.time, was_live, event.site, event.bytes};
}

std::vector<RecordingTables::Live> LiveResolver::Resolve(const std::vector<RecordingTables::Live>& listed) const {
  std::vector<RecordingTables::Live> live;
  for (const RecordingTables::Live& one : listed) {
    if (first_.count(one.id) == 0) live.push_back(one);
  }
  for (const auto& [id, first] : first_) {
    if (first.was_live) live.push_back({id, first.site, first.bytes});
  }
  std::sort(live.begin(), live.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return live;
}

void UndoEvent(const SiteTable& sites, const RecordedEvent& event, const RecordedEvent* next, LedgerState* state) {
  if (event.site == kNoRecordedSite) return;
  SiteTotals& site = state->sites[event.site];
  const SiteBooks& books = sites.At(event.site).books;
  AccountTotals& account = state->accounts[books.account];
  PoolTotals& pool = state->pools[books.pool];
  const auto change = [&](int64_t alloc_objects, int64_t alloc_bytes, int64_t objects, int64_t bytes) {
    site.alloc_objects -= alloc_objects;
    site.alloc_bytes -= alloc_bytes;
    site.inuse_objects -= objects;
    site.inuse_bytes -= bytes;
    if (books.is_segment != 0) {
      pool.bytes_reserved -= bytes;
      pool.segments -= objects;
    }
    if (books.is_from_pool()) {
      state->pools[static_cast<size_t>(books.book() - kAccounts)].bytes_allocated -= bytes;
    } else {
      account.bytes_in_use -= bytes;
    }
  };
  const int64_t bytes = event.bytes;
  switch (event.kind) {
    case RecordedKind::kAlloc:
      --account.num_allocs;
      --account.num_live;
      return change(1, bytes, 1, bytes);
    case RecordedKind::kFree:
      ++account.num_live;
      return change(0, 0, -1, -bytes);
    case RecordedKind::kMoveFrom: {
      change(-1, -bytes, -1, -bytes);
      // The kMoveTo that follows counted the larger of both sizes; it was undone with its own size.
      if (next == nullptr || next->bytes >= bytes) return;
      state->sites[next->site].alloc_bytes -= bytes - next->bytes;
      return;
    }
    case RecordedKind::kMoveTo:
      return change(1, bytes, 1, bytes);
    case RecordedKind::kFailed:
    case RecordedKind::kTags:
    case RecordedKind::kResetPeak:
    case RecordedKind::kMark:
      return;
  }
}

}  // namespace hbmprof::internal
