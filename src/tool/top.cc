// `hbmprof top`: what holds the memory.
#include <algorithm>
#include <memory>

#include "src/tool/command.h"
#include "src/tool/sums_view.h"

namespace hbmprof::tool {
namespace {

absl::StatusOr<int> RunTop(const SumsOptions& options) {
  const absl::StatusOr<ProfileSet> profiles = ProfileSet::Read(options.files);
  if (!profiles.ok()) return profiles.status();
  const absl::StatusOr<SumsQuestion> question = ResolveOptions(*profiles, options);
  if (!question.ok()) return question.status();
  const Grouping& grouping = question->grouping;
  const Sums sums(*profiles, {{0, profiles->files().size()}}, question->type, grouping, question->conditions);
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  const int64_t total = sums.total()[1];
  const std::string& type = profiles->types()[question->type].type;

  if (options.json) {
    Json json = {{"files", options.files}, {"type", type}, {"unit", question->unit}, {"total", total}};
    Json& list = json["rows"] = Json::array();
    for (const Sums::Row& row : rows) {
      Json& entry = list.emplace_back(RowJson(row, grouping));
      entry["flat"] = row.flat[1];
      entry["cum"] = row.cum[1];
    }
    Print(ToText(json));
    return kSuccess;
  }

  for (const ProfileSet::File& file : profiles->files()) {
    Print(Cat(Visible(file.path), "  ", FormatTime(file.time_nanos), "\n", DeviceLines(file, options.exact)));
  }
  Print(Cat(Visible(type), ": ", Visible(FormatValue(total, question->unit, options.exact)), "\n\n"));
  using Align = Table::Align;
  const bool has_cum = grouping.frames != Grouping::Frames::kNone;
  std::vector<Align> columns(has_cum ? 4 : 2, Align::kRight);
  std::vector<std::string> head = {"flat", "flat%"};
  if (has_cum) head.insert(head.end(), {"cum", "cum%"});
  for (const std::string& heading : RowHeadings(grouping)) {
    columns.push_back(Align::kLeft);
    head.push_back(heading);
  }
  Table table(columns);
  table.Add(head);
  const size_t shown = options.rows == 0 ? rows.size() : std::min(options.rows, rows.size());
  for (size_t i = 0; i < shown; ++i) {
    const Sums::Row& row = rows[i];
    std::vector<std::string> cells = {FormatValue(row.flat[1], question->unit, options.exact),
                                      FormatPercent(row.flat[1], total)};
    if (has_cum) {
      cells.push_back(FormatValue(row.cum[1], question->unit, options.exact));
      cells.push_back(FormatPercent(row.cum[1], total));
    }
    for (std::string& cell : RowCells(row, grouping)) cells.push_back(std::move(cell));
    table.Add(std::move(cells));
  }
  Print(table.Text() + MoreRows(shown, rows.size()));
  return kSuccess;
}

}  // namespace

Command AddTopCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("top", "Show what holds the memory, largest first");
  auto options = std::make_shared<SumsOptions>();
  arguments->add_option("FILE", options->files, "Profiles; those of several ranks are added up")->required();
  options->AddTo(*arguments);
  return {arguments, [options] { return RunTop(*options); }, true};
}

}  // namespace hbmprof::tool
