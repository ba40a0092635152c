// See advise.h.
//
// The first pass surveys the recording: lifetimes, sizes, growth, peaks. The second pass replays it through the changes
// that the survey suggests. The third pass replays it without the buffers that are freed soon after a peak.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "hbmprof/allocation.h"
#include "src/tool/advise.h"
#include "src/tool/advise_pool.h"
#include "src/tool/judge.h"
#include "src/tool/site_totals.h"
#include "src/tool/text.h"

namespace hbmprof::tool {
namespace {

using internal::DriverSample;
using internal::RecordedEvent;
using internal::RecordedKind;
using internal::RecordingReader;
using internal::RecordingTables;

// Thresholds. docs/advise.md lists them.
constexpr int64_t kMinCalls = 1000;            // short-lived buffers, pairs
constexpr int64_t kMinCallPercent = 10;        // of all calls of the driver
constexpr double kMinPerSecond = 10;           // short-lived buffers
constexpr int64_t kShortLivedPart = 100;       // short-lived: up to this part of the recording
constexpr int64_t kMinPeakPercent = 5;         // bytes saved, of the peak
constexpr int64_t kMinLeakPercent = 1;         // growth, of the peak
constexpr int64_t kPoolPeakPercent = 10;       // that a pool may add to the peak
constexpr int64_t kPoolPeakBytes = 8 << 20;    // likewise, if it is more
constexpr int64_t kFragmentedPercent = 50;     // of the free memory that is not in the largest free block
constexpr int64_t kMinFragmentedSamples = 10;  // percent
constexpr int64_t kMinFreePercent = 5;         // free memory, of the limit
constexpr int64_t kHighPercent = 80;           // of the peak: more than this is high
constexpr int64_t kShortPeakPercent = 5;       // of the recording: a peak is short if use is high for up to this time
constexpr int64_t kMinFallPercent = 10;        // of the peak, if buffers are freed earlier
constexpr uint32_t kReuseWindow = 4;  // events of the thread between an allocation and the free of the old buffer
constexpr size_t kShownSites = 5;
constexpr size_t kCoursePoints = 24;
constexpr size_t kMaxCandidates = 16;

int64_t PercentOf(int64_t percent, int64_t value) { return value / 100 * percent + value % 100 * percent / 100; }

std::string Bytes(int64_t bytes) { return FormatValue(bytes, "bytes"); }

std::string Nanos(int64_t nanos) {
  const double value = static_cast<double>(nanos);
  char text[32];
  if (nanos < 1000) {
    std::snprintf(text, sizeof(text), "%.0f ns", value);
  } else if (nanos < 1000000) {
    std::snprintf(text, sizeof(text), "%.1f us", value / 1e3);
  } else if (nanos < 1000000000) {
    std::snprintf(text, sizeof(text), "%.1f ms", value / 1e6);
  } else {
    std::snprintf(text, sizeof(text), "%.1f s", value / 1e9);
  }
  return text;
}

int PowerOf(int64_t value) {
  int power = 0;
  while (power < 62 && (int64_t{1} << power) < value) ++power;
  return power;
}

struct Buffer {
  uint32_t site = 0;
  int64_t bytes = 0;
  int64_t time = 0;      // of the allocation
  int64_t ordinal = -1;  // of the allocation's event; -1: live since before the recording
  int64_t extra = -1;    // of the pass
};

// One function on one account.
struct Group {
  uint32_t site = 0;  // one of its sites, for the names
  size_t account = 0;
  int64_t calls = 0;        // allocations from the driver
  int64_t short_lived = 0;  // of these
  int64_t short_bytes = 0;
  int64_t live = 0;
  int64_t idle = 0;          // bytes of segments that no block covers
  int64_t idle_at_peak = 0;  // when most bytes are in use without the idle ones
  int64_t kept_count = 0;    // allocated in the recording and live at its end; blocks of pools included
  int64_t kept_bytes = 0;
  std::array<int64_t, 63> lifetimes{};  // of freed buffers, by power of two of nanoseconds
};

// A change of the program that is replayed: the bytes in use are those of the recording plus `extra`.
struct Simulation {
  bool is_used = false;
  int64_t extra = 0;
  int64_t peak = 0;
  int64_t calls_saved = 0;

  void Check(int64_t in_use) { peak = std::max(peak, in_use + extra); }
};

struct PoolSimulation : Simulation {
  int64_t limit = 0;  // the largest size that the pool serves
  int64_t live = 0;   // requested bytes
  std::optional<CachingPool> pool;
};

struct SizeClass {
  int64_t short_lived = 0;
  int64_t live_bytes = 0;
  int64_t max_live_bytes = 0;
};

struct Account {
  int64_t in_use = 0;
  int64_t calls = 0;
  int64_t peak = 0;
  int64_t peak_time = 0;
  int64_t peak_ordinal = -1;
  // Survey.
  int64_t short_lived = 0;
  int64_t reallocated = 0;
  int64_t overlaps = 0;
  std::array<SizeClass, 63> sizes{};
  std::map<int64_t, int64_t> size_counts;  // of short-lived buffers
  // Replays.
  Simulation kept;      // churning functions keep their buffers
  Simulation held;      // buffers are not freed before an equal allocation
  Simulation no_idle;   // other buffers use the idle bytes of pools
  Simulation in_place;  // buffers do not overlap with the ones that they replace
  std::vector<PoolSimulation> pools;
  // High use around the peak.
  int64_t high_nanos = 0;
  int64_t high_since = -1;  // -1: use is not high now
  int64_t peak_begin = 0;   // since when use was high at the peak
  bool peak_seen = false;
  absl::flat_hash_map<uint64_t, Buffer> early;  // live at the peak, and allocated before use became high
  // By group: those of `early` that are freed in the recording.
  struct Freed {
    int64_t bytes = 0;
    int64_t count = 0;
    int64_t last_time = 0;
  };
  std::map<uint32_t, Freed> freed_early;
};

struct Fragmentation {
  size_t device = 0;
  int64_t samples = 0;
  int64_t fragmented = 0;
  int64_t failed = 0;  // allocations that failed although there were enough free bytes
  const DriverSample* worst_sample = nullptr;
  int64_t free_bytes = 0;  // at that sample
  int64_t largest = 0;
  // The addresses that were in use at any time.
  uint64_t lowest = UINT64_MAX;
  uint64_t highest = 0;
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> live;  // at the sample: begin to (end, site)
};

class Analysis {
 public:
  Analysis(RecordingReader& recording, const RecordedStacks& stacks, Progress& progress)
      : recording_(recording), tables_(recording.tables()), stacks_(stacks), progress_(progress) {
    accounts_.resize(tables_.names.devices.size() * kMemorySpaceCount);
    fragmentation_.resize(tables_.names.devices.size());
    for (size_t d = 0; d < fragmentation_.size(); ++d) fragmentation_[d].device = d;
    start_ = tables_.start_time;
    nanos_ = std::max<int64_t>(recording.end_time() - start_, 1);
    FindGroups();
  }

