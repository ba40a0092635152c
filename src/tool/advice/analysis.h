// Computes the advice of advice.h. survey.cc and replay.cc have the two passes over the recording. Each kind of advice
// has its source file, with a function of what the passes found: fragmentation.cc, peak.cc, reuse.cc, and calls.cc for
// churn, reallocated and pool. never_freed.cc judges the states of the recording.
//
// The first pass surveys the recording: lifetimes, sizes, peaks, buffers between free pieces. The second pass
// replays it with each change that the survey suggests. If a peak was short, another pass replays the recording without
// the buffers that are freed after the peak.
#ifndef HBMPROF_SRC_TOOL_ADVICE_ANALYSIS_H_
#define HBMPROF_SRC_TOOL_ADVICE_ANALYSIS_H_

#include <array>
#include <deque>

#include "hbmprof/allocation.h"
#include "src/tool/advice/advice.h"
#include "src/tool/advice/pool.h"
#include "src/tool/recording/cursor.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool::advise {

// Thresholds. docs/advise.md lists them.
inline constexpr int64_t kMinCalls = 1000;            // short-lived buffers, pairs
inline constexpr int64_t kMinCallPercent = 10;        // of all calls of the driver
inline constexpr double kMinPerSecond = 10;           // short-lived buffers
inline constexpr int64_t kShortLivedPart = 100;       // short-lived: up to this part of the recording
inline constexpr int64_t kMinPeakPercent = 5;         // bytes saved, of the peak
inline constexpr int64_t kPoolPeakPercent = 10;       // that a pool may add to the peak
inline constexpr int64_t kPoolPeakBytes = 8 << 20;    // likewise, if it is more
inline constexpr int64_t kFragmentedPercent = 50;     // of the free memory that is not in the largest free block
inline constexpr int64_t kMinFragmentedSamples = 10;  // percent
inline constexpr int64_t kMinFreePercent = 5;         // free memory, of the limit
inline constexpr int64_t kHighPercent = 80;           // of the peak: more than this is high
inline constexpr int64_t kShortPeakPercent = 5;       // of the recording: how long use is high at a short peak, at most
inline constexpr int64_t kMinFallPercent = 10;        // of the peak, if buffers are freed earlier
// Maximum number of the thread's events from an allocation to the free of the old buffer.
inline constexpr uint32_t kReuseWindow = 4;
inline constexpr size_t kShownSites = 5;
inline constexpr size_t kMaxCandidates = 16;

// Returns `percent` hundredths of `value`.
int64_t PercentOf(int64_t percent, int64_t value);
// Returns a text such as "1.5 ms".
std::string Nanos(int64_t nanos);
// Returns the smallest power of two that is not less than `value`, as its exponent; at most 62.
size_t PowerOf(int64_t value);

struct Buffer {
  uint32_t site = 0;
  int64_t bytes = 0;
  int64_t time = 0;      // of the allocation
  int64_t ordinal = -1;  // of the allocation's event; -1: live since before the recording
};

// One function on one account.
struct Group {
  uint32_t site = 0;  // one of its sites, for the names
  size_t account = 0;
  int64_t calls = 0;        // allocations from the driver
  int64_t short_lived = 0;  // of these
  int64_t short_bytes = 0;
  std::array<int64_t, 63> lifetimes{};  // of freed buffers, by power of two of nanoseconds
};

// The replay with one change of the program. The bytes in use with the change are those of the recording plus `extra`.
struct Simulation {
  bool is_used = false;
  int64_t extra = 0;
  int64_t peak = 0;
  int64_t calls_saved = 0;

  void Check(int64_t in_use) { peak = std::max(peak, Plus(in_use, extra)); }
};

