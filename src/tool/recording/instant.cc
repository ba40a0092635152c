#include "src/tool/recording/instant.h"

#include <cmath>

#include "absl/time/time.h"
#include "hbmprof/pprof.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

// Calls `visit(event, count)` for the first `limit` events. `count` is 1 for the first one.
template <typename Visit>
void ForEachEvent(RecordingReader& recording, int64_t limit, const Visit& visit) {
  RecordingCursor cursor(recording);
  RecordedEvent event;
  while (cursor.count() < limit && cursor.Next(&event)) visit(event, cursor.count());
}

// Returns the instant after the last change for whose last event `is_wanted` is true; the start if there is none.
template <typename IsWanted>
RecordedInstant LastAfter(RecordingReader& recording, const IsWanted& is_wanted) {
  RecordedInstant instant{0, recording.tables().start_time};
  ForEachEvent(recording, INT64_MAX, [&](const RecordedEvent& event, int64_t count) {
    if (is_wanted(event) && !event.is_continued) instant = {count, std::max(instant.time, event.time)};
  });
  return instant;
}

absl::StatusOr<size_t> AccountNamed(const SiteTotals& totals, const RecordingTables& tables,
                                    const std::string& memory) {
  for (size_t account = 0; account < totals.account_count(); ++account) {
    if (AccountName(tables, account) == memory) return account;
  }
  return NotFound("the recording has no memory '", memory, "'; it has: ", MemoriesOf(totals, tables));
}

RecordedInstant EndOf(RecordingReader& recording) {
  RecordedInstant instant = LastAfter(recording, [](const RecordedEvent&) { return true; });
  instant.time = std::max(instant.time, recording.end_time());
  return instant;
}

absl::StatusOr<RecordedInstant> PeakOf(RecordingReader& recording, const std::string& memory) {
  SiteTotals totals(recording.tables());
  size_t account = 0;
  if (!memory.empty()) {
    ASSIGN_OR_RETURN(account, AccountNamed(totals, recording.tables(), memory));
  }
  if (totals.account_count() == 0) return RecordedInstant{0, recording.tables().start_time};
  ForEachEvent(recording, INT64_MAX, [&](const RecordedEvent& event, int64_t) { totals.Apply(event); });
  for (size_t a = 0; memory.empty() && a < totals.account_count(); ++a) {
    if (totals.account(a).peak > totals.account(account).peak) account = a;
  }
  return RecordedInstant{totals.account(account).peak_event + 1, totals.account(account).peak_time};
}

absl::StatusOr<RecordedInstant> BeforeOutOfMemory(RecordingReader& recording, const std::string& memory) {
  size_t wanted = 0;
  if (!memory.empty()) {
    ASSIGN_OR_RETURN(wanted, AccountNamed(SiteTotals(recording.tables()), recording.tables(), memory));
  }
  bool has_failed = false;
  RecordedInstant instant = LastAfter(recording, [&](const RecordedEvent& event) {
    const bool is_wanted = event.kind == RecordedKind::kFailed && (memory.empty() || event.id == wanted);
    has_failed = has_failed || is_wanted;
    return is_wanted;
  });
  if (!has_failed) {
    return NotFound("no allocation failed in the recording", memory.empty() ? "" : " in ", memory);
  }
  --instant.events;
  return instant;
}

absl::StatusOr<RecordedInstant> AtMark(RecordingReader& recording, const std::string& name) {
  const std::vector<RecordingTables::Mark>& marks = recording.tables().marks;
  const auto has_name = [&](const std::string& mark) {
    const size_t rest = mark.size() - std::min(mark.size(), name.size());
    return mark.compare(rest, std::string::npos, name) == 0 && (rest == 0 || mark[rest - 1] == '/');
  };
  bool is_found = false;
  const RecordedInstant instant = LastAfter(recording, [&](const RecordedEvent& event) {
    const bool is_mark = event.kind == RecordedKind::kMark && has_name(marks[event.id].name);
    is_found = is_found || is_mark;
    return is_mark;
  });
  if (is_found) return instant;
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(marks.size(), 20); ++i) names += (i == 0 ? "" : ", ") + marks[i].name;
  return NotFound("no mark has the name '", name, "'; ",
                  names.empty() ? std::string("the recording has no marks") : "the marks are: " + names);
}