  AdviceReport Run() {
    ReadDriverSamples();
    Survey();
    PlanReplays();
    Replay();
    AdviceReport report;
    report.seconds = static_cast<double>(nanos_) / 1e9;
    AdviseNeverFreed(report);
    for (const Fragmentation& device : fragmentation_) AdviseFragmentation(device, report);
    AdvisePeaks(report);
    for (size_t a = 0; a < accounts_.size(); ++a) {
      const Account& account = accounts_[a];
      if (account.peak == 0 && account.calls == 0) continue;
      report.accounts.push_back({AccountName(tables_, a), account.peak,
                                 static_cast<double>(account.peak_time - start_) / 1e9, account.calls});
      AdviseReuse(a, report);
      AdviseChurn(a, report);
      AdviseReallocated(a, report);
      AdvisePool(a, report);
    }
    std::stable_sort(report.advice.begin(), report.advice.end(),
                     [](const Advice& a, const Advice& b) { return a.kind < b.kind; });
    return report;
  }

 private:
  using Live = absl::flat_hash_map<uint64_t, Buffer>;
  using GroupPair = std::pair<uint32_t, uint32_t>;

  bool IsBlock(uint32_t site) const { return tables_.site_kinds[site] == RecordingTables::SiteKind::kBlock; }
  // The first block of a segment has the segment's address, so a segment needs another key.
  uint64_t KeyOf(uint64_t id, uint32_t site) const {
    return tables_.site_kinds[site] == RecordingTables::SiteKind::kSegment ? id | uint64_t{1} << 63 : id;
  }
  Group& GroupOf(uint32_t site) { return groups_[group_of_[site]]; }
  Account& AccountOf(uint32_t site) { return accounts_[groups_[group_of_[site]].account]; }

  void FindGroups() {
    std::map<std::pair<std::string, size_t>, uint32_t> numbers;
    group_of_.resize(tables_.sites.size());
    for (uint32_t site = 0; site < tables_.sites.size(); ++site) {
      const Snapshot::Sample& sample = tables_.sites[site];
      const size_t account = tool::AccountOf(sample);
      const auto [entry, is_new] = numbers.try_emplace({stacks_.own_frame(sample.stack).name, account}, groups_.size());
      if (is_new) {
        groups_.emplace_back();
        groups_.back().site = site;
        groups_.back().account = account;
      }
      group_of_[site] = entry->second;
    }
  }

  Advice::Site SiteOf(uint32_t group, int64_t bytes, int64_t count) const {
    const RecordedStacks::Frame& frame = stacks_.own_frame(tables_.sites[groups_[group].site].stack);
    return {frame.name, frame.Position(), bytes, count};
  }

  // Keeps the sites with the most bytes, or with the highest counts if there are no bytes.
  static void Shorten(std::vector<Advice::Site>& sites) {
    std::stable_sort(sites.begin(), sites.end(), [](const Advice::Site& a, const Advice::Site& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.count > b.count;
    });
    if (sites.size() > kShownSites) sites.resize(kShownSites);
  }

  // Reads all events. Calls begin(key, buffer, event) when a buffer begins, end(key, buffer, event) when it ends, and
  // instant(event) after each complete change. A kMoveFrom ends a buffer and a kMoveTo begins one.
  template <typename Begin, typename End, typename Instant>
  void ReadEvents(Live& live, const Begin& begin, const End& end, const Instant& instant) {
    for (const RecordingTables::Live& buffer : tables_.live) {
      live[KeyOf(buffer.id, buffer.site)] = {buffer.site, buffer.bytes, start_};
    }
    recording_.Rewind();
    RecordedEvent event;
    constexpr int64_t kStep = 1 << 16;
    for (ordinal_ = 0; recording_.Next(&event); ++ordinal_) {
      if (ordinal_ % kStep == kStep - 1) progress_.Advance(kStep);
      switch (event.kind) {
        case RecordedKind::kAlloc:
        case RecordedKind::kUndoFree:
        case RecordedKind::kMoveTo: {
          Buffer& buffer = live[KeyOf(event.id, event.site)];
          buffer = {event.site, event.bytes, event.time, ordinal_};
          begin(KeyOf(event.id, event.site), buffer, event);
          break;
        }
        case RecordedKind::kFree:
        case RecordedKind::kMoveFrom: {
          const uint64_t key = KeyOf(event.id, event.site);
          const auto found = live.find(key);
          if (found == live.end()) {
            end(key, Buffer{event.site, event.bytes, start_}, event);
          } else {
            const Buffer buffer = found->second;
            live.erase(found);
            end(key, buffer, event);
          }
          break;
        }
        default:
          break;
      }
      instant(event);
    }
  }

  // --- The survey ---------------------------------------------------------------------------------------------------

  void ReadDriverSamples() {
    for (const DriverSample& sample : recording_.samples()) {
      for (const DriverSample::Device& device : sample.devices) {
        if (device.device >= fragmentation_.size() || !device.bytes_free.has_value() ||
            !device.largest_free_block_bytes.has_value()) {
          continue;
        }
        Fragmentation& result = fragmentation_[device.device];
        ++result.samples;
        const int64_t free = *device.bytes_free;
        const int64_t largest = *device.largest_free_block_bytes;
        const int64_t limit = LimitOf(device.device, &device).value_or(free);
        const bool is_fragmented =
            free - largest > PercentOf(kFragmentedPercent, free) && free >= PercentOf(kMinFreePercent, limit);
        if (!is_fragmented) continue;
        ++result.fragmented;
        if (result.worst_sample != nullptr && free - largest <= result.free_bytes - result.largest) continue;
        result.worst_sample = &sample;
        result.free_bytes = free;
        result.largest = largest;
      }
    }
  }

  std::optional<int64_t> LimitOf(size_t device, const DriverSample::Device* sample = nullptr) const {
    if (sample != nullptr && sample->bytes_limit.has_value()) return sample->bytes_limit;
    return tables_.names.devices[device].spaces[static_cast<int>(MemorySpace::kDevice)].bytes_limit;
  }