struct PoolSimulation : Simulation {
  int64_t limit = 0;  // the largest size that the pool serves
  int64_t live = 0;   // requested bytes
  std::optional<CachingPool> pool;
  absl::flat_hash_map<uint64_t, CachingPool::Blocks::iterator> blocks;  // in the pool, by id
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
  Simulation kept;     // churning functions keep their buffers
  Simulation held;     // buffers are not freed before an equal allocation
  Simulation no_idle;  // other buffers use the idle memory of pools
  // Idle memory of pools at the instant at which the bytes in use without it are highest.
  std::vector<Advice::Site> idle_at_peak;
  Simulation in_place;  // buffers do not overlap with the ones that they replace
  std::vector<PoolSimulation> pools;
  // High use around the peak.
  int64_t high_nanos = 0;
  int64_t high_since = -1;  // -1: use is not high now
  int64_t peak_begin = 0;   // the start of the interval of high use that contains the peak
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
  std::optional<int64_t> sampled_free;  // free bytes in the last sample up to the current event
  int64_t sampled_in_use = 0;           // recorded bytes in use at that sample
  // The lowest and the highest address that was in use at any time.
  uint64_t lowest = UINT64_MAX;
  uint64_t highest = 0;
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> live;  // at the sample: begin to (end, site)
};

struct ThreadState {
  struct Recent {
    uint64_t id;
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

// What the passes find. Each kind of advice is a function of it.
struct Findings {
  using GroupPair = std::pair<uint32_t, uint32_t>;

  Findings(const RecordingTables& recorded, const RecordedStacks& names) : tables(recorded), stacks(names) {}

  bool IsBlock(uint32_t site) const { return tables.IsOfPool(site); }
  std::string At(int64_t time) const { return Nanos(time - start); }
  Advice::Site SiteOf(uint32_t group, int64_t bytes, int64_t count) const;
  Advice::Site SiteOfPair(const GroupPair& pair, int64_t bytes, int64_t count) const;  // "f, then g"
  // Returns advice without text.
  Advice AdviceOn(AdviceKind kind, size_t account) const;

  const RecordingTables& tables;
  const RecordedStacks& stacks;
  int64_t start = 0;
  int64_t duration = 0;            // nanoseconds
  std::vector<uint32_t> group_of;  // by site
  std::vector<Group> groups;
  std::vector<Account> accounts;
  std::vector<Fragmentation> fragmentation;  // by device
  std::vector<bool> churns;                  // by group
  std::map<GroupPair, int64_t> reallocated;
  std::map<GroupPair, std::pair<int64_t, int64_t>> reused;               // bytes and count at the peak
  absl::flat_hash_map<std::pair<size_t, uint64_t>, int64_t> freed_keys;  // by account and id: time of the free
};

// Keeps the sites with the most bytes, or with the highest counts if there are no bytes or `by_count` is true. Returns
// the name of the first one and the number of all others: "f", "f and 3 other functions". `what`: "function" or "pair".
std::string Shorten(std::vector<Advice::Site>& sites, const char* what = "function", bool by_count = false);

// These functions add the advice of one kind, of all accounts, of a device or of an account.
absl::Status AdviseNeverFreed(const ProfileSet& states, AdviceReport& report);
void AdviseFragmentation(const Findings& found, const Fragmentation& device, AdviceReport& report);
// Reads the events once more if an account has a short peak.
void AdvisePeaks(const Findings& found, RecordingReader& recording, AdviceReport& report);
void AdviseReuse(const Findings& found, size_t a, AdviceReport& report);
void AdviseChurn(const Findings& found, size_t a, AdviceReport& report);
void AdviseReallocated(const Findings& found, size_t a, AdviceReport& report);
void AdvisePool(const Findings& found, size_t a, AdviceReport& report);

// The passes over the recording.
class Analysis : private Findings {
 public:
  Analysis(RecordingReader& recording, const RecordedStacks& stacks, Progress& progress);

  void Run(AdviceReport& report);

 private:
  using Live = absl::flat_hash_map<uint64_t, Buffer>;

  Group& GroupOf(uint32_t site) { return groups[group_of[site]]; }
  Account& AccountOf(uint32_t site) { return accounts[groups[group_of[site]].account]; }

