// `hbmprof diff`: what changed between two profiles.
#include <algorithm>
#include <memory>

#include "src/tool/command.h"
#include "src/tool/sums_view.h"

namespace hbmprof::tool {
namespace {

struct DiffOptions : SumsOptions {
  std::string base;
  std::string fail_over;
};

absl::StatusOr<int> RunDiff(const DiffOptions& options) {
  int64_t limit = 0;
  if (!options.fail_over.empty() && !ParseBytes(options.fail_over, &limit)) {
    return absl::InvalidArgumentError(Cat("--fail-over ", options.fail_over, ": write a size such as 1MiB"));
  }
  std::vector<std::string> files = {options.base};
  files.insert(files.end(), options.files.begin(), options.files.end());
  const absl::StatusOr<ProfileSet> profiles = ProfileSet::Read(files);
  if (!profiles.ok()) return profiles.status();
  const absl::StatusOr<SumsQuestion> question = ResolveOptions(*profiles, options);
  if (!question.ok()) return question.status();
  const Grouping& grouping = question->grouping;
  const Sums sums(*profiles, {{0, 1}, {1, files.size()}}, question->type, grouping, question->conditions);
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  // As in pprof, shares are of what the base holds; of what is new, where it holds nothing.
  const int64_t total = sums.total()[0] != 0 ? sums.total()[0] : sums.total()[1];
  const int64_t growth = Minus(sums.sum()[1], sums.sum()[0]);
  const bool failed = !options.fail_over.empty() && growth > limit;
  const int code = failed ? kFinding : kSuccess;
  const std::string& type = profiles->types()[question->type].type;

  if (options.json) {
    Json json = {
        {"base", options.base},        {"files", options.files},     {"type", type},     {"unit", question->unit},
        {"base_total", sums.sum()[0]}, {"now_total", sums.sum()[1]}, {"change", growth}, {"total", total}};
    Json& list = json["rows"] = Json::array();
    for (const Sums::Row& row : rows) {
      Json& entry = list.emplace_back(RowJson(row, grouping));
      entry["flat"] = row.flat_change();
      entry["cum"] = row.cum_change();
      entry["base_flat"] = row.flat[0];
      entry["now_flat"] = row.flat[1];
      entry["base_cum"] = row.cum[0];
      entry["now_cum"] = row.cum[1];
    }
    Print(ToText(json));
    return code;
  }

  const auto size = [&](int64_t value) { return FormatValue(value, question->unit, options.exact); };
  const auto change = [&](int64_t value) { return FormatChange(value, question->unit, options.exact); };
  for (size_t i = 0; i < files.size(); ++i) {
    const ProfileSet::File& file = profiles->files()[i];
    Print(Cat(i == 0 ? "base" : "now ", "  ", Visible(file.path), "  ", FormatTime(file.time_nanos), "\n",
              DeviceLines(file, options.exact)));
  }
  Print(Visible(Cat(type, ": ", change(growth), ", from ", size(sums.sum()[0]), " to ", size(sums.sum()[1]))) + "\n");
  if (rows.empty()) {
    Print("no row changed\n");
  } else {
    using Align = Table::Align;
    const bool has_cum = grouping.frames != Grouping::Frames::kNone;
    std::vector<std::string> head = {"flat", "flat%"};
    if (has_cum) head.insert(head.end(), {"cum", "cum%"});
    head.insert(head.end(), {"base", "now"});
    std::vector<Align> columns(head.size(), Align::kRight);
    for (const std::string& heading : RowHeadings(grouping)) {
      columns.push_back(Align::kLeft);
      head.push_back(heading);
    }
    Table table(columns);
    table.Add(head);
    const size_t shown = options.rows == 0 ? rows.size() : std::min(options.rows, rows.size());
    for (size_t i = 0; i < shown; ++i) {
      const Sums::Row& row = rows[i];
      std::vector<std::string> cells = {change(row.flat_change()), FormatPercent(row.flat_change(), total)};
      if (has_cum) {
        cells.push_back(change(row.cum_change()));
        cells.push_back(FormatPercent(row.cum_change(), total));
      }
      cells.push_back(size(has_cum ? row.cum[0] : row.flat[0]));
      cells.push_back(size(has_cum ? row.cum[1] : row.flat[1]));
      for (std::string& cell : RowCells(row, grouping)) cells.push_back(std::move(cell));
      table.Add(std::move(cells));
    }
    Print(Cat("\n", table.Text(), MoreRows(shown, rows.size())));
  }
  if (failed) Print(Cat("\nFAILED: it grew by more than ", Visible(size(limit)), "\n"));
  return code;
}

}  // namespace

Command AddDiffCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("diff", "Show what changed between two profiles");
  auto options = std::make_shared<DiffOptions>();
  arguments->add_option("BASE", options->base, "The profile from before")->required();
  arguments->add_option("FILE", options->files, "The profile from after; several are added up")->required();
  options->AddTo(*arguments);
  arguments->add_option("--fail-over", options->fail_over, "Exit with 1 if the total grew by more, such as 1MiB");
  return {arguments, [options] { return RunDiff(*options); }, true};
}

}  // namespace hbmprof::tool