  // Counts a failed allocation if the driver reported enough free bytes in the last sample before it.
  void CountFailure(const RecordedEvent& event) {
    const std::vector<DriverSample>& samples = recording_.samples();
    while (next_sample_ < samples.size() && samples[next_sample_].time <= event.time) ++next_sample_;
    if (event.site >= tables_.sites.size() || next_sample_ == 0) return;
    for (const DriverSample::Device& device : samples[next_sample_ - 1].devices) {
      if (device.device != tables_.sites[event.site].device || !device.bytes_free.has_value()) continue;
      if (event.bytes <= *device.bytes_free) ++fragmentation_[device.device].failed;
    }
  }

  // Stores the bytes of each group in the points of its course up to `time`.
  void AddCourse(const SiteTotals& totals, int64_t time) {
    while (course_times_.size() < kCoursePoints) {
      const int64_t at = start_ + static_cast<int64_t>(static_cast<double>(nanos_) *
                                                       static_cast<double>(course_times_.size()) / (kCoursePoints - 1));
      if (at > time) return;
      course_times_.push_back(static_cast<double>(at - start_) / 1e9);
      for (uint32_t site = 0; site < tables_.sites.size(); ++site) {
        if (tables_.site_kinds[site] == RecordingTables::SiteKind::kSegment) continue;
        Course& course = courses_[group_of_[site]];
        course.in_use.resize(course_times_.size());
        course.allocated.resize(course_times_.size());
        course.in_use.back() += static_cast<double>(totals.site(site).bytes);
        course.allocated.back() += static_cast<double>(totals.site(site).allocated_bytes);
      }
    }
  }

  struct ThreadState {
    struct Recent {
      uint64_t key;
      Buffer buffer;
      uint32_t event;  // number of the event in the thread
    };
    uint32_t events = 0;
    std::deque<Recent> recent;  // the last allocations that are live
    // The last event, if it is the free of a buffer.
    bool is_free = false;
    Buffer freed;
    int64_t freed_ordinal = 0;
  };

  // Finds the pairs of buffers that kReuse and kReallocated are about. Both passes call it for the same events, so they
  // find the same pairs.
  std::optional<ThreadState::Recent> PairAtEnd(uint64_t key, const Buffer& old, int64_t time, ThreadState& thread) {
    std::optional<ThreadState::Recent> pair;
    auto& recent = thread.recent;
    while (!recent.empty() && thread.events - recent.front().event > kReuseWindow) recent.pop_front();
    for (auto entry = recent.begin(); entry != recent.end(); ++entry) {
      if (entry->key == key) {
        recent.erase(entry);
        break;
      }
    }
    for (auto entry = recent.begin(); entry != recent.end(); ++entry) {
      const Buffer& buffer = entry->buffer;
      const bool is_similar = old.bytes >= buffer.bytes && old.bytes / 2 <= buffer.bytes;
      if (!is_similar || old.ordinal >= buffer.ordinal || time - buffer.time > nanos_ / kShortLivedPart ||
          groups_[group_of_[old.site]].account != groups_[group_of_[buffer.site]].account) {
        continue;
      }
      pair = *entry;
      recent.erase(entry);
      break;
    }
    return pair;
  }

  bool IsReallocation(const ThreadState& thread, const Buffer& buffer) const {
    return thread.is_free && thread.freed.bytes == buffer.bytes &&
           groups_[group_of_[thread.freed.site]].account == groups_[group_of_[buffer.site]].account;
  }

  void SurveyBegin(uint64_t key, const Buffer& buffer, const RecordedEvent& event) {
    if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
    Group& group = GroupOf(buffer.site);
    Account& account = accounts_[group.account];
    ++group.live;
    if (event.kind != RecordedKind::kAlloc) return;
    ++group.calls;
    ++account.calls;
    SizeClass& size = account.sizes[static_cast<size_t>(PowerOf(buffer.bytes))];
    size.live_bytes += buffer.bytes;
    size.max_live_bytes = std::max(size.max_live_bytes, size.live_bytes);
    if (event.id >> 57 == 0 && SpaceOf(tables_.sites[buffer.site].kind) == MemorySpace::kDevice) {
      Fragmentation& device = fragmentation_[tables_.sites[buffer.site].device];
      device.lowest = std::min(device.lowest, event.id);
      device.highest = std::max(device.highest, event.id + static_cast<uint64_t>(buffer.bytes));
    }
    ThreadState& thread = threads_[event.thread];
    ++thread.events;
    if (IsReallocation(thread, buffer)) {
      held_[static_cast<size_t>(thread.freed_ordinal)] = true;
      ++account.reallocated;
      ++reallocated_[{group_of_[thread.freed.site], group_of_[buffer.site]}];
    }
    thread.is_free = false;
    thread.recent.push_back({key, buffer, thread.events});
  }

  void SurveyEnd(uint64_t key, const Buffer& buffer, const RecordedEvent& event) {
    if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
    Group& group = GroupOf(buffer.site);
    Account& account = accounts_[group.account];
    --group.live;
    if (event.kind != RecordedKind::kFree) return;
    ++account.calls;
    ThreadState& thread = threads_[event.thread];
    ++thread.events;
    if (const auto pair = PairAtEnd(key, buffer, event.time, thread); pair.has_value()) {
      overlaps_[static_cast<size_t>(pair->buffer.ordinal)] = true;
      ++account.overlaps;
    }
    thread.is_free = true;
    thread.freed = buffer;
    thread.freed_ordinal = ordinal_;
    if (buffer.ordinal < 0) return;
    SizeClass& size = account.sizes[static_cast<size_t>(PowerOf(buffer.bytes))];
    size.live_bytes -= buffer.bytes;
    CountLifetime(group, buffer.bytes, event.time - buffer.time);
  }

  void CountLifetime(Group& group, int64_t bytes, int64_t nanos) {
    ++group.lifetimes[static_cast<size_t>(PowerOf(nanos))];
    if (nanos > nanos_ / kShortLivedPart) return;
    ++group.short_lived;
    group.short_bytes += bytes;
    Account& account = accounts_[group.account];
    ++account.short_lived;
    ++account.sizes[static_cast<size_t>(PowerOf(bytes))].short_lived;
    constexpr size_t kMaxSizes = 4096;
    if (account.size_counts.size() < kMaxSizes || account.size_counts.count(bytes) > 0) ++account.size_counts[bytes];
  }