  void FindGroups();

  // Reads all events. Calls begin(buffer, event) when a buffer begins, end(buffer, event) when it ends, and
  // instant(event) after each event. A kMoveFrom ends a buffer and a kMoveTo begins one.
  template <typename Begin, typename End, typename Instant>
  void ReadEvents(Live& live, const Begin& begin, const End& end, const Instant& instant) {
    for (const RecordingTables::Live& buffer : tables.live) {
      live[buffer.id] = {buffer.site, buffer.bytes, start};
    }
    cursor_.Rewind();
    RecordedEvent event;
    for (ordinal_ = 0; cursor_.Next(&event); ++ordinal_) {
      StoreFragments(event.time, live);
      if (internal::Begins(event.kind)) {
        const Buffer buffer = {event.site, event.bytes, event.time, ordinal_};
        live[event.id] = buffer;
        begin(buffer, event);
      } else if (internal::Ends(event.kind)) {
        Buffer buffer = {event.site, event.bytes, start};
        if (const auto found = live.find(event.id); found != live.end()) {
          buffer = found->second;
          live.erase(found);
        }
        end(buffer, event);
      }
      instant(event);
    }
    StoreFragments(INT64_MAX, live);
  }

  // survey.cc
  // Enters an allocation of the thread. Returns whether the thread has just freed a buffer of the same size.
  bool ReallocatesAtBegin(uint64_t id, const Buffer& buffer, ThreadState& thread);
  // Enters the free of the buffer `old` by the thread at `time`. Returns the allocation that replaces it, for kReuse.
  // Both passes call this function for the same events, so they find the same pairs.
  std::optional<ThreadState::Recent> PairAtEnd(uint64_t id, const Buffer& old, int64_t time, ThreadState& thread);
  void SurveyBegin(const Buffer& buffer, const RecordedEvent& event);
  void SurveyEnd(const Buffer& buffer, const RecordedEvent& event);
  void CountLifetime(Group& group, int64_t bytes, int64_t nanos);
  void Survey();

  // replay.cc
  bool IsMuch(int64_t pairs, const Account& account) const;
  void PlanReplays();
  void ReplayBegin(const Buffer& buffer, const RecordedEvent& event);
  void ReplayEnd(const Buffer& buffer, const RecordedEvent& event);
  // Updates the peaks of the simulations and the time of high use with the account's bytes in use after the event.
  void CheckInstant(size_t number, const RecordedEvent& event, const SiteTotals& totals, const Live& live);
  void CheckIdle(size_t number, const SiteTotals& totals);
  void Replay();

  // fragmentation.cc
  void ReadDriverSamples();
  // Extends the range of the device's addresses so that it contains the buffer.
  void AddAddresses(uint64_t id, int64_t bytes, uint32_t site);
  // Reads the driver's samples up to `time` and stores their free bytes.
  void ReadFreeBytes(int64_t time, const SiteTotals& totals);
  // Counts a failed allocation if the driver reported enough free bytes in the last sample before it, and if enough of
  // them are left after the growth that was recorded since then.
  void CountFailure(const RecordedEvent& event, const SiteTotals& totals);
  // Stores the live buffers of the devices whose worst sample is before `time`.
  void StoreFragments(int64_t time, const Live& live);

  RecordingReader& recording_;
  RecordingCursor cursor_;
  int64_t ordinal_ = 0;  // of the current event
  std::vector<ThreadState> threads_;
  std::vector<bool> held_;      // by event: a free whose thread allocates an equal buffer in its next event
  std::vector<bool> overlaps_;  // by event: an allocation of a buffer that could use the memory of the one it replaces
  absl::flat_hash_map<std::pair<uint32_t, int64_t>, int64_t> kept_;  // by group and bytes: free buffers that are kept
};

}  // namespace hbmprof::tool::advise

#endif  // HBMPROF_SRC_TOOL_ADVICE_ANALYSIS_H_
