#include "src/tool/report/timeline.h"

#include <numeric>

#include "hbmprof/allocation.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kInstants = 1000;  // with equal distances
constexpr size_t kMaxMarks = 100;   // marks that are shown, and that become instants; likewise failed allocations
constexpr size_t kMaxRows = 600;    // besides the rest of each account

// Returns the greatest common divisor of the values (1 if all are 0), and the differences between neighbouring values
// (the first one: from 0), divided by it, as text: each difference is a signed number in groups of five bits (VLQ, as
// in source maps), in the digits of Base64.
Json SeriesJson(const std::vector<int64_t>& values) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  int64_t unit = 0;
  for (const int64_t value : values) unit = std::gcd(unit, Magnitude(value));
  unit = std::max<int64_t>(unit, 1);
  std::string text;
  int64_t last = 0;
  for (const int64_t value : values) {
    const int64_t difference = Minus(value / unit, last);
    last = value / unit;
    uint64_t rest = static_cast<uint64_t>(Magnitude(difference)) << 1 | (difference < 0 ? 1 : 0);
    do {
      const uint64_t digit = rest & 31;
      rest >>= 5;
      text += kDigits[rest != 0 ? digit | 32 : digit];
    } while (rest != 0);
  }
  return {unit, std::move(text)};
}

// Reads the recording twice: first the instants and the largest rows, then their values.
class InstantSeries {
 public:
  InstantSeries(RecordingReader& recording, Progress& progress)
      : recording_(recording), tables_(recording.tables()), cursor_(recording, &progress), start_(tables_.start_time) {
    nanos_ = std::max<int64_t>(Minus(recording.end_time(), start_), 1);
  }

  // Finds the instants that are added to those with equal distances, and the most bytes of each row of SiteTotals.
  void Survey() {
    SiteTotals totals(tables_);
    for (uint32_t row = 0; row < totals.row_count(); ++row) most_.push_back(totals.row(row).bytes);
    RecordedEvent event;
    for (int64_t ordinal = 0; cursor_.Next(&event); ++ordinal) {
      if (event.kind == RecordedKind::kMark || event.kind == RecordedKind::kFailed) AddMark(event, ordinal);
      totals.Apply(event);
      totals.ForEachChange(
          event, [&](uint32_t row, int64_t, int) { most_[row] = std::max(most_[row], totals.row(row).bytes); });
    }
    for (size_t a = 0; a < totals.account_count(); ++a) {
      const SiteTotals::Account& account = totals.account(a);
      accounts_.push_back({account.is_used, account.peak, account.peak_event});
      if (account.peak_event >= 0) ordinals_.push_back(account.peak_event);
    }
    for (const Mark& mark : marks_) ordinals_.push_back(mark.ordinal);
    absl::c_sort(ordinals_);
    ordinals_.erase(std::unique(ordinals_.begin(), ordinals_.end()), ordinals_.end());
  }

  void MakeRows(const std::function<std::optional<TimelineRow>(uint32_t)>& row_of,
                const std::function<TimelineRow(size_t)>& rest_of) {
    const SiteTotals totals(tables_);
    absl::flat_hash_map<std::pair<size_t, size_t>, size_t> numbers;
    std::vector<int64_t> most;
    std::vector<int64_t> row_of_site(totals.row_count(), -1);
    std::vector<TimelineRow> rows;
    for (uint32_t site = 0; site < totals.row_count(); ++site) {
      const std::optional<TimelineRow> row = row_of(site);
      if (!row.has_value() || most_[site] == 0) continue;
      const auto [entry, is_new] = numbers.try_emplace({row->node, row->labels}, rows.size());
      if (is_new) {
        rows.push_back(*row);
        most.push_back(0);
      }
      AddTo(most[entry->second], most_[site]);
      row_of_site[site] = static_cast<int64_t>(entry->second);
    }
    std::vector<size_t> order(rows.size());
    absl::c_iota(order, size_t{0});
    absl::c_stable_sort(order, [&most](size_t a, size_t b) { return most[a] > most[b]; });
    std::vector<int64_t> shown(rows.size(), -1);
    for (size_t i = 0; i < order.size() && i < kMaxRows; ++i) {
      shown[order[i]] = static_cast<int64_t>(rows_.size());
      rows_.push_back({rows[order[i]], 0, {}});
    }
    std::vector<int64_t> rest(accounts_.size(), -1);
    row_of_site_.assign(totals.row_count(), -1);
    for (uint32_t site = 0; site < totals.row_count(); ++site) {
      if (row_of_site[site] < 0) continue;
      int64_t row = shown[static_cast<size_t>(row_of_site[site])];
      if (row < 0) {
        int64_t& of_account = rest[totals.account_of(site)];
        if (of_account < 0) {
          of_account = static_cast<int64_t>(rows_.size());
          rows_.push_back({rest_of(totals.account_of(site)), 0, {}});
        }
        row = of_account;
      }
      row_of_site_[site] = row;
      AddTo(rows_[static_cast<size_t>(row)].now, totals.row(site).bytes);
    }
  }