  void Survey() {
    held_.assign(static_cast<size_t>(recording_.event_count()), false);
    overlaps_.assign(static_cast<size_t>(recording_.event_count()), false);
    threads_.assign(std::max<size_t>(tables_.threads.size(), 1), {});
    courses_.resize(groups_.size());
    SiteTotals totals(tables_);
    Live live;
    for (size_t a = 0; a < accounts_.size(); ++a) accounts_[a].peak = totals.account(a).in_use;
    ReadEvents(
        live,
        [this](uint64_t key, const Buffer& buffer, const RecordedEvent& event) { SurveyBegin(key, buffer, event); },
        [this](uint64_t key, const Buffer& buffer, const RecordedEvent& event) { SurveyEnd(key, buffer, event); },
        [this, &totals](const RecordedEvent& event) {
          AddCourse(totals, event.time - 1);
          if (event.kind == RecordedKind::kAllocAndFree && !IsBlock(event.site) && event.bytes > 0) {
            GroupOf(event.site).calls += 1;
            AccountOf(event.site).calls += 2;
            CountLifetime(GroupOf(event.site), event.bytes, 0);
          }
          if (event.kind == RecordedKind::kFailed) CountFailure(event);
          if (!totals.Apply(event)) return;
          for (const size_t a : totals.changed_accounts()) {
            if (totals.account(a).peak <= accounts_[a].peak) continue;
            accounts_[a].peak = totals.account(a).peak;
            accounts_[a].peak_time = event.time;
            accounts_[a].peak_ordinal = ordinal_;
          }
        });
    AddCourse(totals, start_ + nanos_ + 1);
    for (Account& account : accounts_) {
      if (account.peak_ordinal < 0) account.peak_time = start_;
    }
    for (const auto& [key, buffer] : live) {
      if (buffer.ordinal < 0 || tables_.site_kinds[buffer.site] == RecordingTables::SiteKind::kSegment) continue;
      ++GroupOf(buffer.site).kept_count;
      GroupOf(buffer.site).kept_bytes += buffer.bytes;
    }
  }

  // --- The replays --------------------------------------------------------------------------------------------------

  bool IsMuch(int64_t pairs, const Account& account) const {
    return pairs >= kMinCalls && 2 * pairs >= PercentOf(kMinCallPercent, account.calls) &&
           static_cast<double>(pairs) >= kMinPerSecond * static_cast<double>(nanos_) / 1e9;
  }

  void PlanReplays() {
    churns_.assign(groups_.size(), false);
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      Account& account = accounts_[groups_[g].account];
      if (!IsMuch(groups_[g].short_lived, account)) continue;
      churns_[g] = true;
      account.kept.is_used = true;
    }
    for (Account& account : accounts_) {
      account.held.is_used = IsMuch(account.reallocated, account);
      account.in_place.is_used = account.overlaps > 0;
      if (!IsMuch(account.short_lived, account)) continue;
      // Sizes up to which 95 % and all of the short-lived buffers are served.
      for (const int64_t percent : {95, 100}) {
        int64_t sum = 0;
        int64_t live = 0;
        size_t power = 0;
        for (; power < account.sizes.size(); ++power) {
          sum += account.sizes[power].short_lived;
          live += account.sizes[power].max_live_bytes;
          if (sum >= account.short_lived - PercentOf(100 - percent, account.short_lived)) break;
        }
        const int64_t limit = int64_t{1} << power;
        if (!account.pools.empty() && account.pools.back().limit == limit) continue;
        account.pools.emplace_back();
        account.pools.back().limit = limit;
        constexpr int64_t kSegments = 8;
        account.pools.back().pool.emplace(live / kSegments);
      }
    }
  }

  void ReplayBegin(uint64_t key, Buffer& buffer, const RecordedEvent& event) {
    if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
    const uint32_t group = group_of_[buffer.site];
    Account& account = accounts_[groups_[group].account];
    const bool is_segment = tables_.site_kinds[buffer.site] == RecordingTables::SiteKind::kSegment;
    for (PoolSimulation& pool : account.pools) {
      if (is_segment || buffer.bytes > pool.limit) continue;
      pool.live += buffer.bytes;
      if (&pool == &account.pools[0]) {
        buffer.extra = pool.pool->Allocate(buffer.bytes);
      } else {
        second_addresses_[key] = pool.pool->Allocate(buffer.bytes);
      }
      if (event.kind == RecordedKind::kAlloc) ++pool.calls_saved;
      pool.extra = pool.pool->reserved_bytes() - pool.live;
    }
    if (event.kind != RecordedKind::kAlloc) return;
    if (churns_[group]) {
      int64_t& free = kept_[{group, buffer.bytes}];
      if (free > 0) {
        --free;
        account.kept.extra -= buffer.bytes;
        ++account.kept.calls_saved;
      }
    }
    ThreadState& thread = threads_[event.thread];
    ++thread.events;
    if (IsReallocation(thread, buffer) && held_[static_cast<size_t>(thread.freed_ordinal)]) {
      account.held.extra -= buffer.bytes;
      account.held.calls_saved += 2;
    }
    thread.is_free = false;
    thread.recent.push_back({key, buffer, thread.events});
    if (overlaps_[static_cast<size_t>(ordinal_)]) account.in_place.extra -= buffer.bytes;
  }

  void ReplayEnd(uint64_t key, const Buffer& buffer, const RecordedEvent& event) {
    if (IsBlock(buffer.site) || buffer.bytes <= 0) return;
    const uint32_t group = group_of_[buffer.site];
    Account& account = accounts_[groups_[group].account];
    for (PoolSimulation& pool : account.pools) {
      int64_t address = buffer.extra;
      if (&pool != &account.pools[0]) {
        const auto found = second_addresses_.find(key);
        address = found == second_addresses_.end() ? -1 : found->second;
        if (found != second_addresses_.end()) second_addresses_.erase(found);
      }
      if (address < 0) continue;
      pool.pool->Free(address);
      pool.live -= buffer.bytes;
      if (event.kind == RecordedKind::kFree) ++pool.calls_saved;
      pool.extra = pool.pool->reserved_bytes() - pool.live;
    }
    if (account.peak_seen) {
      const auto early = account.early.find(key);
      if (early != account.early.end() && early->second.ordinal == buffer.ordinal) {
        Account::Freed& freed = account.freed_early[group];
        freed.bytes += buffer.bytes;
        ++freed.count;
        freed.last_time = event.time;
        freed_keys_[{groups_[group].account, key}] = event.time;
        account.early.erase(early);
      }
    }
    if (event.kind != RecordedKind::kFree) return;
    if (churns_[group]) {
      ++kept_[{group, buffer.bytes}];
      account.kept.extra += buffer.bytes;
      ++account.kept.calls_saved;
    }
    ThreadState& thread = threads_[event.thread];
    ++thread.events;
    if (const auto pair = PairAtEnd(key, buffer, event.time, thread); pair.has_value()) {
      account.in_place.extra += pair->buffer.bytes;
      if (account.peak_seen && pair->buffer.ordinal <= account.peak_ordinal) {
        auto& [bytes, count] = reused_[{group, group_of_[pair->buffer.site]}];
        bytes += pair->buffer.bytes;
        ++count;
      }
    }
    thread.is_free = true;
    thread.freed = buffer;
    thread.freed_ordinal = ordinal_;
    if (held_[static_cast<size_t>(ordinal_)]) account.held.extra += buffer.bytes;
  }

