#include "src/tool/recording/timeline.h"

#include <set>

#include "src/tool/recording/site_totals.h"

namespace hbmprof::tool {
namespace {

class TimelineMaker {
 public:
  TimelineMaker(RecordingReader& recording, const TimelineOptions& options)
      : tables_(recording.tables()), options_(options), cursor_(recording) {
    timeline_.duration = std::max<int64_t>(Minus(recording.end_time(), tables_.start_time), 0);
  }

  absl::StatusOr<Timeline> Make() {
    RETURN_IF_ERROR(AddMemories());
    if (options_.group_of) Survey();
    Read();
    return std::move(timeline_);
  }

 private:
  absl::Status AddMemories() {
    const SiteTotals totals(tables_);
    for (size_t account = 0; account < totals.account_count(); ++account) {
      const std::string name = AccountName(tables_, account);
      if (!totals.account(account).is_used || (!options_.memory.empty() && options_.memory != name)) continue;
      Timeline::Memory& memory = timeline_.memories.emplace_back();
      memory.account = account;
      memory.name = name;
      memory.limit = tables_.names.devices[account / kMemorySpaceCount].spaces[account % kMemorySpaceCount].bytes_limit;
    }
    if (options_.memory.empty() || !timeline_.memories.empty()) return absl::OkStatus();
    return InvalidArgument("--device: the recording has no memory '", options_.memory, "'; it has ",
                           MemoriesOf(totals, tables_));
  }

  // Finds the events of the peaks, and the bands.
  void Survey() {
    SiteTotals totals(tables_);
    std::vector<int64_t> most;  // by row
    for (uint32_t row = 0; row < totals.row_count(); ++row) most.push_back(totals.row(row).bytes);
    RecordedEvent event;
    while (cursor_.Next(&event)) {
      totals.Apply(event);
      totals.ForEachChange(event,
                           [&](uint32_t row, int64_t, int) { most[row] = std::max(most[row], totals.row(row).bytes); });
    }
    band_of_row_.resize(totals.row_count());
    for (Timeline::Memory& memory : timeline_.memories) {
      peak_events_.insert(totals.account(memory.account).peak_event);
      MakeBands(totals, most, memory);
    }
  }

  void MakeBands(const SiteTotals& totals, const std::vector<int64_t>& most, Timeline::Memory& memory) {
    std::map<size_t, std::vector<uint32_t>> rows;  // by group
    std::map<size_t, int64_t> sums;
    for (uint32_t row = 0; row < totals.row_count(); ++row) {
      if (totals.account_of(row) != memory.account || most[row] == 0) continue;
      const std::optional<size_t> group = options_.group_of(row);
      if (!group.has_value()) continue;
      rows[*group].push_back(row);
      AddTo(sums[*group], most[row]);
    }
    std::vector<std::pair<size_t, int64_t>> groups(sums.begin(), sums.end());
    absl::c_stable_sort(groups, [](const auto& a, const auto& b) { return a.second > b.second; });
    const size_t bands = std::min(options_.max_bands, groups.size());
    memory.bands.resize(bands + (bands < groups.size() ? 1 : 0), {std::nullopt, {0}});
    for (size_t i = 0; i < groups.size(); ++i) {
      Timeline::Band& band = memory.bands[std::min(i, bands)];
      if (i < bands) band.group = groups[i].first;
      for (const uint32_t row : rows[groups[i].first]) band_of_row_[row] = &band;
    }
  }

  // While the events are read, the last element of `values` of a band, `low` and `high` is that of the next instant.
  void Read() {
    SiteTotals totals(tables_);
    for (uint32_t row = 0; row < totals.row_count(); ++row) AddToBand(row, totals.row(row).bytes);
    for (Timeline::Memory& memory : timeline_.memories) {
      memory.low = memory.high = {totals.account(memory.account).in_use};
    }
    cursor_.Rewind();
    RecordedEvent event;
    bool is_instant = false;
    for (int64_t number = 0; cursor_.Next(&event); ++number) {
      const int64_t time = Minus(event.time, tables_.start_time);
      while (ends_ < options_.intervals && EndOf(ends_) < time) AddEnd(totals);
      TakeSamples(Minus(event.time, 1), totals);
      is_instant = AddMark(event, time) || is_instant;
      totals.ForEachChange(event, [&](uint32_t row, int64_t bytes, int) { AddToBand(row, bytes); });
      if (!totals.Apply(event)) continue;
      for (Timeline::Memory& memory : timeline_.memories) {
        if (!absl::c_linear_search(totals.changed_accounts(), memory.account)) continue;
        const int64_t in_use = totals.account(memory.account).in_use;
        memory.low.back() = std::min(memory.low.back(), in_use);
        memory.high.back() = std::max(memory.high.back(), in_use);
        if (peak_events_.count(number) == 0 || totals.account(memory.account).peak_event != number) continue;
        memory.peak_instant = timeline_.times.size();
        is_instant = true;
      }
      if (std::exchange(is_instant, false)) AddInstant(time, totals);
    }
    TakeSamples(INT64_MAX, totals);
    while (ends_ <= options_.intervals) AddEnd(totals);
    for (Timeline::Memory& memory : timeline_.memories) {
      memory.low.pop_back();
      memory.high.pop_back();
      for (Timeline::Band& band : memory.bands) band.values.pop_back();
      memory.peak = totals.account(memory.account).peak;
      memory.peak_time = Minus(totals.account(memory.account).peak_time, tables_.start_time);
      for (uint32_t row = 0; row < totals.row_count(); ++row) {
        if (totals.account_of(row) != memory.account || totals.peak_bytes(row) == 0) continue;
        memory.at_peak.push_back({row, totals.peak_bytes(row), totals.peak_objects(row)});
      }
    }
  }

