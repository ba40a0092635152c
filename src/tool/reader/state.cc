#include "src/tool/reader/state.h"

#include "src/base/saturating.h"
#include "src/core/generations.h"
#include "src/core/pool_samples.h"

namespace hbmprof::internal {
namespace {

using tool::AddTo;
using tool::Minus;
using tool::Plus;

class RecordedNames : public Symbolizer {
 public:
  explicit RecordedNames(const RecordingTables& tables) : tables_(tables) {}

  std::vector<Name> Symbolize(const std::vector<Snapshot::Module>&, const std::vector<uint64_t>& addresses) override {
    std::vector<Name> names;
    names.reserve(addresses.size());
    for (const uint64_t address : addresses) {
      const auto found = tables_.functions.find(address);
      names.push_back(found == tables_.functions.end() ? Name{} : Name{found->second.system_name, found->second.name});
    }
    return names;
  }

 private:
  const RecordingTables& tables_;
};

// Sets the values of the driver to those of `sample`. What it lacks is not known: the values of the start are removed,
// except the limit, which does not change.
void SetDriverValues(const DriverSample::Device& sample, DeviceStats* stats) {
  stats->driver_bytes_in_use = sample.bytes_in_use;
  stats->bytes_free = sample.bytes_free;
  stats->largest_free_block_bytes = sample.largest_free_block_bytes;
  stats->driver_cache_bytes = sample.cache_bytes;
  stats->driver_peak_bytes_in_use = std::nullopt;
  if (sample.bytes_limit.has_value()) stats->bytes_limit = sample.bytes_limit;
  stats->unaccounted = std::nullopt;
  if (sample.bytes_in_use.has_value()) stats->unaccounted = Unaccounted(sample, stats->bytes_in_use);
}

}  // namespace

std::unique_ptr<Symbolizer> NamesOfRecording(const RecordingTables& tables) {
  return std::make_unique<RecordedNames>(tables);
}

std::optional<uint64_t> AddressOfBuffer(uint64_t id) {
  constexpr uint64_t kBlock = uint64_t{1} << 63;
  constexpr uint64_t kNameSpace = uint64_t{63} << 57;
  constexpr uint64_t kPool = uint64_t{127} << 50;  // of a block: the number of its pool
  if ((id & kBlock) != 0) return id & ~(kBlock | kPool);
  if ((id & kNameSpace) != 0) return std::nullopt;
  return id;
}

size_t AccountOf(const Snapshot::Sample& site) {
  return size_t{site.device} * kMemorySpaceCount + static_cast<size_t>(SpaceOf(site.kind));
}

int64_t Unaccounted(const DriverSample::Device& sample, int64_t in_use) {
  return Minus(Minus(*sample.bytes_in_use, in_use), std::max<int64_t>(sample.cache_bytes.value_or(0), 0));
}

RecordedPools::RecordedPools(const RecordingTables& tables) {
  std::map<std::pair<uint32_t, std::string_view>, uint32_t> numbers;
  const auto number_of = [&](uint32_t device, const std::string& name) {
    const auto [number, is_new] = numbers.try_emplace({device, name}, static_cast<uint32_t>(pools_.size()));
    if (is_new) pools_.push_back({device, name});
    return number->second;
  };
  for (uint32_t device = 0; device < tables.names.devices.size(); ++device) {
    for (const PoolStats& pool : tables.names.devices[device].pools) number_of(device, pool.name);
  }
  for (size_t i = 0; i < tables.sites.size(); ++i) {
    const Snapshot::Sample& site = tables.sites[i];
    const std::vector<std::string>& names = tables.names.allocators;
    from_.push_back(tables.site_pools[i] == 0 ? kNone : number_of(site.device, names[tables.site_pools[i] - 1]));
    segment_of_.push_back(site.kind != MemoryKind::kPool ? kNone : number_of(site.device, names[site.allocator]));
  }
}

RecordingState::RecordingState(const RecordingTables& tables)
    : tables_(tables),
      sites_(tables.sites.size()),
      accounts_(tables.names.devices.size() * kMemorySpaceCount),
      time_(tables.start_time),
      numbers_(tables),
      pools_(numbers_.all().size()) {
  for (size_t account = 0; account < accounts_.size(); ++account) {
    const DeviceStats& stats = tables.names.devices[account / kMemorySpaceCount].spaces[account % kMemorySpaceCount];
    Account& totals = accounts_[account];
    totals.in_use = stats.bytes_in_use;
    totals.peak = stats.peak_bytes_in_use;
    totals.num_allocs = stats.num_allocs;
    totals.num_live = stats.num_live;
    totals.largest_alloc = stats.largest_alloc_size;
  }
  for (size_t i = 0; i < pools_.size(); ++i) {
    const RecordedPools::Pool& pool = numbers_.all()[i];
    pools_[i].stats.name = pool.name;
    for (const PoolStats& stats : tables.names.devices[pool.device].pools) {
      if (stats.name == pool.name) pools_[i].stats = stats;
    }
  }
  for (size_t i = 0; i < sites_.size(); ++i) {
    const Snapshot::Sample& sample = tables.sites[i];
    Site& site = sites_[i];
    site.values = {sample.alloc_objects, sample.alloc_bytes, sample.inuse_objects, sample.inuse_bytes};
    site.peak = {sample.peak_objects, sample.peak_bytes, 0};
    site.pool_peak = {sample.pool_peak_objects, sample.pool_peak_bytes, 0};
    site.account = static_cast<uint32_t>(AccountOf(sample));
  }
  live_.reserve(tables.live.size());
  for (const RecordingTables::Live& live : tables.live) live_[live.id] = {live.site, live.bytes, 0};
}

void RecordingState::BeginPeak(size_t account) {
  accounts_[account].peak = accounts_[account].in_use;
  accounts_[account].peak_buffer = allocated_;
  ++accounts_[account].peaks;
}

void RecordingState::MovePeak(int64_t bytes, uint32_t to) {
  const auto add = [this](uint32_t site, int64_t objects, int64_t bytes_at_peak) {
    AddTo(sites_[site].peak.objects, objects);
    AddTo(sites_[site].peak.bytes, bytes_at_peak);
  };
  add(moved_.site, -1, -bytes);
  add(to, 1, bytes);
}

void RecordingState::EndChange() {
  if (changed_account_ != SIZE_MAX && accounts_[changed_account_].in_use > accounts_[changed_account_].peak) {
    BeginPeak(changed_account_);
  }
  if (changed_pool_ != RecordedPools::kNone) {
    Pool& pool = pools_[changed_pool_];
    if (pool.stats.bytes_allocated > pool.stats.peak_bytes_allocated) {
      pool.stats.peak_bytes_allocated = pool.stats.bytes_allocated;
      ++pool.peaks;
      // The segment that made the account's peak is shown with the blocks that it was made for.
      Account& account = accounts_[changed_account_];
      if (account.in_use == account.peak) ++account.peaks;
    }
  }
  changed_account_ = SIZE_MAX;
  changed_pool_ = RecordedPools::kNone;
  allocated_.reset();
}

std::optional<int64_t> RecordingState::Remove(const RecordedEvent& event) {
  if (std::optional<uint64_t>& buffer = accounts_[sites_[event.site].account].peak_buffer; buffer == event.id) {
    buffer.reset();
  }
  const auto found = live_.find(event.id);
  if (found == live_.end() || found->second.site != event.site) {
    return tables_.live_is_complete ? std::nullopt : std::make_optional<int64_t>(0);
  }
  const int64_t time = found->second.time;
  live_.erase(found);
  return time;
}

int64_t RecordingState::SecondsAfterStart(int64_t time) const {
  constexpr int64_t kSecond = 1'000'000'000;
  return time <= tables_.start_time ? 0 : std::max<int64_t>(Minus(time, tables_.start_time), 0) / kSecond;
}

void RecordingState::CountFreed(uint32_t site, int64_t birth, int64_t time) {
  // The age in whole seconds, which a buffer that was born in the middle of a second reaches in the middle of another.
  const int64_t age = Minus(time, std::max(birth, tables_.start_time));
  const int64_t seconds = SecondsAfterStart(Plus(age, tables_.start_time));
  if (seconds == 0) return;
  const size_t octave = std::min(63 - __builtin_clzll(static_cast<uint64_t>(seconds)), kAgeOctaves - 1);
  std::vector<int64_t>& counts = sites_[site].freed_by_octave;
  if (counts.size() <= octave) counts.resize(octave + 1);
  AddTo(counts[octave], 1);
}

std::vector<std::vector<Snapshot::Sample::Born>> RecordingState::Births(int64_t uptime_seconds) const {
  using Born = Snapshot::Sample::Born;
  const int log2 = BirthClassLog2(uptime_seconds);
  const auto class_of = [](const Born& born, uint32_t birth_class) { return born.birth_class < birth_class; };
  std::vector<std::vector<Born>> births(sites_.size());
  for (const auto& [id, buffer] : live_) {
    const auto seconds = std::min(SecondsAfterStart(buffer.time), uptime_seconds);
    const auto birth_class = static_cast<uint32_t>(seconds >> log2);
    std::vector<Born>& site = births[buffer.site];
    auto born = std::lower_bound(site.begin(), site.end(), birth_class, class_of);
    if (born == site.end() || born->birth_class != birth_class) born = site.insert(born, {birth_class, 0, 0});
    ++born->objects;
    AddTo(born->bytes, buffer.bytes);
  }
  for (size_t i = 0; i < sites_.size(); ++i) {
    const Values& values = sites_[i].values;
    std::vector<Born>& site = births[i];
    int64_t objects = values.inuse_objects;
    int64_t bytes = values.inuse_bytes;
    for (const Born& born : site) {
      objects = Minus(objects, born.objects);
      bytes = Minus(bytes, born.bytes);
    }
    if (objects == 0 && bytes == 0) continue;
    // Live buffers that no event names are older than the recording. Others differ only by the order of events.
    const bool are_old = !tables_.live_is_complete && objects > 0;
    const auto youngest = static_cast<uint32_t>(uptime_seconds >> log2);
    if (site.empty() || (are_old && site[0].birth_class != 0)) {
      site.insert(site.begin(), {are_old ? 0 : youngest, 0, 0});
    }
    Born& rest = are_old ? site.front() : site.back();
    AddTo(rest.objects, objects);
    AddTo(rest.bytes, bytes);
  }
  return births;
}

RecordingState::Account& RecordingState::Change(uint32_t number, const Values& by) {
  Site& site = sites_[number];
  Account& account = accounts_[site.account];
  changed_account_ = site.account;
  site.peak = site.peak.Of(site.values, account.peaks);
  const uint32_t from = numbers_.from(number);
  if (from != RecordedPools::kNone) {
    changed_pool_ = from;
    site.pool_peak = site.pool_peak.Of(site.values, pools_[from].peaks);
  }
  AddTo(site.values.alloc_objects, by.alloc_objects);
  site.values.alloc_bytes = SaturatingSum(site.values.alloc_bytes, by.alloc_bytes);
  AddTo(site.values.inuse_objects, by.inuse_objects);
  AddTo(site.values.inuse_bytes, by.inuse_bytes);
  if (const uint32_t segment_of = numbers_.segment_of(number); segment_of != RecordedPools::kNone) {
    PoolStats& pool = pools_[segment_of].stats;
    AddTo(pool.bytes_reserved, by.inuse_bytes);
    pool.peak_bytes_reserved = std::max(pool.peak_bytes_reserved, pool.bytes_reserved);
  }
  if (from != RecordedPools::kNone) {
    AddTo(pools_[from].stats.bytes_allocated, by.inuse_bytes);
  } else {
    AddTo(account.in_use, by.inuse_bytes);
    account.change_time = time_;
  }
  return account;
}

void RecordingState::Apply(const RecordedEvent& event) {
  time_ = event.time;
  const int64_t bytes = event.bytes;
  switch (event.kind) {
    case RecordedKind::kAlloc: {
      Account& account = Change(event.site, {1, bytes, 1, bytes});
      AddTo(account.num_allocs, 1);
      AddTo(account.num_live, 1);
      account.largest_alloc = std::max(account.largest_alloc, bytes);
      live_[event.id] = {event.site, bytes, event.time};
      allocated_ = event.id;
      break;
    }
    case RecordedKind::kFree:
      AddTo(Change(event.site, {0, 0, -1, -bytes}).num_live, -1);
      if (const std::optional<int64_t> birth = Remove(event)) CountFreed(event.site, *birth, event.time);
      break;
    case RecordedKind::kMoveFrom:
      Change(event.site, {-1, -bytes, -1, -bytes});
      has_moved_peak_ = accounts_[sites_[event.site].account].peak_buffer == event.id;
      moved_ = {event.site, bytes, Remove(event).value_or(event.time)};
      break;
    case RecordedKind::kMoveTo: {
      Account& account = Change(event.site, {1, std::max(moved_.bytes, bytes), 1, bytes});
      account.largest_alloc = std::max(account.largest_alloc, bytes);
      live_[event.id] = {event.site, bytes, moved_.time};
      if (std::exchange(has_moved_peak_, false) && bytes == moved_.bytes) MovePeak(bytes, event.site);
      break;
    }
    case RecordedKind::kResetPeak:
      BeginPeak(event.id);
      if (event.id % kMemorySpaceCount != static_cast<size_t>(MemorySpace::kDevice)) break;
      for (size_t i = 0; i < pools_.size(); ++i) {
        if (numbers_.all()[i].device != event.id / kMemorySpaceCount) continue;
        Pool& pool = pools_[i];
        pool.stats.peak_bytes_allocated = pool.stats.bytes_allocated;
        pool.stats.peak_bytes_reserved = pool.stats.bytes_reserved;
        ++pool.peaks;
      }
      break;
    case RecordedKind::kFailed:
    case RecordedKind::kTags:
    case RecordedKind::kMark:
      break;
  }
  if (!event.is_continued) EndChange();
}

Snapshot RecordingState::ToSnapshot(std::optional<int64_t> time, const DriverSample* sample,
                                    std::vector<uint32_t>* sample_sites) const {
  if (sample_sites != nullptr) sample_sites->clear();
  Snapshot snapshot = tables_.names;
  snapshot.time_unix_nanos = Plus(tables_.start_unix_nanos, Minus(time.value_or(time_), tables_.start_time));
  if (sample != nullptr) snapshot.counters = sample->counters;
  snapshot.uptime_seconds = SecondsAfterStart(time.value_or(time_));
  snapshot.birth_class_log2 = BirthClassLog2(*snapshot.uptime_seconds);
  std::vector<std::vector<Snapshot::Sample::Born>> births = Births(*snapshot.uptime_seconds);

  for (size_t account = 0; account < accounts_.size(); ++account) {
    DeviceStats& stats = snapshot.devices[account / kMemorySpaceCount].spaces[account % kMemorySpaceCount];
    stats.bytes_in_use = accounts_[account].in_use;
    stats.peak_bytes_in_use = accounts_[account].peak;
    stats.num_allocs = accounts_[account].num_allocs;
    stats.num_live = accounts_[account].num_live;
    stats.largest_alloc_size = accounts_[account].largest_alloc;
    AddTo(snapshot.tracker.live_records, stats.num_live);
  }
  for (Snapshot::Device& device : snapshot.devices) device.pools.clear();
  for (size_t i = 0; i < pools_.size(); ++i) {
    snapshot.devices[numbers_.all()[i].device].pools.push_back(pools_[i].stats);
  }
  std::vector<uint32_t> site_pools;  // by sample
  for (size_t i = 0; i < sites_.size(); ++i) {
    const Site& site = sites_[i];
    Snapshot::Sample values = tables_.sites[i];
    values.alloc_objects = site.values.alloc_objects;
    values.alloc_bytes = site.values.alloc_bytes;
    values.inuse_objects = site.values.inuse_objects;
    values.inuse_bytes = site.values.inuse_bytes;
    const AtPeak peak = site.peak.Of(site.values, accounts_[site.account].peaks);
    values.peak_objects = peak.objects;
    values.peak_bytes = peak.bytes;
    if (const uint32_t from = numbers_.from(static_cast<uint32_t>(i)); from != RecordedPools::kNone) {
      const AtPeak pool_peak = site.pool_peak.Of(site.values, pools_[from].peaks);
      values.pool_peak_objects = pool_peak.objects;
      values.pool_peak_bytes = pool_peak.bytes;
    }
    values.born = std::move(births[i]);
    values.freed_by_octave = site.freed_by_octave;
    const bool is_empty = values.alloc_objects == 0 && values.alloc_bytes == 0 && values.inuse_objects == 0 &&
                          values.inuse_bytes == 0 && values.peak_objects == 0 && values.peak_bytes == 0 &&
                          values.pool_peak_objects == 0 && values.pool_peak_bytes == 0;
    if (is_empty) continue;
    snapshot.samples.push_back(std::move(values));
    site_pools.push_back(tables_.site_pools[i]);
    if (sample_sites != nullptr) sample_sites->push_back(static_cast<uint32_t>(i));
  }
  snapshot.tracker.sites = static_cast<int64_t>(snapshot.samples.size());
  const auto frame_of = [&snapshot](const std::string& text) {
    snapshot.named_frames.push_back({text, "", 0, 0});
    return Snapshot::kNamedFrame | (snapshot.named_frames.size() - 1);
  };
  SeparatePools(site_pools, frame_of, &snapshot);
  for (size_t i = site_pools.size(); sample_sites != nullptr && i < snapshot.samples.size(); ++i) {
    const Snapshot::Sample& idle = snapshot.samples[i];
    const auto is_same = [&](const RecordedPools::Pool& pool) {
      return pool.device == idle.device && pool.name == snapshot.allocators[idle.allocator];
    };
    const auto pool = absl::c_find_if(numbers_.all(), is_same);
    sample_sites->push_back(static_cast<uint32_t>(sites_.size() + static_cast<size_t>(pool - numbers_.all().begin())));
  }

  constexpr auto kOfDevice = static_cast<size_t>(MemorySpace::kDevice);
  for (uint32_t device = 0; device < snapshot.devices.size(); ++device) {
    const Account& account = accounts_[device * kMemorySpaceCount + kOfDevice];
    DriverSample::Device said;
    for (size_t i = 0; sample != nullptr && i < sample->devices.size(); ++i) {
      if (sample->devices[i].device == device && account.change_time <= sample->time) said = sample->devices[i];
    }
    SetDriverValues(said, &snapshot.devices[device].spaces[kOfDevice]);
  }
  return snapshot;
}

}  // namespace hbmprof::internal