  void AddIdle(uint32_t segment_site, int64_t bytes) {
    GroupOf(segment_site).idle += bytes;
    AccountOf(segment_site).no_idle.extra -= bytes;
  }

  // Enters the bytes in use after the change.
  void CheckInstant(size_t number, const RecordedEvent& event, const Live& live) {
    Account& account = accounts_[number];
    for (Simulation* simulation : {&account.kept, &account.held, &account.in_place}) simulation->Check(account.in_use);
    for (PoolSimulation& pool : account.pools) pool.Check(account.in_use);
    if (account.in_use + account.no_idle.extra > account.no_idle.peak) {
      account.no_idle.Check(account.in_use);
      for (const uint32_t group : pool_groups_[number]) groups_[group].idle_at_peak = groups_[group].idle;
    }
    const bool is_high = account.in_use > PercentOf(kHighPercent, account.peak);
    if (is_high && account.high_since < 0) account.high_since = event.time;
    if (ordinal_ == account.peak_ordinal) {
      account.peak_seen = true;
      account.peak_begin = account.high_since;
      for (const auto& [key, buffer] : live) {
        if (groups_[group_of_[buffer.site]].account != number || IsBlock(buffer.site)) continue;
        if (buffer.time < account.peak_begin || buffer.ordinal < 0) account.early[key] = buffer;
      }
    }
    if (!is_high && account.high_since >= 0) {
      account.high_nanos += event.time - account.high_since;
      account.high_since = -1;
    }
  }

  // Stores the live buffers of the devices whose worst sample is before `time`.
  void StoreFragments(int64_t time, const Live& live) {
    for (Fragmentation& device : fragmentation_) {
      if (device.worst_sample == nullptr || device.worst_sample->time >= time || !device.live.empty()) continue;
      for (const auto& [key, buffer] : live) {
        const uint64_t address = key & ~(uint64_t{1} << 63);
        const Snapshot::Sample& site = tables_.sites[buffer.site];
        if (site.device != device.device || SpaceOf(site.kind) != MemorySpace::kDevice || IsBlock(buffer.site) ||
            address >> 57 != 0 || buffer.bytes <= 0) {
          continue;
        }
        device.live[address] = {address + static_cast<uint64_t>(buffer.bytes), buffer.site};
      }
    }
  }

  void Replay() {
    threads_.assign(threads_.size(), {});
    const SiteTotals totals(tables_);
    pool_groups_.resize(accounts_.size());
    for (uint32_t site = 0; site < tables_.sites.size(); ++site) {
      if (tables_.site_kinds[site] != RecordingTables::SiteKind::kSegment) continue;
      std::vector<uint32_t>& groups = pool_groups_[groups_[group_of_[site]].account];
      if (std::find(groups.begin(), groups.end(), group_of_[site]) == groups.end()) groups.push_back(group_of_[site]);
      AddIdle(site, totals.site(site).bytes);
    }
    for (size_t a = 0; a < accounts_.size(); ++a) accounts_[a].in_use = totals.account(a).in_use;
    for (Account& account : accounts_) {
      for (Simulation* simulation : {&account.kept, &account.held, &account.in_place, &account.no_idle}) {
        simulation->Check(account.in_use);
      }
      if (account.in_use > PercentOf(kHighPercent, account.peak)) account.high_since = start_;
    }
    Live live;
    std::vector<size_t> changed;
    ReadEvents(
        live, [this](uint64_t key, Buffer& buffer, const RecordedEvent& event) { ReplayBegin(key, buffer, event); },
        [this](uint64_t key, const Buffer& buffer, const RecordedEvent& event) { ReplayEnd(key, buffer, event); },
        [&](const RecordedEvent& event) {
          if (event.site < tables_.sites.size()) {
            const size_t account = groups_[group_of_[event.site]].account;
            accounts_[account].in_use += SiteTotals::ChangeOf(event);
            if (tables_.site_kinds[event.site] == RecordingTables::SiteKind::kSegment) {
              AddIdle(event.site, SiteTotals::ChangeOf(event));
            }
            if (std::find(changed.begin(), changed.end(), account) == changed.end()) changed.push_back(account);
          }
          if (event.is_continued) return;
          for (const size_t account : changed) CheckInstant(account, event, live);
          changed.clear();
        });
    const bool is_fragmented = std::any_of(fragmentation_.begin(), fragmentation_.end(),
                                           [](const Fragmentation& device) { return device.worst_sample != nullptr; });
    if (is_fragmented) ReadFragments();
    for (Account& account : accounts_) {
      if (account.high_since >= 0) account.high_nanos += start_ + nanos_ - account.high_since;
    }
  }

  // Reads the events up to the worst samples.
  void ReadFragments() {
    Live live;
    for (const RecordingTables::Live& buffer : tables_.live) {
      live[KeyOf(buffer.id, buffer.site)] = {buffer.site, buffer.bytes, start_};
    }
    recording_.Rewind();
    RecordedEvent event;
    while (recording_.Next(&event)) {
      StoreFragments(event.time, live);
      if (event.kind == RecordedKind::kAlloc || event.kind == RecordedKind::kUndoFree ||
          event.kind == RecordedKind::kMoveTo) {
        live[KeyOf(event.id, event.site)] = {event.site, event.bytes, event.time};
      } else if (event.kind == RecordedKind::kFree || event.kind == RecordedKind::kMoveFrom) {
        live.erase(KeyOf(event.id, event.site));
      }
    }
    StoreFragments(INT64_MAX, live);
  }

  // --- Advice -------------------------------------------------------------------------------------------------------

  std::string At(int64_t time) const { return Nanos(time - start_); }