  void AddToBand(uint32_t row, int64_t change) {
    if (row < band_of_row_.size() && band_of_row_[row] != nullptr) AddTo(band_of_row_[row]->values.back(), change);
  }

  // Returns whether the event is a mark that becomes an instant.
  bool AddMark(const RecordedEvent& event, int64_t time) {
    constexpr size_t kMaxMarks = 10000;  // reached by a program whose allocations fail in a loop
    constexpr size_t kMaxInstants = 100;
    const bool is_failed = event.kind == RecordedKind::kFailed;
    if ((!is_failed && event.kind != RecordedKind::kMark) || ++timeline_.mark_count > kMaxMarks) return false;
    Timeline::Mark& mark = timeline_.marks.emplace_back();
    mark.time = time;
    if (is_failed) {
      mark.kind = Timeline::MarkKind::kFailed;
      mark.bytes = event.bytes;
      mark.site = event.site;
      mark.memory = AccountName(tables_, event.id);
    } else {
      mark.name = tables_.marks[event.id].name;
      if (internal::IsReport(mark.name)) mark.kind = Timeline::MarkKind::kReport;
      if (mark.name == internal::kOffMark) mark.kind = Timeline::MarkKind::kOff;
    }
    if (++mark_counts_[is_failed ? 1 : 0] > kMaxInstants) return false;
    mark.instant = timeline_.times.size();
    return true;
  }

  int64_t EndOf(size_t interval) const {
    const double part = static_cast<double>(interval) / static_cast<double>(options_.intervals);
    return static_cast<int64_t>(static_cast<double>(timeline_.duration) * part);
  }
  // Adds the end of the next interval; first the start.
  void AddEnd(const SiteTotals& totals) {
    const int64_t time = EndOf(ends_++);
    TakeSamples(Plus(tables_.start_time, time), totals);
    AddInstant(time, totals);
  }

  void AddInstant(int64_t time, const SiteTotals& totals) {
    timeline_.times.push_back(time);
    timeline_.host.push_back(host_);
    for (Timeline::Memory& memory : timeline_.memories) {
      const int64_t in_use = totals.account(memory.account).in_use;
      memory.in_use.push_back(in_use);
      memory.idle.push_back(totals.account(memory.account).idle);
      memory.low.push_back(in_use);
      memory.high.push_back(in_use);
      for (Timeline::Band& band : memory.bands) band.values.push_back(band.values.back());
      const auto [driver_in_use, unaccounted] = of_driver_[memory.account];
      memory.driver_in_use.push_back(driver_in_use);
      memory.unaccounted.push_back(unaccounted);
    }
  }

  void TakeSamples(int64_t until, const SiteTotals& totals) {
    while (const DriverSample* sample = cursor_.NextSample(until)) {
      if (sample->host_resident_bytes.has_value()) host_ = sample->host_resident_bytes;
      for (const DriverSample::Device& device : sample->devices) {
        const size_t account = size_t{device.device} * kMemorySpaceCount;
        for (Timeline::Memory& memory : timeline_.memories) {
          if (memory.account == account && device.bytes_limit.has_value()) memory.limit = device.bytes_limit;
        }
        if (!device.bytes_in_use.has_value()) continue;
        of_driver_[account] = {device.bytes_in_use, Unaccounted(device, totals.account(account).in_use)};
      }
    }
  }

  const RecordingTables& tables_;
  const TimelineOptions& options_;
  RecordingCursor cursor_;
  Timeline timeline_;
  std::set<int64_t> peak_events_;
  std::vector<Timeline::Band*> band_of_row_;
  size_t ends_ = 0;             // that were added
  size_t mark_counts_[2] = {};  // marks, failed allocations
  std::optional<int64_t> host_;
  std::map<size_t, std::pair<std::optional<int64_t>, std::optional<int64_t>>> of_driver_;  // by account
};

}  // namespace

absl::StatusOr<Timeline> MakeTimeline(RecordingReader& recording, const TimelineOptions& options) {
  return TimelineMaker(recording, options).Make();
}

}  // namespace hbmprof::tool