  void Read() {
    SiteTotals totals(tables_);
    for (size_t a = 0; a < accounts_.size(); ++a) {
      accounts_[a].low = accounts_[a].high = totals.account(a).in_use;
    }
    cursor_.Rewind();
    RecordedEvent event;
    size_t next_ordinal = 0;
    size_t next_instant = 0;
    const auto time_of = [this](size_t i) {
      return start_ + static_cast<int64_t>(static_cast<double>(nanos_) * static_cast<double>(i) / kInstants);
    };
    for (int64_t ordinal = 0; cursor_.Next(&event); ++ordinal) {
      while (next_instant < kInstants && time_of(next_instant) < event.time) {
        EnterSamples(totals, time_of(next_instant));
        AddInstant(totals, time_of(next_instant++));
      }
      EnterSamples(totals, Minus(event.time, 1));
      const bool is_complete = totals.Apply(event);
      totals.ForEachChange(event, [&](uint32_t site, int64_t bytes, int) {
        if (row_of_site_[site] >= 0) AddTo(rows_[static_cast<size_t>(row_of_site_[site])].now, bytes);
      });
      if (!is_complete) continue;
      for (const size_t a : totals.changed_accounts()) {
        accounts_[a].low = std::min(accounts_[a].low, totals.account(a).in_use);
        accounts_[a].high = std::max(accounts_[a].high, totals.account(a).in_use);
      }
      if (next_ordinal < ordinals_.size() && ordinals_[next_ordinal] <= ordinal) {
        while (next_ordinal < ordinals_.size() && ordinals_[next_ordinal] <= ordinal) {
          instant_of_[ordinals_[next_ordinal++]] = times_.size();
        }
        AddInstant(totals, event.time);
      }
    }
    EnterSamples(totals, INT64_MAX);
    while (next_instant <= kInstants) AddInstant(totals, time_of(next_instant++));
  }

  Json ToJson() const {
    Json json = {{"start", FormatTime(tables_.start_unix_nanos)},
                 {"start_unix_nanos", std::to_string(tables_.start_unix_nanos)},
                 {"events", recording_.event_count()},
                 {"problem", recording_.problem()},
                 {"times", SeriesJson(times_)}};
    Json& accounts = json["accounts"] = Json::array();
    for (size_t a = 0; a < accounts_.size(); ++a) {
      if (accounts_[a].is_used) accounts.push_back(AccountJson(a));
    }
    Json& rows = json["rows"] = Json::array();
    for (const Row& row : rows_) {
      const Json series = SeriesJson(row.values);
      rows.push_back({row.row.node, row.row.labels, series[0], series[1]});
    }
    if (has_host_) json["host"] = SeriesJson(host_);
    Json& marks = json["marks"] = Json::array();
    for (const Mark& mark : marks_) {
      marks.push_back({{"instant", instant_of_.at(mark.ordinal)}, {"failed", mark.is_failed}, {"text", mark.text}});
    }
    Json& lost = json["lost"] = Json::array();
    for (const LostEvents& events : recording_.lost()) {
      if (lost.size() == kMaxMarks) break;
      lost.push_back({Minus(events.from, start_), Minus(events.to, start_), events.count});
    }
    return json;
  }

 private:
  struct Account {
    bool is_used = false;
    int64_t peak = 0;
    int64_t peak_ordinal = -1;
    int64_t low = 0;
    int64_t high = 0;
    // By instant.
    std::vector<int64_t> lows;   // since the instant before
    std::vector<int64_t> highs;  // likewise
    std::vector<int64_t> in_use;
    std::vector<int64_t> idle;
    bool has_unaccounted = false;
    std::vector<int64_t> unaccounted;
    int64_t unaccounted_now = 0;
  };
  struct Row {
    TimelineRow row;
    int64_t now = 0;
    std::vector<int64_t> values;  // by instant
  };
  struct Mark {
    int64_t ordinal = 0;
    bool is_failed = false;
    std::string text;
  };