  void AdviseNeverFreed(AdviceReport& report) {
    for (size_t a = 0; a < accounts_.size(); ++a) {
      Advice advice;
      advice.kind = AdviceKind::kNeverFreed;
      advice.account = AccountName(tables_, a);
      double per_second = 0;
      for (uint32_t g = 0; g < groups_.size(); ++g) {
        Course& course = courses_[g];
        if (groups_[g].account != a || course.in_use.size() < 3) continue;
        course.at.assign(course_times_.begin(), course_times_.end());
        const Judgement judgement = Judge(course);
        const double growth = course.in_use.back() - course.in_use[judgement.first];
        if (judgement.verdict != Verdict::kLeak || groups_[g].kept_count == 0 ||
            growth < static_cast<double>(PercentOf(kMinLeakPercent, accounts_[a].peak))) {
          continue;
        }
        per_second += growth / std::max(course.at.back() - course.at[judgement.first], 1e-9);
        advice.bytes += static_cast<int64_t>(growth);
        advice.sites.push_back(SiteOf(g, static_cast<int64_t>(growth), groups_[g].kept_count));
      }
      if (advice.sites.empty()) continue;
      Shorten(advice.sites);
      advice.text = Cat("Memory of ", advice.sites[0].function, " grows until the end: +", Bytes(advice.bytes), ", ",
                        Bytes(static_cast<int64_t>(per_second)), " each second.");
      const std::optional<int64_t> limit = LimitOf(a / kMemorySpaceCount);
      if (a % kMemorySpaceCount == static_cast<size_t>(MemorySpace::kDevice) && limit.has_value() && *limit > 0) {
        const double left = static_cast<double>(*limit - accounts_[a].in_use) / per_second;
        if (left > 0 && left < 1e9)
          advice.text += Cat(" At this rate the limit is reached in ", Nanos(std::llround(left * 1e9)), ".");
      }
      advice.how = Cat("The bytes in use of each function at ", kCoursePoints,
                       " instants are judged as hbmprof leaks does. Counts are buffers that were allocated in the "
                       "recording and are live at its end.");
      report.advice.push_back(std::move(advice));
    }
  }

  // Returns the largest range of addresses that no live buffer covers if the buffers of `without` were freed.
  int64_t LargestRange(const Fragmentation& device, std::optional<uint32_t> without) const {
    uint64_t end = device.lowest;
    uint64_t largest = 0;
    for (const auto& [address, buffer] : device.live) {
      if (without.has_value() && group_of_[buffer.second] == *without) continue;
      if (address > end) largest = std::max(largest, address - end);
      end = std::max(end, buffer.first);
    }
    if (device.highest > end) largest = std::max(largest, device.highest - end);
    return static_cast<int64_t>(largest);
  }

  void AdviseFragmentation(const Fragmentation& device, AdviceReport& report) {
    if (device.worst_sample == nullptr ||
        (device.failed == 0 && device.fragmented < PercentOf(kMinFragmentedSamples, device.samples))) {
      return;
    }
    Advice advice;
    advice.kind = AdviceKind::kFragmentation;
    advice.account = AccountName(tables_, device.device * kMemorySpaceCount);
    advice.bytes = device.free_bytes - device.largest;
    advice.text =
        Cat("Free memory is in small pieces: at ", At(device.worst_sample->time), " the largest free block has ",
            Bytes(device.largest), " of ", Bytes(device.free_bytes), " free.");
    if (device.failed > 0)
      advice.text += Cat(" ", device.failed, " allocations failed although enough bytes were free.");
    advice.how = Cat("In ", device.fragmented, " of ", device.samples, " samples of the driver more than ",
                     kFragmentedPercent, " % of the free memory is outside of the largest free block.");
    const int64_t found = LargestRange(device, std::nullopt);
    // The addresses are those of the device's memory if they show the hole that the driver reports.
    const bool addresses_tell = std::abs(found - device.largest) <= std::max<int64_t>(device.largest / 10, 4096);
    if (addresses_tell) AddPins(device, found, advice);
    report.advice.push_back(std::move(advice));
  }

  void AddPins(const Fragmentation& device, int64_t largest, Advice& advice) const {
    std::map<uint32_t, Account::Freed> groups;
    for (const auto& [address, buffer] : device.live) {
      Account::Freed& group = groups[group_of_[buffer.second]];
      group.bytes += static_cast<int64_t>(buffer.first - address);
      ++group.count;
    }
    // The groups with the fewest bytes are the ones that are cheapest to move.
    std::vector<std::pair<int64_t, uint32_t>> order;
    for (const auto& [group, sums] : groups) order.emplace_back(sums.bytes, group);
    std::sort(order.begin(), order.end());
    if (order.size() > 4 * kMaxCandidates) order.resize(4 * kMaxCandidates);
    std::vector<std::pair<int64_t, uint32_t>> pins;  // (range without the group, group)
    for (const auto& [bytes, group] : order) {
      const int64_t range = LargestRange(device, group);
      if (range - bytes > largest + largest / 2) pins.emplace_back(range, group);
    }
    std::sort(pins.rbegin(), pins.rend());
    if (pins.empty()) return;
    for (const auto& [range, group] : pins) {
      if (advice.sites.size() < kShownSites) {
        advice.sites.push_back(SiteOf(group, groups[group].bytes, groups[group].count));
      }
    }
    advice.text += Cat(" Buffers of ", advice.sites[0].function, " lie between the free pieces: without these ",
                       groups[pins[0].second].count, " buffers (", Bytes(groups[pins[0].second].bytes),
                       ") the largest free block has ", Bytes(pins[0].first), ".");
    advice.how += " The addresses of the live buffers at this instant give the same largest free block.";
    advice.replay = {{"largest_free_before", largest}, {"largest_free_after", pins[0].first}};
  }

