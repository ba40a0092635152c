#include "src/tool/recording/instant.h"

#include <cmath>

#include "absl/time/time.h"
#include "hbmprof/pprof.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/symbols/profile_symbols.h"
#include "src/tool/torch/torch_snapshot.h"

namespace hbmprof::tool {

const char kRecordedSiteLabel[] = "\x01recorded_site";

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

// Orders the memories among which a moment chooses: any device memory in use is above all other memory.
std::pair<bool, int64_t> RankOf(size_t account, int64_t bytes) {
  return {account % kMemorySpaceCount == 0 && bytes > 0, bytes};
}

absl::StatusOr<RecordedInstant> PeakOf(RecordingReader& recording, const std::string& memory) {
  SiteTotals totals(recording.tables());
  size_t account = 0;
  if (!memory.empty()) {
    ASSIGN_OR_RETURN(account, AccountNamed(totals, recording.tables(), memory));
  }
  if (totals.account_count() == 0) return RecordedInstant{0, recording.tables().start_time};
  ForEachEvent(recording, INT64_MAX, [&](const RecordedEvent& event, int64_t) { totals.Apply(event); });
  const auto rank = [&totals](size_t number) { return RankOf(number, totals.account(number).peak); };
  for (size_t a = 0; memory.empty() && a < totals.account_count(); ++a) {
    if (rank(a) > rank(account)) account = a;
  }
  return RecordedInstant{totals.account(account).peak_event + 1, totals.account(account).peak_time};
}

// Returns the instant with the most memory in use, without the idle memory of pools, of those that directly follow an
// allocation for whose site `is_wanted` is true; nullopt if there is none.
template <typename IsWanted>
std::optional<RecordedInstant> PeakOfPools(RecordingReader& recording, const IsWanted& is_wanted) {
  const RecordingTables& tables = recording.tables();
  SiteTotals totals(tables);
  std::optional<RecordedInstant> instant;
  std::pair<bool, int64_t> peak = {false, -1};  // RankOf
  bool follows = false;
  ForEachEvent(recording, INT64_MAX, [&](const RecordedEvent& event, int64_t count) {
    follows =
        follows || (event.kind == RecordedKind::kAlloc && event.site < tables.sites.size() && is_wanted(event.site));
    if (!totals.Apply(event)) return;
    for (const size_t number : totals.changed_accounts()) {
      const SiteTotals::Account& account = totals.account(number);
      const std::pair<bool, int64_t> rank = RankOf(number, Minus(account.in_use, account.idle));
      if (!follows || rank <= peak) continue;
      peak = rank;
      instant = {count, event.time};
    }
    follows = false;
  });
  return instant;
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
  const auto has_name = [&](const std::string& mark) { return mark == name || absl::EndsWith(mark, "/" + name); };
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

// Returns the nanoseconds from the start to the time of day `text`, in UTC, with or without its date.
std::optional<int64_t> SinceStart(const RecordingTables& tables, const std::string& text) {
  absl::Time time;
  const std::string date = FormatTime(tables.start_unix_nanos).substr(0, 11);
  const bool has_date = absl::ParseTime(absl::RFC3339_full, text, &time, nullptr);
  if (!has_date && !absl::ParseTime(absl::RFC3339_full, Cat(date, text, "Z"), &time, nullptr)) return std::nullopt;
  const absl::Duration since = time - absl::FromUnixNanos(tables.start_unix_nanos);
  if (since < absl::ZeroDuration() && since > -absl::Seconds(1)) return 0;  // times are printed without the fraction
  return absl::ToInt64Nanoseconds(since < absl::ZeroDuration() && !has_date ? since + absl::Hours(24) : since);
}

absl::StatusOr<RecordedInstant> AtTime(RecordingReader& recording, const std::string& text) {
  const RecordingTables& tables = recording.tables();
  constexpr double kMost = 1e9;
  std::optional<int64_t> since = SinceStart(tables, text);
  if (const auto seconds = ParseSeconds(text)) since = std::llround(std::min(*seconds, kMost) * 1e9);
  if (!since.has_value()) {
    return InvalidArgument(
        "'", text,
        "' is no moment; write @end, @peak, @pool_peak, @peak:TAG=VALUE, @oom, @mark:NAME, a time since the start "
        "such as @12.5s, or a time of day (UTC) such as @09:50:52");
  }
  const int64_t time = Plus(tables.start_time, *since);
  if (*since < 0 || time > recording.end_time()) {
    return absl::OutOfRangeError(Cat("the recording begins at ", TimeText(tables, tables.start_time), ", and ends ",
                                     TimeText(tables, recording.end_time())));
  }
  RecordedInstant instant = LastAfter(recording, [time](const RecordedEvent& event) { return event.time <= time; });
  instant.time = std::max(instant.time, time);
  return instant;
}

// Adds what the recording lacks.
absl::StatusOr<std::string> Serialized(const RecordingReader& recording, Snapshot snapshot) {
  for (std::string& gap : GapsOf(recording)) snapshot.warnings.push_back(std::move(gap));
  const std::unique_ptr<Symbolizer> names = internal::NamesOfRecording(recording.tables());
  return SerializePprof(snapshot, names.get());
}

// Adds kRecordedSiteLabel to the samples. `sites`: the row of each sample.
void AddSiteLabels(const std::vector<uint32_t>& sites, Snapshot& snapshot) {
  for (size_t i = 0; i < sites.size(); ++i) {
    std::vector<std::pair<std::string, std::string>>& tags = snapshot.samples[i].tags;
    const std::pair<std::string, std::string> tag = {kRecordedSiteLabel, std::to_string(sites[i])};
    tags.insert(absl::c_lower_bound(tags, tag), tag);
  }
}

// Returns by device the bytes of the segments of pools in which no block is live.
std::map<std::string, int64_t> FreeSegments(const RecordingTables& tables, const RecordingState& state) {
  const RecordedPools pools(tables);
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> segments;  // by pool and address
  for (const auto& [id, buffer] : state.live()) {
    const uint32_t pool = pools.segment_of(buffer.site);
    if (pool == RecordedPools::kNone) continue;
    segments[{pool, internal::AddressOfBuffer(id).value_or(0)}] = static_cast<uint64_t>(buffer.bytes);
  }
  for (const auto& [id, buffer] : state.live()) {
    const uint32_t pool = pools.from(buffer.site);
    const uint64_t address = internal::AddressOfBuffer(id).value_or(0);
    // A block can be in several segments that follow each other.
    auto next = segments.lower_bound({pool, address + static_cast<uint64_t>(buffer.bytes)});
    while (next != segments.begin()) {
      --next;
      if (next->first.first != pool || next->first.second + next->second <= address) break;
      next = segments.erase(next);
    }
  }
  std::map<std::string, int64_t> bytes;
  const auto of_pool = [&](uint32_t pool) -> int64_t& {
    return bytes[tables.names.devices[pools.all()[pool].device].name];
  };
  for (uint32_t pool = 0; pool < pools.all().size(); ++pool) of_pool(pool);
  for (const auto& [key, size] : segments) AddTo(of_pool(key.first), static_cast<int64_t>(size));
  return bytes;
}

// Reads all events, and stores the failed allocations. Returns the instant before the frees with which the program
// ends: nothing is allocated after them, they are in the last interval between two of kJudgedStates states, and less
// memory is in use after them than at any time of the second half.
std::optional<RecordedInstant> BeforeLastFrees(RecordingReader& recording, FailuresByAccount& failed) {
  const int64_t length = Minus(recording.end_time(), recording.tables().start_time);
  const int64_t half = recording.end_time() - length / 2;
  const int64_t late = recording.end_time() - length / static_cast<int64_t>(kJudgedStates - 1);
  const RecordedPools pools(recording.tables());
  int64_t in_use = 0;  // relative to the start, without the segments of pools, which stay when all is freed
  int64_t lowest = INT64_MAX;
  int64_t whole = 0;  // the events up to the last one that ends a change
  std::optional<RecordedInstant> before;
  ForEachEvent(recording, INT64_MAX, [&](const RecordedEvent& event, int64_t count) {
    if (event.kind == RecordedKind::kAlloc || event.kind == RecordedKind::kFailed) before.reset();
    if (event.kind == RecordedKind::kFailed) failed[event.id] = {failed[event.id].count + 1, event};
    if (!before && event.time >= half) lowest = std::min(lowest, in_use);
    if (!before && event.time >= late && event.kind == RecordedKind::kFree) before = {whole, event.time};
    const bool is_block =
        event.site >= recording.tables().sites.size() || pools.segment_of(event.site) == RecordedPools::kNone;
    if (is_block && internal::Begins(event.kind)) AddTo(in_use, event.bytes);
    if (is_block && internal::Ends(event.kind)) AddTo(in_use, -event.bytes);
    if (!event.is_continued) whole = count;
  });
  return in_use < lowest ? before : std::nullopt;
}

// The last state is that of the instant `last`, and is stored in `state`. `path`, `name_of_last`: of the profiles.
absl::StatusOr<std::vector<ProfileBytes>> StatesOf(RecordingReader& recording, const std::string& path,
                                                   const std::string& name_of_last, const RecordedInstant& last,
                                                   RecordingState& state) {
  constexpr size_t count = kJudgedStates;
  const RecordingTables& tables = recording.tables();
  const auto [events, end] = last;
  const int64_t nanos = Minus(end, tables.start_time);
  std::vector<ProfileBytes> states;
  const auto time_of = [&](size_t i) {
    return tables.start_time +
           static_cast<int64_t>(static_cast<double>(nanos) * static_cast<double>(i) / static_cast<double>(count - 1));
  };
  const auto add = [&](int64_t time) -> absl::Status {
    std::vector<uint32_t> sites;
    Snapshot snapshot = state.ToSnapshot(time, SampleAt(recording, time), &sites);
    AddSiteLabels(sites, snapshot);
    ASSIGN_OR_RETURN(std::string bytes, Serialized(recording, std::move(snapshot)));
    const double seconds = static_cast<double>(time - tables.start_time) / 1e9;
    const bool is_last = states.size() + 1 == count;
    states.push_back({is_last ? name_of_last : path + absl::StrFormat("@%.3fs", seconds), std::move(bytes)});
    return absl::OkStatus();
  };
  RecordingCursor cursor(recording);
  RecordedEvent event;
  while (cursor.count() < events && cursor.Next(&event)) {
    while (states.size() + 1 < count && time_of(states.size()) < event.time) {
      RETURN_IF_ERROR(add(time_of(states.size())));
    }
    state.Apply(event);
  }
  while (states.size() < count) {
    RETURN_IF_ERROR(add(std::max(states.size() + 1 == count ? end : time_of(states.size()), state.time())));
  }
  return states;
}

}  // namespace

LastState LastStateOf(const std::string& command, const std::string& path, RecordingReader& recording) {
  LastState last = {{INT64_MAX, recording.end_time()}, path, {}};
  const RecordingTables& tables = recording.tables();
  const auto is_end = [](const RecordingTables::Mark& mark) { return mark.name == internal::kPythonEndMark; };
  const bool is_python = absl::c_any_of(tables.marks, is_end);
  std::optional<RecordedInstant> python_end;
  const std::optional<RecordedInstant> before_frees = BeforeLastFrees(recording, last.failed);
  if (is_python) {
    ForEachEvent(recording, INT64_MAX, [&](const RecordedEvent& event, int64_t count) {
      if (event.kind == RecordedKind::kAlloc) python_end.reset();
      if (event.kind == RecordedKind::kMark && is_end(tables.marks[event.id])) python_end = {count, event.time};
    });
  }
  // The program itself can free all before the interpreter's end.
  if (python_end.has_value() && !(before_frees.has_value() && before_frees->events < python_end->events)) {
    last.instant = *python_end;
    last.source += "@mark:end of Python";
    PrintError(command, Cat(path, ": shows @mark:end of Python, because the interpreter then frees the program's ",
                            "variables; @end is the state after that"));
  } else if (before_frees.has_value() && !IsPickle(path)) {  // a program goes on after its snapshot
    last.instant = *before_frees;
    // Rounded down, so that the frees are after this moment.
    const int64_t micros = std::max<int64_t>(Minus(last.instant.time, tables.start_time) - 1, 0) / 1000;
    const std::string moment = absl::StrFormat("@%d.%06ds", micros / 1000000, micros % 1000000);
    last.source += moment;
    PrintError(command, Cat(path, ": shows ", moment, ", because the program then frees what it holds; @end is the ",
                            "state after that"));
  }
  return last;
}

absl::StatusOr<RecordedInstant> InstantNamed(RecordingReader& recording, const std::string& moment) {
  constexpr std::string_view kMark = "mark:";
  if (moment.compare(0, kMark.size(), kMark) == 0) return AtMark(recording, moment.substr(kMark.size()));
  constexpr std::string_view kPeakOf = "peak:";
  if (const size_t equals = moment.find('=');
      moment.compare(0, kPeakOf.size(), kPeakOf) == 0 && equals < moment.size()) {
    const std::pair tag(moment.substr(kPeakOf.size(), equals - kPeakOf.size()), moment.substr(equals + 1));
    const auto peak = PeakOfPools(
        recording, [&](uint32_t site) { return absl::c_linear_search(recording.tables().sites[site].tags, tag); });
    if (!peak.has_value()) return NotFound("nothing was allocated with the tag '", tag.first, "=", tag.second, "'");
    return *peak;
  }
  const size_t slash = std::min(moment.find('/'), moment.size());
  const std::string name = moment.substr(0, slash);
  const std::string memory = moment.substr(std::min(slash + 1, moment.size()));
  if (slash + 1 == moment.size() || (slash < moment.size() && name != "peak" && name != "oom")) {
    return InvalidArgument("'", moment, "': write @peak/MEMORY or @oom/MEMORY, such as @peak/GPU:0");
  }
  if (name == "peak") return PeakOf(recording, memory);
  if (moment == "pool_peak") {
    return PeakOfPools(recording, [](uint32_t) { return true; })
        .value_or(RecordedInstant{0, recording.tables().start_time});
  }
  if (name == "oom") return BeforeOutOfMemory(recording, memory);
  if (name == "end") return EndOf(recording);
  return AtTime(recording, moment);
}

std::string TimeText(const RecordingTables& tables, int64_t time) {
  const int64_t since = Minus(time, tables.start_time);
  return absl::StrFormat("%.6f s after the start, %s", static_cast<double>(since) / 1e9,
                         FormatTime(Plus(tables.start_unix_nanos, since)));
}

absl::StatusOr<std::string> ProfileAt(RecordingReader& recording, const RecordedInstant& instant) {
  const RecordingTables& tables = recording.tables();
  RecordingState state(tables);
  std::optional<RecordedEvent> failed;
  ForEachEvent(recording, std::min(instant.events, INT64_MAX - 1) + 1, [&](const RecordedEvent& event, int64_t count) {
    if (count <= instant.events) return void(state.Apply(event));
    if (event.kind == RecordedKind::kFailed && event.time == instant.time) failed = event;
  });
  Snapshot snapshot = state.ToSnapshot(instant.time, SampleAt(recording, instant.time));
  if (failed.has_value()) {
    snapshot.warnings.push_back(
        Cat("Out of memory on ", AccountName(tables, failed->id), ": an allocation of ", FailedText(tables, *failed)));
  }
  return Serialized(recording, std::move(snapshot));
}

absl::StatusOr<RecordedStates> ReadRecorded(const std::string& command, const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<RecordingReader> reader, OpenRecordingFile(path));
  const RecordingTables& tables = reader->tables();
  LastState last = LastStateOf(command, path, *reader);
  RecordingState state(tables);
  ASSIGN_OR_RETURN(const std::vector<ProfileBytes> bytes, StatesOf(*reader, path, last.source, last.instant, state));
  std::map<std::string, int64_t> free_segments = FreeSegments(tables, state);
  WarnOfGaps(command, path, *reader);
  ASSIGN_OR_RETURN(ProfileSet profiles, ParseWithLines(bytes));
  return RecordedStates{std::move(reader), std::move(profiles), std::move(last.source), std::move(last.failed),
                        std::move(free_segments)};
}

}  // namespace hbmprof::tool