  // Keeps the first kMaxMarks marks, and as many failed allocations.
  void AddMark(const RecordedEvent& event, int64_t ordinal) {
    Mark mark;
    mark.ordinal = ordinal;
    mark.is_failed = event.kind == RecordedKind::kFailed;
    if (mark_counts_[mark.is_failed ? 1 : 0]++ >= kMaxMarks) return;
    mark.text = mark.is_failed                    ? Cat("an allocation of ", Bytes(event.bytes), " failed")
                : event.id < tables_.marks.size() ? tables_.marks[event.id].name
                                                  : "";
    marks_.push_back(std::move(mark));
  }

  void AddInstant(const SiteTotals& totals, int64_t time) {
    times_.push_back(Minus(time, start_));
    for (size_t a = 0; a < accounts_.size(); ++a) {
      Account& account = accounts_[a];
      if (!account.is_used) continue;
      const int64_t in_use = totals.account(a).in_use;
      account.lows.push_back(account.low);
      account.highs.push_back(account.high);
      account.in_use.push_back(in_use);
      account.idle.push_back(totals.account(a).idle);
      account.low = account.high = in_use;
      account.unaccounted.push_back(account.unaccounted_now);
    }
    for (Row& row : rows_) row.values.push_back(row.now);
    host_.push_back(host_now_);
  }

  void EnterSamples(const SiteTotals& totals, int64_t time) {
    while (const DriverSample* sample = cursor_.NextSample(time)) {
      has_host_ = has_host_ || sample->host_resident_bytes.has_value();
      host_now_ = sample->host_resident_bytes.value_or(host_now_);
      for (const DriverSample::Device& device : sample->devices) {
        const size_t a = size_t{device.device} * kMemorySpaceCount + static_cast<size_t>(MemorySpace::kDevice);
        if (a >= accounts_.size() || !device.bytes_in_use.has_value()) continue;
        accounts_[a].has_unaccounted = true;
        accounts_[a].unaccounted_now = Unaccounted(device, totals.account(a).in_use);
      }
    }
  }

  Json AccountJson(size_t a) const {
    const Account& account = accounts_[a];
    const auto space = static_cast<MemorySpace>(a % kMemorySpaceCount);
    const Snapshot::Device& device = tables_.names.devices[a / kMemorySpaceCount];
    Json json = {{"name", AccountName(tables_, a)},
                 {"device", device.name},
                 {"space", std::string(MemorySpaceName(space))},
                 {"peak", account.peak},
                 {"low", SeriesJson(account.lows)},
                 {"high", SeriesJson(account.highs)},
                 {"in_use", SeriesJson(account.in_use)}};
    const std::optional<int64_t> limit = device.spaces[a % kMemorySpaceCount].bytes_limit;
    if (limit.has_value() && *limit > 0) json["limit"] = *limit;
    if (account.peak_ordinal >= 0) json["peak_instant"] = instant_of_.at(account.peak_ordinal);
    if (absl::c_any_of(account.idle, [](int64_t bytes) { return bytes != 0; })) {
      json["idle"] = SeriesJson(account.idle);
    }
    if (account.has_unaccounted) json["unaccounted"] = SeriesJson(account.unaccounted);
    return json;
  }

  RecordingReader& recording_;
  const RecordingTables& tables_;
  RecordingCursor cursor_;
  const int64_t start_;
  int64_t nanos_ = 1;
  std::vector<int64_t> most_;  // by row of SiteTotals
  std::vector<Account> accounts_;
  std::vector<Mark> marks_;
  size_t mark_counts_[2] = {};                       // marks, failed allocations
  std::vector<int64_t> ordinals_;                    // of events after which there is an instant; sorted
  absl::flat_hash_map<int64_t, size_t> instant_of_;  // by ordinal
  std::vector<int64_t> times_;                       // of the instants, since the start
  std::vector<Row> rows_;
  std::vector<int64_t> row_of_site_;  // by row of SiteTotals; -1: none
  bool has_host_ = false;
  int64_t host_now_ = 0;
  std::vector<int64_t> host_;
};

}  // namespace

Json TimelineJson(RecordingReader& recording, const std::function<std::optional<TimelineRow>(uint32_t)>& row_of,
                  const std::function<TimelineRow(size_t)>& rest_of, Progress& progress) {
  InstantSeries series(recording, progress);
  series.Survey();
  series.MakeRows(row_of, rest_of);
  series.Read();
  return series.ToJson();
}

}  // namespace hbmprof::tool