  // Reads the events once more for the accounts with a short peak.
  void AdvisePeaks(AdviceReport& report) {
    struct Candidate {
      uint32_t group;
      Simulation without;
    };
    std::vector<std::vector<Candidate>> candidates(accounts_.size());
    bool any = false;
    for (size_t a = 0; a < accounts_.size(); ++a) {
      const Account& account = accounts_[a];
      if (!account.peak_seen || account.high_nanos > PercentOf(kShortPeakPercent, nanos_)) continue;
      for (const auto& [group, freed] : account.freed_early) {
        if (freed.bytes < PercentOf(kMinFallPercent, account.peak)) continue;
        candidates[a].push_back({group, {}});
        any = true;
      }
      if (candidates[a].size() > kMaxCandidates) {
        std::sort(candidates[a].begin(), candidates[a].end(), [&account](const Candidate& x, const Candidate& y) {
          return account.freed_early.at(x.group).bytes > account.freed_early.at(y.group).bytes;
        });
        candidates[a].resize(kMaxCandidates);
      }
    }
    if (!any) return;
    std::vector<int64_t> in_use(accounts_.size());
    std::vector<bool> is_freed(accounts_.size());  // from the beginning of the high use on
    const SiteTotals totals(tables_);
    for (size_t a = 0; a < accounts_.size(); ++a) in_use[a] = totals.account(a).in_use;
    recording_.Rewind();
    RecordedEvent event;
    while (recording_.Next(&event)) {
      if (event.site >= tables_.sites.size()) continue;
      const uint32_t group = group_of_[event.site];
      const size_t a = groups_[group].account;
      if (candidates[a].empty()) continue;
      const bool begins = !is_freed[a] && event.time >= accounts_[a].peak_begin;
      if (begins) is_freed[a] = true;
      in_use[a] += SiteTotals::ChangeOf(event);
      int64_t ended = 0;
      if (event.kind == RecordedKind::kFree || event.kind == RecordedKind::kMoveFrom) {
        const auto freed = freed_keys_.find({a, KeyOf(event.id, event.site)});
        if (freed != freed_keys_.end() && freed->second == event.time) ended = event.bytes;
      }
      for (Candidate& candidate : candidates[a]) {
        if (begins) candidate.without.extra -= accounts_[a].freed_early.at(candidate.group).bytes;
        if (candidate.group == group) candidate.without.extra += ended;
        if (!event.is_continued) candidate.without.Check(in_use[a]);
      }
    }
    for (size_t a = 0; a < accounts_.size(); ++a) {
      Account& account = accounts_[a];
      Advice advice;
      advice.kind = AdviceKind::kPeak;
      advice.account = AccountName(tables_, a);
      std::sort(candidates[a].begin(), candidates[a].end(),
                [](const Candidate& x, const Candidate& y) { return x.without.peak < y.without.peak; });
      for (const Candidate& candidate : candidates[a]) {
        const int64_t fall = account.peak - candidate.without.peak;
        if (fall < PercentOf(kMinFallPercent, account.peak) || advice.sites.size() == kShownSites) break;
        advice.sites.push_back(SiteOf(candidate.group, fall, account.freed_early.at(candidate.group).count));
      }
      if (advice.sites.empty()) continue;
      const Candidate& best = candidates[a][0];
      const Account::Freed& freed = account.freed_early.at(best.group);
      advice.bytes = advice.sites[0].bytes;
      advice.text =
          Cat("Free buffers of ", advice.sites[0].function, " before ", At(account.peak_begin), ": ", freed.count,
              " buffers (", Bytes(freed.bytes), ") are live at the peak and are freed ",
              Nanos(freed.last_time - account.peak_time), " after it. The peak falls by ", Bytes(advice.bytes), ".");
      advice.how =
          Cat("More than ", kHighPercent, " % of the peak is in use for ", Nanos(account.high_nanos),
              " only. The recording is replayed without the buffers of one function that were allocated before "
              "this time and are freed after the peak. Bytes are the fall of the peak.");
      advice.replay = {{"peak_before", account.peak}, {"peak_after", best.without.peak}};
      report.advice.push_back(std::move(advice));
    }
  }

  void AdviseReuse(size_t a, AdviceReport& report) {
    const Account& account = accounts_[a];
    const int64_t saved = account.peak - account.in_place.peak;
    if (account.in_place.is_used && saved > 0 && saved >= PercentOf(kMinPeakPercent, account.peak)) {
      Advice advice;
      advice.kind = AdviceKind::kReuse;
      advice.account = AccountName(tables_, a);
      for (const auto& [pair, sums] : reused_) {
        if (groups_[pair.first].account != a) continue;
        Advice::Site site = SiteOf(pair.first, sums.first, sums.second);
        const std::string next = SiteOf(pair.second, 0, 0).function;
        if (next != site.function) site.function += Cat(", then ", next);
        advice.sites.push_back(std::move(site));
      }
      Shorten(advice.sites);
      if (!advice.sites.empty()) {
        advice.bytes = saved;
        advice.text = Cat("Let the next buffer reuse the memory of ", advice.sites[0].function,
                          ": the old buffer is freed right after the new one of about the same size is allocated. The "
                          "peak falls by ",
                          Bytes(saved), ".");
        advice.how =
            Cat("Pairs: the old buffer is freed at most ", kReuseWindow,
                " events of the thread and 1/100 of the recording's length after the allocation of the new one, "
                "which is not larger, and not "
                "smaller than half of it. The recording is replayed with the old buffers freed first.");
        advice.replay = {{"peak_before", account.peak}, {"peak_after", account.in_place.peak}};
        report.advice.push_back(std::move(advice));
      }
    }
    AdviseIdlePools(a, report);
  }

  void AdviseIdlePools(size_t a, AdviceReport& report) {
    const Account& account = accounts_[a];
    const int64_t saved = account.peak - account.no_idle.peak;
    if (saved <= 0 || saved < PercentOf(kMinFallPercent, account.peak)) return;
    Advice advice;
    advice.kind = AdviceKind::kReuse;
    advice.account = AccountName(tables_, a);
    advice.bytes = saved;
    for (const uint32_t group : pool_groups_[a]) {
      if (groups_[group].idle_at_peak > 0) {
        advice.sites.push_back(SiteOf(group, groups_[group].idle_at_peak, groups_[group].live));
      }
    }
    if (advice.sites.empty()) return;
    Shorten(advice.sites);
    advice.text = Cat("Make the pools smaller, or let other buffers use them: the segments of ",
                      advice.sites[0].function, " have ", Bytes(advice.sites[0].bytes),
                      " without a block when most other memory is in use. The peak falls by ", Bytes(saved), ".");
    advice.how = "The recording is replayed without the bytes of segments that no block covers.";
    advice.replay = {{"peak_before", account.peak}, {"peak_after", account.no_idle.peak}};
    report.advice.push_back(std::move(advice));
  }

  // Returns a time that at least half of the freed buffers of the group do not exceed.
  static int64_t MedianLifetime(const Group& group) {
    int64_t all = 0;
    for (const int64_t count : group.lifetimes) all += count;
    int64_t sum = 0;
    for (size_t power = 0; power < group.lifetimes.size(); ++power) {
      sum += group.lifetimes[power];
      if (2 * sum >= all) return int64_t{1} << power;
    }
    return 0;
  }

