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
};

void PrintJson(const DiffOptions& options, const SumsQuery& query, const Sums& sums, int64_t total) {
  Json json = {{"version", kJsonVersion},
               {"base", options.base},
               {"files", query.profiles.PathsFrom(1)},
               {"type", query.type_name},
               {"unit", query.unit},
               {"base_total", sums.sum()[0]},
               {"now_total", sums.sum()[1]},
               {"change", Minus(sums.sum()[1], sums.sum()[0])},
               {"total", total}};
  if (options.tree) {
    json["nodes"] = TreeJson(query, 1);
    Print(ToText(json));
    return;
  }
  Json& list = json["rows"] = Json::array();
  for (const Sums::Row& row : sums.Rows(options.by_cum)) {
    Json& entry = list.emplace_back(RowJson(row, query.grouping));
    entry["flat"] = row.flat_change();
    entry["cum"] = row.cum_change();
    entry["base_flat"] = row.flat[0];
    entry["now_flat"] = row.flat[1];
    entry["base_cum"] = row.cum[0];
    entry["now_cum"] = row.cum[1];
  }
  Print(ToText(json));
}

void PrintText(const DiffOptions& options, const SumsQuery& query, const Sums& sums, int64_t total) {
  const std::vector<ProfileSet::File>& files = query.profiles.files();
  for (size_t i = 0; i < files.size(); ++i) {
    PrintVisible(Cat(i == 0 ? "base" : "now ", "  ", Visible(files[i].path), "  ", FormatTime(files[i].time_nanos),
                     "\n", DeviceLines(files[i], options.exact)));
  }
  const int64_t growth = Minus(sums.sum()[1], sums.sum()[0]);
  const std::string summary = Cat(query.type_name, ": ", query.Change(growth), ", from ", query.Text(sums.sum()[0]),
                                  " to ", query.Text(sums.sum()[1]));
  PrintVisible(Colored(Visible(summary), ToneOf(growth)) + "\n");
  if (query.trimmed) Print(kTrimmedText);
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  if (rows.empty()) {
    Print("no row changed\n");
    return;
  }
  if (options.tree) {
    PrintVisible("\n" + TreeTable(query, 1, options.nodes(), total));
    return;
  }
  const bool has_cum = query.grouping.frames != Grouping::Frames::kNone;
  std::vector<ValueColumn> columns;
  // A narrow terminal has no space for shares and names.
  const auto add_share = [&](const char* heading, int64_t (Sums::Row::*value)() const) {
    constexpr size_t kWide = 100;
    if (TerminalColumns() != 0 && TerminalColumns() < kWide) return;
    columns.push_back({heading, [=](const Sums::Row& row) { return FormatPercent((row.*value)(), total); }});
  };
  columns.push_back({"flat", [&](const Sums::Row& row) { return query.Change(row.flat_change()); }});
  add_share("flat%", &Sums::Row::flat_change);
  if (has_cum) {
    columns.push_back({"cum", [&](const Sums::Row& row) { return query.Change(row.cum_change()); }});
    add_share("cum%", &Sums::Row::cum_change);
  }
  columns.push_back({"base", [&](const Sums::Row& row) { return query.Text(has_cum ? row.cum[0] : row.flat[0]); }});
  columns.push_back({"now", [&](const Sums::Row& row) { return query.Text(has_cum ? row.cum[1] : row.flat[1]); }});
  const auto tone = [](const Sums::Row& row) { return ToneOf(row.cum_change()); };
  PrintVisible("\n" + RowTable(rows, options.rows, query.grouping, columns, tone));
}

absl::StatusOr<int> RunDiff(DiffOptions& options) {
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
  if (options.json) {
    PrintJson(options, query, sums, total);
  } else {
    PrintText(options, query, sums, total);
    if (failed) {
      PrintVisible("\n" +
                   Colored(Cat("FAILED: the total grew by more than ", Visible(query.Text(limit))), Tone::kGrowth) +
                   "\n");
    }
  }
  return failed ? kFinding : kSuccess;
}

}  // namespace

Command AddDiffCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("diff", "Show what changed between two profiles");
  auto options = std::make_shared<DiffOptions>();
  arguments->add_option("BASE", options->base, "The earlier profile, also a process or run.hbmrec@10s")->required();
  arguments->add_option("SOURCE", options->files, "The later profile; those of several processes are added up");
  arguments->add_option("--after", options->after,
                        "Time to wait between BASE and SOURCE, such as 60s; without SOURCE, BASE is read twice");
  AddSumsOptions(*arguments, *options, true);
  arguments->add_option("--fail-over", options->fail_over,
                        "Exit with 1 if the total grew by more than this size, such as 1MiB");
  return {arguments, [options] { return RunDiff(*options); }, true};
}

}  // namespace hbmprof::tool
