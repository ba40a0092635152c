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
  std::string budget;
  std::string format = "text";
  bool ranks = false;
};

// `total`: what shares are relative to.
void AddChanges(const DiffOptions& options, const SumsQuery& query, const Sums& sums, int64_t total, Answer& answer) {
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  if (rows.empty()) answer.text += "no row changed\n";
  if (rows.empty() && !answer.is_json) return;
  if (options.tree) return AddTree(query, 1, options.nodes(), total, answer);
  using Row = Sums::Row;
  const bool has_cum = query.grouping.frames != Grouping::Frames::kNone;
  RowFields<Row> columns;
  const auto add = [&](const char* name, int64_t (Row::*change)() const) {
    const auto value = [change](const Row& row) { return (row.*change)(); };
    columns.push_back(ChangeField(query, name, value));
    // A narrow terminal has no space for shares and names.
    const size_t width = TerminalColumns();
    if (width == 0 || width >= 100) columns.push_back(ShareField(Cat(name, "%"), total, value));
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
  answer.Add("rows", rows, columns, options.rows, [](const Row& row) { return ToneOf(row.cum_change()); });
}

RowFields<ComparedRanks::Row> RankFields(const SumsQuery& query, const Grouping& grouping,
                                         const ComparedRanks& compared) {
  using Row = ComparedRanks::Row;
  using Value = std::pair<size_t, int64_t> Row::*;  // a rank and its value: two columns, and one object in JSON
  const auto& ranks = compared.ranks;
  const auto rank = [&ranks](Value of) { return [=, &ranks](const Row& row) { return ranks[(row.*of).first].name; }; };
  const auto value = [&query](Value of) {
    return [=, &query](const Row& row) { return query.Text((row.*of).second); };
  };
  const auto json = [rank](Value of) {
    return [name = rank(of), of](const Row& row) -> Json { return {{"rank", name(row)}, {"value", (row.*of).second}}; };
  };
  RowFields<Row> columns = {
      {"rank", 'r', rank(&Row::outlier), "outlier", json(&Row::outlier)},
      {"differs by", 'r', [&query](const Row& row) { return query.Change(Minus(row.outlier.second, row.median)); }, "",
       nullptr},
      {"median", 'r', [&query](const Row& row) { return query.Text(row.median); }, "median", &Row::median},
      {"smallest", 'r', value(&Row::smallest), "smallest", json(&Row::smallest)},
      {"in", 'r', rank(&Row::smallest), "", nullptr},
      {"largest", 'r', value(&Row::largest), "largest", json(&Row::largest)},
      {"in", 'r', rank(&Row::largest), "", nullptr},
      {"ranks", 'r', [](const Row& row) { return std::to_string(row.rank_count); }, "rank_count", &Row::rank_count}};
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
  if (options.type.empty() && !query.all_freed && in_use.has_value() && peak.has_value() &&
      !options.Names(kLibraryLabel)) {
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
    const std::vector<uint64_t>& locations = query.profiles.stacks()[stack];
    return locations.size() < 2 ? stack : query.profiles.StackOf({locations[0]});
  });
  const ComparedRanks compared = CompareRanks(query.profiles, query.type, grouping);
  const RowFields<ComparedRanks::Row> columns = RankFields(query, grouping, compared);
  std::vector<ComparedRanks::Row> rows = compared.rows;
  EraseIf(rows, [](const ComparedRanks::Row& row) { return row.smallest.second == row.largest.second; });
  const size_t equal = compared.rows.size() - rows.size();
  Answer answer(options.json);
  answer.json.update({{"type", query.type_name}, {"unit", query.unit}, {"equal_rows", equal}});
  Json& ranks = answer.json["ranks"] = Json::array();
  for (const ComparedRanks::Rank& rank : compared.ranks) {
    ranks.push_back({{"rank", rank.name}, {"total", rank.total}, {"files", rank.files}});
  }
  int64_t all = 0;                                             // the number of ranks of the run
  std::map<std::string, std::vector<std::string>> files_with;  // by AddProblems
  for (const ProfileSet::File& file : query.profiles.files()) {
    AddProblems(file, query.exact, answer);
    if (!answer.text.empty()) files_with[std::exchange(answer.text, "")].push_back(Visible(file.path));
    for (const Comment& environment : file.info.environments) {
      for (const char* variable : kRankCountVariables) {
        all = std::max(all, environment.Number(variable).value_or(0));
      }
    }
  }
  const auto count = static_cast<int64_t>(compared.ranks.size());
  const auto [least, most] =
      absl::c_minmax_element(compared.ranks, [](const auto& a, const auto& b) { return a.total < b.total; });
  for (const auto& [problems, of] : files_with) {
    answer.text += Cat(of[0], of.size() > 1 ? Cat(" and ", of.size() - 1, " more") : "", "\n", problems);
  }
  answer.text += Cat(count, count == 1 ? " rank" : " ranks",
                     all > count ? Cat(" of ", all, " (the others have no profile here)") : "", ": ",
                     Visible(Cat(query.type_name, " from ", query.Text(least->total), " (rank ", least->name, ") to ",
                                 query.Text(most->total), " (rank ", most->name, ")")),
                     "\n", query.trimmed ? kTrimmedText : "", "\n");
  if (!rows.empty() || options.json) answer.Add("rows", rows, columns, options.rows);
  if (equal > 0) answer.text += Cat(equal, equal == 1 ? " row is" : " rows are", " equal in all ranks\n");
  return answer.Print();
}