  void AdviseChurn(size_t a, AdviceReport& report) {
    const Account& account = accounts_[a];
    if (!account.kept.is_used) return;
    Advice advice;
    advice.kind = AdviceKind::kChurn;
    advice.account = AccountName(tables_, a);
    uint32_t most = 0;
    int64_t buffers = 0;
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].account != a || !churns_[g]) continue;
      if (buffers == 0 || groups_[g].short_lived > groups_[most].short_lived) most = g;
      buffers += groups_[g].short_lived;
      advice.bytes += groups_[g].short_bytes;
      advice.sites.push_back(SiteOf(g, groups_[g].short_bytes, groups_[g].short_lived));
    }
    std::stable_sort(advice.sites.begin(), advice.sites.end(),
                     [](const Advice::Site& x, const Advice::Site& y) { return x.count > y.count; });
    if (advice.sites.size() > kShownSites) advice.sites.resize(kShownSites);
    advice.text =
        Cat("Keep the buffers of ", advice.sites[0].function, " instead of freeing them: ", buffers,
            " buffers are short-lived; half of them live for up to ", Nanos(MedianLifetime(groups_[most])), ".");
    advice.how =
        Cat("Short-lived: freed within 1/", kShortLivedPart,
            " of the recording's length. The recording is replayed with a list of free buffers of each size for "
            "each of these functions.");
    advice.replay = {{"driver_calls_before", account.calls},
                     {"driver_calls_after", account.calls - account.kept.calls_saved},
                     {"peak_before", account.peak},
                     {"peak_after", account.kept.peak}};
    report.advice.push_back(std::move(advice));
  }

  void AdviseReallocated(size_t a, AdviceReport& report) {
    const Account& account = accounts_[a];
    if (!account.held.is_used) return;
    Advice advice;
    advice.kind = AdviceKind::kReallocated;
    advice.account = AccountName(tables_, a);
    for (const auto& [pair, count] : reallocated_) {
      if (groups_[pair.first].account != a) continue;
      Advice::Site site = SiteOf(pair.first, 0, count);
      const std::string next = SiteOf(pair.second, 0, 0).function;
      if (next != site.function) site.function += Cat(", then ", next);
      advice.sites.push_back(std::move(site));
    }
    Shorten(advice.sites);
    advice.text = Cat("Do not free buffers of ", advice.sites[0].function,
                      " right before the allocation of equal ones: ", account.reallocated,
                      " buffers are freed and allocated again by the next event of the thread.");
    advice.how = "The recording is replayed without these frees and allocations.";
    advice.replay = {{"driver_calls_before", account.calls},
                     {"driver_calls_after", account.calls - account.held.calls_saved},
                     {"peak_before", account.peak},
                     {"peak_after", account.held.peak}};
    report.advice.push_back(std::move(advice));
  }

  void AdvisePool(size_t a, AdviceReport& report) {
    const Account& account = accounts_[a];
    const PoolSimulation* best = nullptr;
    const auto calls_of = [&account](const PoolSimulation& pool) {
      return account.calls - pool.calls_saved + pool.pool->segment_count();
    };
    for (const PoolSimulation& pool : account.pools) {
      const int64_t more = pool.peak - account.peak;
      if (more > std::max(kPoolPeakBytes, PercentOf(kPoolPeakPercent, account.peak))) continue;
      if (2 * calls_of(pool) > account.calls) continue;
      if (best == nullptr || calls_of(pool) < calls_of(*best)) best = &pool;
    }
    if (best == nullptr) return;
    Advice advice;
    advice.kind = AdviceKind::kPool;
    advice.account = AccountName(tables_, a);
    advice.bytes = best->pool->reserved_bytes();
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].account == a && groups_[g].short_lived >= kMinCalls) {
        advice.sites.push_back(SiteOf(g, groups_[g].short_bytes, groups_[g].calls));
      }
    }
    Shorten(advice.sites);
    std::vector<std::pair<int64_t, int64_t>> sizes;  // (count, bytes)
    for (const auto& [bytes, count] : account.size_counts) {
      if (bytes <= best->limit) sizes.emplace_back(count, bytes);
    }
    std::sort(sizes.rbegin(), sizes.rend());
    std::string frequent;
    for (size_t i = 0; i < sizes.size() && i < kShownSites; ++i) {
      frequent += Cat(i == 0 ? "" : ", ", Bytes(sizes[i].second), " (", sizes[i].first, " times)");
    }
    advice.text = Cat("Serve sizes up to ", Bytes(best->limit), " from a pool of ", Bytes(advice.bytes),
                      ": the calls of the driver fall from ", account.calls, " to ", calls_of(*best),
                      ", and the peak changes from ", Bytes(account.peak), " to ", Bytes(best->peak), ".");
    advice.how = Cat("The recording is replayed through a best-fit pool that splits and joins blocks and keeps its ",
                     best->pool->segment_count(), " segments. The most frequent short-lived sizes: ", frequent, ".");
    advice.replay = {{"pool_limit", best->limit},
                     {"pool_bytes", advice.bytes},
                     {"pool_segments", best->pool->segment_count()},
                     {"driver_calls_before", account.calls},
                     {"driver_calls_after", calls_of(*best)},
                     {"peak_before", account.peak},
                     {"peak_after", best->peak}};
    report.advice.push_back(std::move(advice));
  }

  RecordingReader& recording_;
  const RecordingTables& tables_;
  const RecordedStacks& stacks_;
  Progress& progress_;
  int64_t start_ = 0;
  int64_t nanos_ = 0;
  int64_t ordinal_ = 0;             // of the current event
  std::vector<uint32_t> group_of_;  // by site
  std::vector<Group> groups_;
  std::vector<Account> accounts_;
  std::vector<Fragmentation> fragmentation_;  // by device
  std::vector<ThreadState> threads_;
  std::vector<Course> courses_;       // by group
  std::vector<double> course_times_;  // seconds
  size_t next_sample_ = 0;
  std::vector<bool> held_;      // by event: a free right before an equal allocation
  std::vector<bool> overlaps_;  // by event: an allocation of a buffer that could reuse the one that it replaces
  std::vector<bool> churns_;    // by group
  std::map<GroupPair, int64_t> reallocated_;
  std::map<GroupPair, std::pair<int64_t, int64_t>> reused_;          // bytes and count at the peak
  std::vector<std::vector<uint32_t>> pool_groups_;                   // by account: groups with segments of pools
  absl::flat_hash_map<std::pair<uint32_t, int64_t>, int64_t> kept_;  // by group and bytes: free buffers that are kept
  absl::flat_hash_map<uint64_t, int64_t> second_addresses_;          // of the blocks in the second pool
  absl::flat_hash_map<std::pair<size_t, uint64_t>, int64_t> freed_keys_;  // by account and key: time of the free
};

}  // namespace

const char* AdviceKindName(AdviceKind kind) {
  constexpr const char* kNames[kAdviceKinds] = {"never_freed", "fragmentation", "peak", "reuse",
                                                "churn",       "reallocated",   "pool"};
  return kNames[static_cast<size_t>(kind)];
}

AdviceReport Advise(RecordingReader& recording, const RecordedStacks& stacks, Progress& progress) {
  return Analysis(recording, stacks, progress).Run();
}

}  // namespace hbmprof::tool
