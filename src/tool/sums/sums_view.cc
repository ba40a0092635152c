#include "src/tool/sums/sums_view.h"

#include "src/tool/profile/labels.h"

namespace hbmprof::tool {
namespace {

// Whether the profiles have no bytes in use, but a peak: their programs had ended.
bool IsAllFreed(const ProfileSet& profiles, size_t peak) {
  const std::optional<size_t> in_use = profiles.FindType("inuse_space");
  if (!in_use.has_value()) return false;
  bool has_peak = false;
  for (const ProfileSet::File& file : profiles.files()) {
    for (size_t s = 0; s < file.samples.size(); ++s) {
      if (profiles.Value(file, s, *in_use) != 0) return false;
      has_peak = has_peak || profiles.Value(file, s, peak) != 0;
    }
  }
  return has_peak;
}

}  // namespace

void KeepLastOfEachProcess(const std::string& command, size_t first, ProfileSet& profiles) {
  const std::vector<ProfileSet::File>& files = profiles.files();
  absl::flat_hash_map<std::string, size_t> last;
  std::vector<size_t> earlier;
  for (size_t i = first; i < files.size(); ++i) {
    const std::string process = ProcessIn(files[i]);
    // In containers with the network of the host, processes of different ranks can have the same id.
    const std::string rank = RankOf(files[i]);
    const auto [entry, is_new] = last.try_emplace(rank == files[i].path ? process : Cat(process, " ", rank), i);
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
  bool all_freed = false;
  const std::optional<size_t> peak = profiles.FindType("peak_space");
  if (options.type.empty() && options.older.empty() && peak.has_value() && IsAllFreed(profiles, *peak)) {
    type = *peak;
    all_freed = true;
  }
  // The age of unaccounted memory is not known.
  const bool by_library = absl::c_linear_search(options.by, kLibraryLabel);
  if (by_library && options.older.empty()) AddUnaccounted(profiles);
  RETURN_IF_ERROR(ApplyView(command, options, profiles, &trimmed));
  RETURN_IF_ERROR(CheckLabels(profiles, grouping.labels));
  const SampleType name = profiles.types()[type];
  return SumsQuery{std::move(profiles), type,    name.type,     name.unit,
                   std::move(grouping), trimmed, options.exact, all_freed};
}

absl::Status CheckLabels(const ProfileSet& profiles, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) RETURN_IF_ERROR(profiles.CheckLabelKey("--by", key));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FailOverLimit(const std::string& text, const std::string& unit) {
  int64_t limit = 0;
  if (text.empty()) return limit;
  if (!ParseBytes(text, &limit)) return InvalidArgument("--fail-over ", text, ": write a size such as 1MiB");
  const Unit known = UnitOf(unit);
  if (known.family == "memory") return limit / known.factor;
  if (text.find_first_not_of("0123456789.") != std::string::npos) {
    return InvalidArgument("--fail-over ", text,
                           ": the values of the sample type are not sizes; write a number in their unit, '", unit, "'");
  }
  return limit;
}

bool IsOff(const ProfileSet& profiles) {
  return absl::c_any_of(profiles.files(), [](const auto& file) { return !OffSince(file.info.warnings).empty(); });
}

std::string OffText(const std::string& since) {
  return Colored(Cat("RECORDING OFF since ", Visible(since), ": later allocations and frees are missing"),
                 Tone::kWarning);
}

std::string DeviceLines(const ProfileSet::File& file, bool exact) {
  std::string text;
  if (const std::string since = OffSince(file.info.warnings); !since.empty()) text += OffText(since) + "\n";
  for (const Comment& tracker : file.info.trackers) {
    const int64_t dropped = tracker.Number("dropped_records").value_or(0);
    if (dropped == 0) continue;
    text += Colored(Cat("INCOMPLETE: ", dropped, " allocations of ",
                        Bytes(tracker.Number("dropped_bytes").value_or(0), exact), " were not recorded"),
                    Tone::kWarning) +
            "\n";
  }
  for (const ProfileInfo::Device& device : file.info.devices) {
    const auto size = [&](const char* key) { return Bytes(device.Number(key).value_or(0), exact); };
    text += Cat(Visible(device.memory()), ": in use ", size("in_use"));
    if (device.Number("limit").has_value()) text += " of " + size("limit");
    text += Cat(", peak ", size("peak"));
    if (const auto unaccounted = device.Number("unaccounted"); unaccounted.has_value()) {
      text += Cat(", unaccounted ", FormatChange(*unaccounted, "bytes", exact));
    }
    text += "\n";
  }
  return text;
}

Json HeadJson(const SumsQuery& query, size_t first, int64_t total) {
  Json json = {{"version", kJsonVersion},
               {"files", query.profiles.PathsFrom(first)},
               {"type", query.type_name},
               {"unit", query.unit},
               {"total", total}};
  if (query.all_freed) json["all_freed"] = true;
  if (IsOff(query.profiles)) json["recording_off"] = true;
  return json;
}

std::string FreedLine(const SumsQuery& query) {
  return query.all_freed ? "nothing is in use any more: this is the memory at the peak (--type inuse_space shows 0)\n"
                         : "";
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
