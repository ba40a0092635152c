// `hbmprof diff`: shows what changed between two profiles.
#include <chrono>
#include <thread>

#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

struct DiffOptions : SumsOptions {
  std::string base;
  std::string fail_over;
  std::string after;
  bool ranks = false;
  bool has_frames = false;  // `frames` was given
  size_t frames = RanksOptions().frames;
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

absl::StatusOr<int> CompareRanks(const DiffOptions& options) {
  if (!options.after.empty() || !options.fail_over.empty() || options.tree || options.by_cum) {
    return InvalidArgument("--ranks takes none of --after, --fail-over, --tree and --cum");
  }
  RanksOptions ranks;
  ASSIGN_OR_RETURN(ranks.files, ProfilesIn(options.base));
  static_cast<ViewOptions&>(ranks) = options;
  ranks.is_part = true;
  ranks.files.insert(ranks.files.end(), options.files.begin(), options.files.end());
  ranks.type = options.type;
  ranks.rows = options.rows;
  ranks.frames = options.frames;
  ranks.exact = options.exact;
  ranks.json = options.json;
  return RunRanks(ranks);
}

absl::StatusOr<int> RunDiff(DiffOptions& options) {
  if (options.has_frames && !options.ranks) return InvalidArgument("--frames: is for --ranks");
  if (options.ranks) return CompareRanks(options);
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
                      "Compare the ranks of a run; rows are call stacks with --frames 4, or --by LABEL");
  arguments->add_option("--frames", options->frames, "With --ranks: frames to show of each call stack, 0 for all")
      ->capture_default_str()
      ->transform(WholeNumber(0, kMaxCount))
      ->each([options](const std::string&) { options->has_frames = true; })
      ->group("");  // the help of --ranks names it
  return {arguments, [options] { return RunDiff(*options); }, true};
}

}  // namespace hbmprof::tool
