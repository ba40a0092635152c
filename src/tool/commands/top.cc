// `hbmprof top`: shows which functions, lines or labels hold the memory, or the call tree.
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "src/tool/commands/command.h"
#include "src/tool/commands/live_top.h"
#include "src/tool/commands/options.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/sums/sums_view.h"

namespace hbmprof::tool {
namespace {

struct TopOptions : SumsOptions {
  std::string interval = "2s";
};

Json Header(const SumsQuery& query, const Sums& sums) {
  return {{"version", kJsonVersion},  {"files", query.profiles.PathsFrom(0)},
          {"type", query.type_name},  {"unit", query.unit},
          {"total", sums.total()[1]}, {"selected", sums.sum()[1]}};
}

// Prints the lines above the table.
void PrintHead(const TopOptions& options, const SumsQuery& query, const Sums& sums) {
  for (const ProfileSet::File& file : query.profiles.files()) {
    PrintVisible(Cat(Visible(file.path), "  ", FormatTime(file.time_nanos), "\n", DeviceLines(file, options.exact)));
  }
  const auto size = [&](int64_t value) { return FormatValue(value, query.unit, options.exact); };
  const int64_t sum = sums.sum()[1];
  const int64_t total = sums.total()[1];
  const std::string of = options.has_filter() || sum != total ? Cat(" of ", size(total)) : "";
  Print(Cat(Visible(query.type_name), ": ", Visible(size(sum)), Visible(of), "\n", query.trimmed ? kTrimmedText : "",
            "\n"));
}

void PrintTree(const TopOptions& options, const SumsQuery& query, const Sums& sums) {
  const CallTree tree(query.profiles, query.type, query.grouping);
  if (options.json) {
    Json json = Header(query, sums);
    json["nodes"] = TreeJson(tree);
    Print(ToText(json));
    return;
  }
  PrintHead(options, query, sums);
  const auto size = [&](int64_t value) { return FormatValue(value, query.unit, options.exact); };
  PrintVisible(TreeTable(tree, options.nodes(), sums.total()[1], size));
}

// Returns how many seconds before the dump the oldest buffers of each row were born, at the most, by the labels and the
// name of the row. Empty without the label of births, or for several files.
std::map<std::pair<std::vector<std::string>, std::string>, int64_t> OldestBuffers(const SumsQuery& query) {
  std::map<std::pair<std::vector<std::string>, std::string>, int64_t> oldest;
  const std::vector<ProfileSet::File>& files = query.profiles.files();
  const std::optional<int64_t> uptime = files.size() == 1 ? files[0].info.UptimeSeconds() : std::nullopt;
  if (!uptime.has_value()) return oldest;
  Grouping grouping = query.grouping;
  grouping.labels.emplace_back(kBirthLabel);
  for (Sums::Row& row : Sums(query.profiles, {{0, 1}}, query.type, grouping).Rows(false)) {
    const std::string birth = std::move(row.labels.back());
    row.labels.pop_back();
    int64_t seconds = 0;
    if (!absl::SimpleAtoi(birth, &seconds)) continue;
    int64_t& age = oldest[{std::move(row.labels), std::move(row.name)}];
    age = std::max(age, Minus(*uptime, seconds));
  }
  return oldest;
}

void PrintRows(const TopOptions& options, const SumsQuery& query, const Sums& sums) {
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  const auto oldest = options.NeedsAges() ? OldestBuffers(query) : decltype(OldestBuffers(query))();
  const auto age_of = [&](const Sums::Row& row) -> std::optional<int64_t> {
    const auto found = oldest.find({row.labels, row.name});
    return found == oldest.end() ? std::nullopt : std::make_optional(found->second);
  };
  if (options.json) {
    Json json = Header(query, sums);
    Json& list = json["rows"] = Json::array();
    for (const Sums::Row& row : rows) {
      Json& entry = list.emplace_back(RowJson(row, query.grouping));
      entry["flat"] = row.flat[1];
      entry["cum"] = row.cum[1];
      if (const auto age = age_of(row); age.has_value()) entry["oldest_seconds"] = *age;
    }
    Print(ToText(json));
    return;
  }
  PrintHead(options, query, sums);
  const int64_t total = sums.total()[1];
  const auto size = [&](int64_t value) { return FormatValue(value, query.unit, options.exact); };
  std::vector<ValueColumn> columns = {
      {"flat", [&](const Sums::Row& row) { return size(row.flat[1]); }},
      {"flat%", [&](const Sums::Row& row) { return FormatPercent(row.flat[1], total); }}};
  if (query.grouping.frames != Grouping::Frames::kNone) {
    columns.push_back({"cum", [&](const Sums::Row& row) { return size(row.cum[1]); }});
    columns.push_back({"cum%", [&](const Sums::Row& row) { return FormatPercent(row.cum[1], total); }});
  }
  if (!oldest.empty()) {
    columns.push_back({"oldest", [&](const Sums::Row& row) {
                         const std::optional<int64_t> age = age_of(row);
                         return age.has_value() ? FormatDuration(static_cast<double>(*age)) : "-";
                       }});
  }
  PrintVisible(RowTable(rows, options.rows, query.grouping, columns));
}

absl::StatusOr<int> RunTop(const TopOptions& options) {
  ASSIGN_OR_RETURN(const double seconds,
                   SecondsOf("--interval", options.interval, 0.1, 86400, "a time from 100ms to 24h"));
  if (options.files.size() == 1 && !options.json && !options.tree && !options.NeedsAges() &&
      IsTerminal(STDOUT_FILENO)) {
    ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(options.files[0]));
    if (process.has_value()) return RunLiveTop(*process, options, seconds);
  }
  ASSIGN_OR_RETURN(const SumsQuery query, ReadQuery("top", options.files, options));
  const Sums sums(query.profiles, {{0, query.profiles.files().size()}}, query.type, query.grouping);
  if (options.tree) {
    PrintTree(options, query, sums);
  } else {
    PrintRows(options, query, sums);
  }
  return kSuccess;
}

}  // namespace

Command AddTopCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("top", "Show what holds the memory, largest first");
  auto options = std::make_shared<TopOptions>();
  arguments
      ->add_option("SOURCE", options->files,
                   "Profiles, also processes and run.hbmrec@peak; those of several processes are added up")
      ->required();
  AddSumsOptions(*arguments, *options);
  AddTreeOption(*arguments, *options);
  arguments->add_option("--older", options->older, "Only live buffers that are older than this time, such as 10m");
  arguments->add_option("--interval", options->interval, "On a terminal: the time after which a process is shown again")
      ->capture_default_str();
  return {arguments, [options] { return RunTop(*options); }, true};
}

}  // namespace hbmprof::tool
