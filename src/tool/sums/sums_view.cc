#include "src/tool/sums/sums_view.h"

#include "src/tool/profile/libraries.h"

namespace hbmprof::tool {

void KeepLastOfEachProcess(const std::string& command, size_t first, ProfileSet& profiles) {
  const std::vector<ProfileSet::File>& files = profiles.files();
  absl::flat_hash_map<std::string, size_t> last;
  std::vector<size_t> earlier;
  for (size_t i = first; i < files.size(); ++i) {
    const std::string process = ProcessIn(files[i]);
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
  // The age of unaccounted memory is not known.
  const bool by_library = absl::c_linear_search(options.by, kLibraryLabel);
  if (by_library && options.older.empty()) AddUnaccounted(profiles);
  RETURN_IF_ERROR(ApplyView(command, options, profiles, &trimmed));
  ASSIGN_OR_RETURN(const size_t type, profiles.TypeNamed(options.type));
  RETURN_IF_ERROR(CheckLabels(profiles, grouping.labels));
  const SampleType name = profiles.types()[type];
  return SumsQuery{std::move(profiles), type, name.type, name.unit, std::move(grouping), trimmed, options.exact};
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

std::string DeviceLines(const ProfileSet::File& file, bool exact) {
  std::string text;
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

Json HeadJson(const SumsQuery& query, int64_t total) {
  return {{"version", kJsonVersion},
          {"files", query.profiles.PathsFrom(0)},
          {"type", query.type_name},
          {"unit", query.unit},
          {"total", total}};
}

Json RowJson(const Sums::Row& row, const Grouping& grouping) {
  Json json = Json::object();
  if (!grouping.labels.empty()) {
    Json& labels = json["labels"] = Json::object();
    for (size_t i = 0; i < grouping.labels.size(); ++i) labels[grouping.labels[i]] = row.labels[i];
  }
  if (grouping.frames != Grouping::Frames::kNone) {
    json["name"] = row.name;
    json["where"] = row.position;
  }
  return json;
}

std::string RowTable(const std::vector<Sums::Row>& rows, size_t shown, const Grouping& grouping,
                     const std::vector<ValueColumn>& columns, const std::function<Tone(const Sums::Row&)>& tone) {
  std::string align(columns.size(), 'r');
  std::vector<std::string> head;
  for (const ValueColumn& column : columns) head.push_back(column.heading);
  const bool are_functions = grouping.frames == Grouping::Frames::kFunctions;
  head.insert(head.end(), grouping.labels.begin(), grouping.labels.end());
  if (are_functions) head.insert(head.end(), {"function", "where"});
  if (grouping.frames == Grouping::Frames::kLines) head.push_back("line");
  if (grouping.frames == Grouping::Frames::kFiles) head.push_back("file");
  align.resize(head.size(), 'l');
  Table table(align);
  table.Add(head);
  shown = shown == 0 ? rows.size() : std::min(shown, rows.size());
  for (size_t i = 0; i < shown; ++i) {
    std::vector<std::string> cells;
    for (const ValueColumn& column : columns) cells.push_back(column.cell(rows[i]));
    for (const std::string& label : rows[i].labels) cells.push_back(label.empty() ? "-" : label);
    if (grouping.frames != Grouping::Frames::kNone) cells.push_back(rows[i].name);
    if (are_functions) cells.push_back(rows[i].position == rows[i].name ? "" : rows[i].position);
    table.Add(std::move(cells), tone ? tone(rows[i]) : Tone::kPlain);
  }
  return table.Text(TerminalColumns()) + MoreRows(shown, rows.size());
}

std::string MoreRows(size_t shown, size_t all, const std::string& option) {
  return shown >= all ? "" : Cat("... and ", all - shown, " more rows (", option, " 0 shows all)\n");
}

}  // namespace hbmprof::tool