absl::StatusOr<RecordedInstant> AtTime(RecordingReader& recording, const std::string& text) {
  const RecordingTables& tables = recording.tables();
  int64_t time;
  if (const std::optional<double> seconds = ParseSeconds(text); seconds.has_value()) {
    constexpr double kMost = 1e9;
    time = Plus(tables.start_time, std::llround(std::min(*seconds, kMost) * 1e9));
  } else {
    absl::Time parsed;
    std::string error;
    if (!absl::ParseTime(absl::RFC3339_full, text, &parsed, &error)) {
      return InvalidArgument(
          "'", text, "' is no moment; write @end, @peak, @oom, @mark:NAME, a time since the start such as @12.5s, or @",
          FormatTime(tables.start_unix_nanos));
    }
    time = Plus(tables.start_time, Minus(absl::ToUnixNanos(parsed), tables.start_unix_nanos));
    // Messages show times in whole seconds, rounded down. The user can enter such a time of the start.
    if (absl::ToUnixSeconds(parsed) == tables.start_unix_nanos / 1000000000) time = std::max(time, tables.start_time);
  }
  if (time >= tables.start_time && time <= recording.end_time()) return InstantAt(recording, time);
  return absl::OutOfRangeError(Cat("the recording begins at ", TimeText(tables, tables.start_time), ", and ends ",
                                   TimeText(tables, recording.end_time())));
}

}  // namespace

RecordedInstant InstantAt(RecordingReader& recording, int64_t time) {
  RecordedInstant instant = LastAfter(recording, [time](const RecordedEvent& event) { return event.time <= time; });
  instant.time = std::max(instant.time, time);
  return instant;
}

absl::StatusOr<RecordedInstant> InstantNamed(RecordingReader& recording, const std::string& moment) {
  constexpr std::string_view kMark = "mark:";
  if (moment.compare(0, kMark.size(), kMark) == 0) return AtMark(recording, moment.substr(kMark.size()));
  const size_t slash = std::min(moment.find('/'), moment.size());
  const std::string name = moment.substr(0, slash);
  const std::string memory = moment.substr(std::min(slash + 1, moment.size()));
  if (slash + 1 == moment.size() || (slash < moment.size() && name != "peak" && name != "oom")) {
    return InvalidArgument("'", moment, "': write @peak/MEMORY or @oom/MEMORY, such as @peak/GPU:0");
  }
  if (name == "peak") return PeakOf(recording, memory);
  if (name == "oom") return BeforeOutOfMemory(recording, memory);
  if (name == "end") return EndOf(recording);
  return AtTime(recording, moment);
}

std::string TimeText(const RecordingTables& tables, int64_t time) {
  const int64_t since = Minus(time, tables.start_time);
  return absl::StrFormat("%.6f s after the start, %s", static_cast<double>(since) / 1e9,
                         FormatTime(Plus(tables.start_unix_nanos, since)));
}

RecordingState StateAt(RecordingReader& recording, const RecordedInstant& instant) {
  RecordingState state(recording.tables());
  ForEachEvent(recording, instant.events, [&](const RecordedEvent& event, int64_t) { state.Apply(event); });
  return state;
}

absl::StatusOr<std::string> ProfileAt(RecordingReader& recording, const RecordedInstant& instant) {
  Snapshot snapshot = StateAt(recording, instant).ToSnapshot(instant.time, SampleAt(recording, instant.time));
  AddGaps(recording, snapshot);
  const std::unique_ptr<Symbolizer> names = internal::NamesOfRecording(recording.tables());
  return SerializePprof(snapshot, names.get());
}

}  // namespace hbmprof::tool
