#include "src/tool/recording/timeline_data.h"

#include "src/tool/profile/labels.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

class TimelineMaker {
 public:
  TimelineMaker(RecordingReader& recording, const RecordedStacks& stacks, const TimelineOptions& options)
      : recording_(recording),
        tables_(recording.tables()),
        stacks_(stacks),
        options_(options),
        progress_(static_cast<size_t>(recording.event_count()) * (options.by.empty() ? 1u : 2u), "events read"),
        cursor_(recording, &progress_),
        duration_(std::max<int64_t>(Minus(recording.end_time(), tables_.start_time), 0)) {}

  absl::StatusOr<Timeline> Make() {
    timeline_.start_unix_nanos = tables_.start_unix_nanos;
    timeline_.duration = duration_;
    timeline_.events = recording_.event_count();
    SiteTotals totals(tables_);
    RETURN_IF_ERROR(AddMemories(totals));
    if (!options_.by.empty()) {
      RETURN_IF_ERROR(CheckTag());
      SiteTotals survey(tables_);
      RecordedEvent event;
      while (cursor_.Next(&event)) survey.Apply(event);
      MakeGroups(survey);
    }
    ReadEvents(totals);
    for (size_t account = 0; account < memories_.size(); ++account) {
      Timeline::Memory* const memory = MemoryOf(account);
      if (memory == nullptr) continue;
      memory->peak = totals.account(account).peak;
      memory->peak_time = Minus(totals.account(account).peak_time, tables_.start_time);
      memory->end_in_use = totals.account(account).in_use;
      AddHolders(totals, account, memory);
    }
    return std::move(timeline_);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  // Returns null for a memory that is not shown.
  Timeline::Memory* MemoryOf(size_t account) {
    return memories_[account] == kNone ? nullptr : &timeline_.memories[memories_[account]];
  }

  absl::Status AddMemories(const SiteTotals& totals) {
    memories_.assign(totals.account_count(), kNone);
    for (size_t account = 0; account < totals.account_count(); ++account) {
      if (!totals.account(account).is_used) continue;
      const std::string name = AccountName(tables_, account);
      if (!options_.memory.empty() && options_.memory != name) continue;
      memories_[account] = timeline_.memories.size();
      Timeline::Memory& memory = timeline_.memories.emplace_back();
      memory.name = name;
      memory.intervals.resize(options_.intervals);
      memory.limit = tables_.names.devices[account / kMemorySpaceCount].spaces[account % kMemorySpaceCount].bytes_limit;
    }
    if (!options_.memory.empty() && timeline_.memories.empty()) {
      return InvalidArgument("--device: the recording has no memory '", options_.memory, "'; it has ",
                             MemoriesOf(totals, tables_));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTag() const {
    const bool is_tag = options_.by != "function" && options_.by != "tag" && options_.by != kLibraryLabel;
    if (!is_tag || tables_.sites.empty()) return absl::OkStatus();
    std::map<std::string, int> keys;
    for (const Snapshot::Sample& site : tables_.sites) {
      for (const auto& [key, value] : site.tags) keys[key] = 0;
    }
    if (keys.count(options_.by) > 0) return absl::OkStatus();
    std::string names = Cat("function, tag, ", kLibraryLabel);
    for (const auto& [key, unused] : keys) names += ", " + key;
    return InvalidArgument("--by: no allocation has the tag '", options_.by, "'; there are ", names);
  }

  std::string GroupOf(const SiteTotals& totals, uint32_t row) const {
    if (options_.by == "function") return stacks_.own_frame(totals.stack_of(row)).name;
    if (options_.by == kLibraryLabel) return stacks_.library(totals.stack_of(row));
    if (totals.is_idle_memory(row)) return "(none)";
    std::string tags;
    for (const auto& [key, value] : tables_.sites[row].tags) {
      if (options_.by == "tag") tags += Cat(tags.empty() ? "" : " ", key, "=", value);
      if (options_.by == key) return value;
    }
    return tags.empty() ? "(none)" : tags;
  }

  void AddHolders(const SiteTotals& totals, size_t account, Timeline::Memory* memory) const {
    std::map<std::pair<std::string, std::string>, FunctionSum> holders;
    for (uint32_t i = 0; i < totals.row_count(); ++i) {
      if (totals.account_of(i) != account || totals.peak_bytes(i) == 0) continue;
      const RecordedStacks::Frame& frame = stacks_.own_frame(totals.stack_of(i));
      FunctionSum& holder = holders[{frame.name, frame.Position()}];
      AddTo(holder.bytes, totals.peak_bytes(i));
      AddTo(holder.count, totals.peak_objects(i));
    }
    memory->holder_count = holders.size();
    for (auto& [key, holder] : holders) {
      holder.function = key.first;
      holder.position = key.second;
      memory->holders.push_back(std::move(holder));
    }
    absl::c_stable_sort(memory->holders, [](const FunctionSum& a, const FunctionSum& b) { return a.bytes > b.bytes; });
    if (options_.max_holders != 0 && memory->holders.size() > options_.max_holders) {
      memory->holders.resize(options_.max_holders);
    }
  }

  // Decides which groups each memory shows: the largest at its peak.
  void MakeGroups(const SiteTotals& totals) {
    std::vector<std::map<std::string, int64_t>> at_peak(timeline_.memories.size());
    std::vector<std::string> names(totals.row_count());
    for (uint32_t i = 0; i < totals.row_count(); ++i) {
      const size_t memory = memories_[totals.account_of(i)];
      if (memory == kNone) continue;
      names[i] = GroupOf(totals, i);
      AddTo(at_peak[memory][names[i]], totals.peak_bytes(i));
    }
    std::vector<std::map<std::string, size_t>> numbers(timeline_.memories.size());
    for (size_t m = 0; m < timeline_.memories.size(); ++m) {
      std::vector<std::pair<std::string, int64_t>> groups(at_peak[m].begin(), at_peak[m].end());
      absl::c_stable_sort(groups, [](const auto& a, const auto& b) { return a.second > b.second; });
      std::vector<std::string>& shown = timeline_.memories[m].groups;
      for (const auto& [name, bytes] : groups) {
        const bool is_other = shown.size() >= options_.max_groups && groups.size() > options_.max_groups;
        numbers[m][name] = is_other ? options_.max_groups : shown.size();
        if (!is_other) shown.push_back(name);
      }
      if (groups.size() > shown.size()) shown.emplace_back("other");
    }
    group_of_row_.resize(totals.row_count());
    for (uint32_t i = 0; i < totals.row_count(); ++i) {
      const size_t memory = memories_[totals.account_of(i)];
      if (memory != kNone) group_of_row_[i] = numbers[memory][names[i]];
    }
  }

  void ReadEvents(SiteTotals& totals) {
    for (const Timeline::Memory& memory : timeline_.memories) group_bytes_.emplace_back(memory.groups.size());
    for (uint32_t i = 0; i < totals.row_count(); ++i) AddToGroup(totals, i, totals.row(i).bytes);
    BeginInterval(totals);
    cursor_.Rewind();
    RecordedEvent event;
    while (cursor_.Next(&event)) {
      AdvanceTo(event.time, totals);
      AddMark(event);
      totals.ForEachChange(event, [&](uint32_t row, int64_t bytes, int) { AddToGroup(totals, row, bytes); });
      if (!totals.Apply(event)) continue;
      for (const size_t account : totals.changed_accounts()) SetHighest(totals, account, false);
    }
    AdvanceTo(recording_.end_time(), totals);
  }

  void AddToGroup(const SiteTotals& totals, uint32_t row, int64_t change) {
    const size_t memory = memories_[totals.account_of(row)];
    if (memory == kNone || group_of_row_.empty()) return;
    AddTo(group_bytes_[memory][group_of_row_[row]], change);
  }

  void AddMark(const RecordedEvent& event) {
    constexpr size_t kMaxMarks = 10000;  // reached by a program whose allocations fail in a loop
    if (timeline_.marks.size() >= kMaxMarks) return;
    const int64_t time = Minus(event.time, tables_.start_time);
    if (event.kind == RecordedKind::kMark) {
      const std::string& name = tables_.marks[event.id].name;
      const auto kind = internal::IsReport(name) ? Timeline::MarkKind::kReport : Timeline::MarkKind::kProfile;
      timeline_.marks.push_back({time, kind, name, 0, ""});
    } else if (event.kind == RecordedKind::kFailed) {
      const bool is_known = event.id < memories_.size();
      timeline_.marks.push_back({time, Timeline::MarkKind::kFailed, "", event.bytes,
                                 is_known ? AccountName(tables_, event.id) : std::string()});
    }
  }

  // Begins all intervals up to the one of `time`, and takes the samples up to `time`.
  void AdvanceTo(int64_t time, const SiteTotals& totals) {
    while (const DriverSample* sample = cursor_.NextSample(time)) {
      BeginIntervalsUpTo(sample->time, totals);
      TakeSample(*sample, totals);
    }
    BeginIntervalsUpTo(time, totals);
  }
  void BeginIntervalsUpTo(int64_t time, const SiteTotals& totals) {
    const size_t wanted = timeline_.memories.empty() ? 0 : timeline_.IntervalOf(Minus(time, tables_.start_time));
    while (interval_ < wanted) {
      ++interval_;
      BeginInterval(totals);
    }
  }
  void BeginInterval(const SiteTotals& totals) {
    for (size_t account = 0; account < memories_.size(); ++account) {
      Timeline::Memory* const memory = MemoryOf(account);
      if (memory == nullptr) continue;
      if (interval_ > 0) memory->intervals[interval_] = memory->intervals[interval_ - 1];
      if (interval_ == 0) memory->intervals[0].limit = memory->limit;
      SetHighest(totals, account, true);
    }
  }
  void SetHighest(const SiteTotals& totals, size_t account, bool is_begin) {
    if (memories_[account] == kNone) return;
    Timeline::Interval& interval = timeline_.memories[memories_[account]].intervals[interval_];
    const SiteTotals::Account& now = totals.account(account);
    if (!is_begin && now.in_use <= interval.in_use) return;
    interval.in_use = now.in_use;
    interval.idle = now.idle;
    interval.peak = now.peak;
    interval.groups = group_bytes_[memories_[account]];
  }

  void TakeSample(const DriverSample& sample, const SiteTotals& totals) {
    for (const DriverSample::Device& device : sample.devices) {
      const size_t account = device.device * kMemorySpaceCount;
      if (memories_[account] == kNone) continue;
      Timeline::Memory& memory = timeline_.memories[memories_[account]];
      Timeline::Interval& interval = memory.intervals[interval_];
      if (device.bytes_limit.has_value()) memory.limit = interval.limit = device.bytes_limit;
      if (!device.bytes_in_use.has_value()) continue;
      interval.driver_in_use = device.bytes_in_use;
      interval.unaccounted = Unaccounted(device, totals.account(account).in_use);
    }
  }

  RecordingReader& recording_;
  const RecordingTables& tables_;
  const RecordedStacks& stacks_;
  const TimelineOptions& options_;
  Progress progress_;
  RecordingCursor cursor_;
  const int64_t duration_;
  Timeline timeline_;
  std::vector<size_t> memories_;                   // by account: index in timeline_.memories, or kNone
  std::vector<size_t> group_of_row_;               // index in the groups of its memory
  std::vector<std::vector<int64_t>> group_bytes_;  // by memory and group
  size_t interval_ = 0;
};

}  // namespace

size_t Timeline::IntervalOf(int64_t time) const {
  const size_t count = memories.empty() ? 1 : memories[0].intervals.size();
  if (time <= 0 || duration <= 0) return 0;
  const double part = static_cast<double>(time) / static_cast<double>(duration);
  return std::min(count - 1, static_cast<size_t>(part * static_cast<double>(count)));
}

absl::StatusOr<Timeline> MakeTimeline(RecordingReader& recording, const RecordedStacks& stacks,
                                      const TimelineOptions& options) {
  return TimelineMaker(recording, stacks, options).Make();
}

}  // namespace hbmprof::tool
