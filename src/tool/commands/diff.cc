// `hbmprof diff`: shows what changed between two profiles.
#include <chrono>
#include <thread>

#include "src/tool/commands/command.h"
#include "src/tool/profile/labels.h"
#include "src/tool/profile/series.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/sums/ranks.h"

namespace hbmprof::tool {
namespace {

struct DiffOptions : SumsOptions {
  std::string base;
  std::string fail_over;
  std::string after;
  bool ranks = false;
};

void PrintHead(const DiffOptions& options, const SumsQuery& query, const Sums& sums) {
  const std::vector<ProfileSet::File>& files = query.profiles.files();
  for (size_t i = 0; i < files.size(); ++i) {
    PrintVisible(Cat(i == 0 ? "base" : "now ", "  ", Visible(files[i].path), "  ", FormatTime(files[i].time_nanos),
                     "\n", DeviceLines(files[i], options.exact)));
  }
  const int64_t growth = Minus(sums.sum()[1], sums.sum()[0]);
  const std::string summary = Cat(query.type_name, ": ", query.Change(growth), ", from ", query.Text(sums.sum()[0]),
                                  " to ", query.Text(sums.sum()[1]));
  PrintVisible(Colored(Visible(summary), ToneOf(growth)) + "\n");
  Print(FreedLine(query));
  if (query.trimmed) Print(kTrimmedText);
}

// `total`: what shares are relative to. `json`: as for ShowTree.
void ShowRows(const DiffOptions& options, const SumsQuery& query, const Sums& sums, int64_t total, Json* json) {
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  if (json == nullptr) Print(rows.empty() ? "no row changed\n" : "\n");
  if (json == nullptr && rows.empty()) return;
  if (options.tree) return ShowTree(query, 1, options.nodes(), total, json);
  using Row = Sums::Row;
  const bool has_cum = query.grouping.frames != Grouping::Frames::kNone;
  RowFields<Row> columns;
  const auto add = [&](const char* name, int64_t (Row::*change)() const) {
    const auto value = [change](const Row& row) { return (row.*change)(); };
    columns.push_back(ChangeField(query, name, value));
    // A narrow terminal has no space for shares and names.
    constexpr size_t kWide = 100;
    if (TerminalColumns() == 0 || TerminalColumns() >= kWide) {
      columns.push_back(ShareField(Cat(name, "%"), total, value));
    }
  };
  add("flat", &Row::flat_change);
  if (has_cum) add("cum", &Row::cum_change);
  for (const size_t i : {0, 1}) {
    const std::string name = i == 0 ? "base" : "now";
    const auto flat = [i](const Row& row) { return row.flat[i]; };
    const auto cum = [i](const Row& row) { return row.cum[i]; };
    const RowValue shown = has_cum ? RowValue(cum) : RowValue(flat);
    columns.push_back({name, 'r', ValueField(query, name, shown).text, name + "_flat", flat});
    if (has_cum) columns.push_back({"", 'r', nullptr, name + "_cum", cum});
  }
  AddNameFields(query.grouping, columns);
  if (json != nullptr) return AddRows("rows", rows, columns, options.rows, *json);
  const std::function<Tone(const Row&)> tone = [](const Row& row) { return ToneOf(row.cum_change()); };
  PrintVisible(TableOf(rows, columns, options.rows, tone));
}

// The columns of `diff --ranks`.
RowFields<ComparedRanks::Row> RankFields(const SumsQuery& query, const Grouping& grouping,
                                         const ComparedRanks& compared) {
  using Row = ComparedRanks::Row;
  RowFields<Row> columns;
  const auto add = [&](const std::string& heading, char align, std::function<std::string(const Row&)> text) {
    columns.push_back({heading, align, std::move(text), "", nullptr});
  };
  // A rank and its value: two columns, and one object in JSON.
  const auto name_of = [&compared](std::pair<size_t, int64_t> Row::*value) {
    return [&compared, value](const Row& row) { return compared.ranks[(row.*value).first].name; };
  };
  const auto add_json = [&](const char* key, std::pair<size_t, int64_t> Row::*value) {
    columns.back().key = key;
    columns.back().json = [name = name_of(value), value](const Row& row) -> Json {
      return {{"rank", name(row)}, {"value", (row.*value).second}};
    };
  };
  add("rank", 'r', name_of(&Row::outlier));
  add_json("outlier", &Row::outlier);
  add("differs by", 'r',
      [&](const Row& row) { return FormatChange(Minus(row.outlier.second, row.median), query.unit, query.exact); });
  columns.push_back({"median", 'r', [&](const Row& row) { return query.Text(row.median); }, "median",
                     [](const Row& row) { return row.median; }});
  for (const auto& [name, value] : {std::pair("smallest", &Row::smallest), std::pair("largest", &Row::largest)}) {
    add(name, 'r', [&query, value = value](const Row& row) { return query.Text((row.*value).second); });
    add_json(name, value);
    add("in", 'r', name_of(value));
  }
  columns.push_back({"ranks", 'r', [](const Row& row) { return std::to_string(row.rank_count); }, "rank_count",
                     [](const Row& row) { return row.rank_count; }});
  RowFields<Sums::Row> names;
  AddNameFields(grouping, names);
  for (RowField<Sums::Row>& name : names) columns.push_back({name.heading, name.align, name.text, name.key, name.json});
  return columns;
}

absl::StatusOr<int> RunRanks(DiffOptions options) {
  if (!options.after.empty() || !options.fail_over.empty() || options.tree || options.by_cum) {
    return InvalidArgument("--ranks takes none of --after, --fail-over, --tree and --cum");
  }
  ASSIGN_OR_RETURN(std::vector<std::string> files, ProfilesIn(options.base));
  files.insert(files.end(), options.files.begin(), options.files.end());
  ASSIGN_OR_RETURN(const Grouping grouping, Grouping::Parse(options.by));
  options.by.emplace_back(kRankLabel);
  ASSIGN_OR_RETURN(SumsQuery query, ReadQuery("diff", files, options));
  const std::optional<size_t> in_use = query.profiles.FindType("inuse_space");
  const std::optional<size_t> peak = query.profiles.FindType("peak_space");
  if (options.type.empty() && in_use.has_value() && peak.has_value() && !options.Names(kLibraryLabel)) {
    // If the ranks had freed most of their memory, their peaks say more. What only the driver knows has no peak.
    double now = 0;
    double at_peak = 0;
    for (const ProfileSet::File& file : query.profiles.files()) {
      now += static_cast<double>(SumOf(query.profiles, file, *in_use));
      at_peak += static_cast<double>(SumOf(query.profiles, file, *peak));
    }
    query.type = at_peak > 2 * now ? *peak : *in_use;
    query.type_name = query.profiles.types()[query.type].type;
  }
  // Rows of ranks have no `cum`, so only the innermost location counts.
  query.profiles.MapStacks([&](uint32_t stack) -> std::optional<uint32_t> {
    const ListTable& stacks = query.profiles.stacks();
    return stacks.length(stack) < 2 ? stack : query.profiles.StackOf({*stacks.begin(stack)});
  });
  const ComparedRanks compared = CompareRanks(query.profiles, query.type, grouping);
  const RowFields<ComparedRanks::Row> columns = RankFields(query, grouping, compared);
  std::vector<ComparedRanks::Row> rows = compared.rows;
  EraseIf(rows, [](const ComparedRanks::Row& row) { return row.smallest.second == row.largest.second; });
  const size_t equal = compared.rows.size() - rows.size();
  if (options.json) {
    Json json = {{"version", kJsonVersion}, {"type", query.type_name}, {"unit", query.unit}};
    Json& ranks = json["ranks"] = Json::array();
    for (const ComparedRanks::Rank& rank : compared.ranks) {
      ranks.push_back({{"rank", rank.name}, {"total", rank.total}, {"files", rank.files}});
    }
    json["equal_rows"] = equal;
    AddRows("rows", rows, columns, options.rows, json);
    Print(ToText(json));
    return kSuccess;
  }
  int64_t all = 0;  // the number of ranks of the run
  for (const ProfileSet::File& file : query.profiles.files()) {
    for (const Comment& environment : file.info.environments) {
      for (const char* variable :
           {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS"}) {
        all = std::max(all, environment.Number(variable).value_or(0));
      }
    }
  }
  const auto count = static_cast<int64_t>(compared.ranks.size());
  const auto [least, most] =
      absl::c_minmax_element(compared.ranks, [](const auto& a, const auto& b) { return a.total < b.total; });
  Print(Cat(count, count == 1 ? " rank" : " ranks",
            all > count ? Cat(" of ", all, " (the others have no profile here)") : "", ": ", query.type_name, " from ",
            query.Text(least->total), " (rank ", least->name, ") to ", query.Text(most->total), " (rank ", most->name,
            ")\n", query.trimmed ? kTrimmedText : "", "\n"));
  if (!rows.empty()) PrintVisible(TableOf(rows, columns, options.rows));
  if (equal > 0) Print(Cat(equal, equal == 1 ? " row is" : " rows are", " equal in all ranks\n"));
  return kSuccess;
}

absl::StatusOr<int> RunDiff(DiffOptions& options) {
  if (options.ranks) return RunRanks(options);
  // Reports a wrong size before the wait of --after.
  if (const absl::StatusOr<int64_t> size = FailOverLimit(options.fail_over, "bytes"); !size.ok()) return size.status();
  if (options.files.empty()) {
    if (options.after.empty()) return InvalidArgument("SOURCE or --after is required");
    options.files = {options.base};
  }
  std::vector<std::string> files = {options.base};
  files.insert(files.end(), options.files.begin(), options.files.end());
  double seconds = 0;
  if (!options.after.empty()) {
    ASSIGN_OR_RETURN(seconds, SecondsOf("--after", options.after, 0, 86400, "a time such as 60s or 5m, up to 24h"));
  }
  // The time is between the base and the other profiles.
  const auto wait = [&seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::exchange(seconds, 0)));
  };
  ASSIGN_OR_RETURN(const SumsQuery query, ReadQuery("diff", files, options, 1, wait));
  ASSIGN_OR_RETURN(const int64_t limit, FailOverLimit(options.fail_over, query.unit));
  const Sums sums(query.profiles, {{0, 1}, {1, query.profiles.files().size()}}, query.type, query.grouping);
  // As in pprof, shares are relative to the base, or to the new profile if the base is 0.
  const int64_t total = sums.total()[0] != 0 ? sums.total()[0] : sums.total()[1];
  const bool failed = !options.fail_over.empty() && Minus(sums.sum()[1], sums.sum()[0]) > limit;
  const int exit_code = failed || IsOff(query.profiles) ? kFinding : kSuccess;
  if (options.json) {
    Json json = HeadJson(query, 1, total);
    json["base"] = options.base;
    json["base_total"] = sums.sum()[0];
    json["now_total"] = sums.sum()[1];
    json["change"] = Minus(sums.sum()[1], sums.sum()[0]);
    json["failed"] = failed;
    ShowRows(options, query, sums, total, &json);
    Print(ToText(json));
    return exit_code;
  }
  PrintHead(options, query, sums);
  ShowRows(options, query, sums, total, nullptr);
  if (failed) {
    PrintVisible(
        "\n" + Colored(Cat("FAILED: the total grew by more than ", Visible(query.Text(limit))), Tone::kGrowth) + "\n");
  }
  return exit_code;
}

}  // namespace

Command AddDiffCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("diff", "Show what changed between two profiles, or between ranks");
  auto options = std::make_shared<DiffOptions>();
  arguments->add_option("BASE", options->base, "The earlier profile, also a process or run.hbmrec@10s")->required();
  arguments->add_option("SOURCE", options->files, "The later profile; those of several processes are added up");
  arguments->add_option("--after", options->after,
                        "Time to wait between BASE and SOURCE, such as 60s; without SOURCE, BASE is read twice");
  AddSumsOptions(*arguments, *options, true);
  arguments->add_option("--fail-over", options->fail_over,
                        "Exit with 1 if the total grew by more than this size, such as 1MiB");
  arguments->add_flag("--ranks", options->ranks,
                      "Compare the ranks of a run: first what one rank has and the others do not");
  return {arguments, [options] { return RunDiff(*options); }, true};
}

}  // namespace hbmprof::tool
