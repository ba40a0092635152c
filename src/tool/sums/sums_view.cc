#include "src/tool/sums/sums_view.h"

#include "src/tool/profile/labels.h"
#include "src/tool/profile/series.h"

namespace hbmprof::tool {
namespace {

constexpr char kPoolPeak[] = "pool_peak_space";

// If the programs had freed all (IsFreed), returns the sample type that shows their peak: that of what their pools had
// handed out, if these still have memory.
std::optional<size_t> PeakOfFreed(const ProfileSet& profiles) {
  const std::optional<size_t> in_use = profiles.FindType("inuse_space");
  if (!in_use.has_value()) return std::nullopt;
  const auto has = [&](size_t type) {
    return absl::c_any_of(profiles.files(), [&](const auto& file) { return SumOf(profiles, file, type) != 0; });
  };
  for (const ProfileSet::File& file : profiles.files()) {
    if (!IsFreed(profiles, file, *in_use)) return std::nullopt;
  }
  std::optional<size_t> peak = profiles.FindType(kPoolPeak);
  if (peak.has_value() && has(*in_use) && has(*peak)) return peak;
  peak = profiles.FindType("peak_space");
  return peak.has_value() && has(*peak) ? peak : std::nullopt;
}

// Returns a line for each memory space in the comments of the file: in use, limit, peak, also that of the device if it
// is more than 1 % higher, and unaccounted.
std::string DeviceLines(const ProfileSet::File& file, bool exact) {
  std::string text;
  for (const ProfileInfo::Device& device : file.info.devices) {
    const auto size = [&](const char* key) { return Bytes(device.Number(key).value_or(0), exact); };
    text += Cat(Visible(device.memory()), ": in use ", size("in_use"));
    if (device.Number("limit").has_value()) text += " of " + size("limit");
    text += Cat(", peak ", size("peak"));
    const int64_t peak = device.Number("peak").value_or(0);
    if (device.Number("driver_peak").value_or(0) - peak > peak / 100) {
      text += Cat(" (", size("driver_peak"), " with temporaries and other memory that is not recorded)");
    }
    if (const auto unaccounted = device.Number("unaccounted"); unaccounted.has_value()) {
      text += Cat(", unaccounted ", FormatChange(*unaccounted, "bytes", exact));
    }
    text += "\n";
  }
  return text;
}

}  // namespace

void KeepLastOfEachProcess(const std::string& command, size_t first, ProfileSet& profiles) {
  const std::vector<ProfileSet::File>& files = profiles.files();
  absl::flat_hash_map<std::string, size_t> last;
  std::vector<size_t> earlier;
  for (size_t i = first; i < files.size(); ++i) {
    const std::string process = ProcessAndRankOf(files[i]);
    const auto [entry, is_new] = last.try_emplace(process, i);
    if (is_new || process.empty()) continue;
    const bool is_later = files[i].time_nanos >= files[entry->second].time_nanos;
    earlier.push_back(is_later ? std::exchange(entry->second, i) : i);
  }
  if (earlier.empty()) return;
  const size_t all = files.size() - first;
  profiles.RemoveFiles(earlier);
  PrintError(command, Cat("only the last profile of each process counts: ", all - earlier.size(), " of ", all));
}

absl::StatusOr<SumsQuery> MakeQuery(const std::string& command, ProfileSet profiles, const SumsOptions& options) {
  ASSIGN_OR_RETURN(Grouping grouping, Grouping::Parse(options.by));
  grouping.marks_code = options.by.empty() && !options.json;  // other rows are those of pprof
  bool trimmed = false;
  ASSIGN_OR_RETURN(size_t type, profiles.TypeNamed(options.type));
  std::optional<size_t> peak;
  if (options.type.empty() && options.older.empty()) peak = PeakOfFreed(profiles);
  type = peak.value_or(type);
  // The age of unaccounted memory is not known.
  const bool by_library = absl::c_linear_search(options.by, kLibraryLabel);
  if (by_library && options.older.empty()) AddUnaccounted(profiles);
  RETURN_IF_ERROR(ApplyView(command, options, profiles, &trimmed));
  RETURN_IF_ERROR(CheckLabels(profiles, grouping.labels));
  const SampleType name = profiles.types()[type];
  return SumsQuery{std::move(profiles), type,    name.type,     name.unit,
                   std::move(grouping), trimmed, options.exact, peak.has_value()};
}

absl::Status CheckLabels(const ProfileSet& profiles, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) RETURN_IF_ERROR(profiles.CheckLabelKey("--by", key));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FailOverLimit(const std::string& text, const std::string& unit) {
  int64_t limit = 0;
  if (text.empty()) return limit;
  if (!ParseBytes(text, &limit)) return InvalidArgument("--fail-over ", text, ": write a size such as 1MiB");
  if (unit == "bytes" || text.find_first_not_of("0123456789.") == std::string::npos) return limit;
  return InvalidArgument("--fail-over ", text,
                         ": the values of the sample type are not bytes; write a number in their unit, '", unit, "'");
}

std::string OffText(const std::string& since) {
  return Colored(Cat("RECORDING OFF since ", Visible(since), ": later allocations and frees are missing"),
                 Tone::kWarning);
}

void AddProblems(const ProfileSet::File& file, bool exact, Answer& answer) {
  for (const std::string& warning : file.info.warnings) {
    const std::string since = OffSince({warning});
    const bool is_lack = !absl::StrContains(warning, kOutOfMemory);
    if (is_lack) answer.json["problems"].push_back(warning);
    if (since.empty()) {
      answer.text += Colored(Cat(is_lack ? "INCOMPLETE: " : "", Visible(warning)), Tone::kWarning) + "\n";
      continue;
    }
    answer.text += OffText(since) + "\n";
    answer.json["recording_off"] = true;
    answer.exit_code = kFinding;
  }
  for (const Comment& tracker : file.info.trackers) {
    const int64_t dropped = tracker.Number("dropped_records").value_or(0);
    if (const int64_t tags = tracker.Number("dropped_tag_values").value_or(0); tags > 0) {
      answer.text +=
          Cat("note: ", tags, " tags became `other` or had no effect: a process keeps 1,000 values of a tag\n");
    }
    if (dropped == 0) continue;
    const std::string problem = Cat(dropped, " allocations of ",
                                    Bytes(tracker.Number("dropped_bytes").value_or(0), exact), " were not recorded");
    answer.json["problems"].push_back(problem);
    answer.text += Colored("INCOMPLETE: " + problem, Tone::kWarning) + "\n";
  }
}

Answer AnswerTo(const SumsQuery& query, bool is_json, size_t base_files, int64_t total, const std::string& summary) {
  Answer answer(is_json);
  answer.json.update({{"files", query.profiles.PathsFrom(base_files)},
                      {"type", query.type_name},
                      {"unit", query.unit},
                      {"total", total}});
  const std::vector<ProfileSet::File>& files = query.profiles.files();
  for (size_t i = 0; i < files.size(); ++i) {
    answer.text += Cat(base_files == 0  ? ""
                       : i < base_files ? "base  "
                                        : "now   ",
                       Visible(files[i].path), "  ", FormatTime(files[i].time_nanos), "\n");
    AddProblems(files[i], query.exact, answer);
    answer.text += DeviceLines(files[i], query.exact);
  }
  answer.text += summary + "\n";
  if (query.all_freed) {
    answer.json["all_freed"] = true;
    answer.text += Cat("nothing is in use any more", query.type_name == kPoolPeak ? " but idle memory of pools" : "",
                       ": this is the memory at the peak (--type inuse_space shows what is left)\n");
  }
  const std::string hint = SymbolizeHint(query.profiles, query.grouping.frames == Grouping::Frames::kLines);
  answer.text += Cat(query.trimmed ? kTrimmedText : "", hint, hint.empty() ? "\n" : "\n\n");
  return answer;
}

RowField<Sums::Row> ValueField(const SumsQuery& query, const std::string& name, RowValue value) {
  return {name, 'r', [&query, value](const Sums::Row& row) { return query.Text(value(row)); }, name, value};
}

RowField<Sums::Row> ChangeField(const SumsQuery& query, const std::string& name, RowValue value) {
  return {name, 'r', [&query, value](const Sums::Row& row) { return query.Change(value(row)); }, name, value};
}

RowField<Sums::Row> ShareField(const std::string& heading, int64_t whole, RowValue value) {
  return {heading, 'r', [=](const Sums::Row& row) { return FormatPercent(value(row), whole); }, "", nullptr};
}

void AddNameFields(const Grouping& grouping, RowFields<Sums::Row>& columns) {
  const std::vector<std::string>& keys = grouping.labels;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto value = [i](const Sums::Row& row) { return row.labels[i].empty() ? "-" : row.labels[i]; };
    columns.push_back({keys[i], 'l', value, "", nullptr});
  }
  const auto labels = [keys](const Sums::Row& row) {
    Json json = Json::object();
    for (size_t i = 0; i < keys.size(); ++i) json[keys[i]] = row.labels[i];
    return json;
  };
  if (!keys.empty()) columns.push_back({"", 'l', nullptr, "labels", labels});
  if (grouping.frames == Grouping::Frames::kNone) return;
  const bool are_functions = grouping.frames == Grouping::Frames::kFunctions;
  const char* const name = are_functions ? "function" : grouping.frames == Grouping::Frames::kLines ? "line" : "file";
  const auto name_of = [](const Sums::Row& row) { return row.name; };
  columns.push_back({name, 'l', name_of, name, name_of});
  if (!are_functions) return;
  columns.push_back({"where", 'l', [](const Sums::Row& row) { return row.position == row.name ? "" : row.position; },
                     "where", [](const Sums::Row& row) { return row.position; }});
}

}  // namespace hbmprof::tool