absl::StatusOr<int> RunDiff(DiffOptions& options) {
  if (!options.budget.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> profiles, ProfilesIn(options.base));
    options.files.insert(options.files.begin(), profiles.begin(), profiles.end());
    return RunBudgetDiff(options, options.budget, options.json ? "json" : options.format);
  }
  if (options.ranks) return RunRanks(options);
  // Reports a wrong size before the wait of --after.
  if (const absl::StatusOr<int64_t> size = FailOverLimit(options.fail_over, "bytes"); !size.ok()) return size.status();
  if (options.files.empty()) {
    if (options.after.empty()) return InvalidArgument("SOURCE or --after is required");
    options.files = {options.base};
  }
  ASSIGN_OR_RETURN(std::vector<std::string> files, ProfilesIn(options.base));
  if (files.size() > 1) {
    return InvalidArgument(options.base, ": has ", files.size(), " profiles; name the one that is compared, such as ",
                           files.back());
  }
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
  if (!options.fail_over.empty()) RETURN_IF_ERROR(CheckIsUndamaged(query.profiles));
  const Sums sums(query.profiles, {{0, 1}, {1, query.profiles.files().size()}}, query.type, query.grouping);
  // As in pprof, shares are relative to the base, or to the new profile if the base is 0.
  const int64_t total = sums.total()[0] != 0 ? sums.total()[0] : sums.total()[1];
  const int64_t growth = Minus(sums.sum()[1], sums.sum()[0]);
  const std::string summary = Cat(query.type_name, ": ", query.Change(growth), ", from ", query.Text(sums.sum()[0]),
                                  " to ", query.Text(sums.sum()[1]));
  Answer answer = AnswerTo(query, options.json, 1, total, Colored(Visible(summary), ToneOf(growth)));
  const bool failed = !options.fail_over.empty() && growth > limit;
  answer.json.update({{"base", options.base},
                      {"base_total", sums.sum()[0]},
                      {"now_total", sums.sum()[1]},
                      {"change", growth},
                      {"failed", failed}});
  AddChanges(options, query, sums, total, answer);
  if (failed) {
    answer.exit_code = kFinding;
    const std::string verdict = Cat("FAILED: the total grew by more than ", Visible(query.Text(limit)));
    answer.text += Cat("\n", Colored(verdict, Tone::kGrowth), "\n");
  }
  return answer.Print();
}

}  // namespace

Command AddDiffCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("diff", "Show what changed between two profiles, or between ranks");
  auto options = std::make_shared<DiffOptions>();
  arguments->add_option("BASE", options->base, "The earlier profile, also a process or run.hbmrec@10s")->required();
  arguments->add_option("SOURCE", options->files, "The later profile; those of several processes are added up");
  arguments->add_option("--after", options->after,
                        "Time to wait between BASE and SOURCE, such as 60s; without SOURCE, BASE is read twice");
  AddSumsOptions(*arguments, *options);
  arguments->add_option("--fail-over", options->fail_over,
                        "Exit with 1 if the total grew by more than this size, such as 1MiB");
  arguments->add_flag("--ranks", options->ranks,
                      "Compare the ranks of a run: first what one rank has and the others do not");
  CLI::Option* const budget =
      arguments->add_option("--budget", options->budget,
                            "Compare the peak with this file of hbmprof budget; --format text, json, junit, markdown");
  for (const char* const other :
       {"--after", "--fail-over", "--ranks", "--tree", "--cum", "--exact", "--by", "--type"}) {
    budget->excludes(arguments->get_option(other));
  }
  arguments->add_option("--format", options->format, "With --budget: text, json, junit, or markdown for a pull request")
      ->group("")
      ->needs(budget)
      ->check(CLI::IsMember({"text", "json", "junit", "markdown"}));
  return {arguments, [options] { return RunDiff(*options); }, true};
}

}  // namespace hbmprof::tool
