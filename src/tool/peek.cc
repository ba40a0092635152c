// `hbmprof peek`: who calls a function, and what it calls.
#include <re2/re2.h>

#include <algorithm>
#include <memory>

#include "src/tool/command.h"
#include "src/tool/sums_view.h"

namespace hbmprof::tool {
namespace {

struct PeekOptions : SumsOptions {
  std::string expression;
};

// The edges of one row, the heaviest first.
struct Neighbours {
  std::vector<Sums::Edge> callers;
  std::vector<Sums::Edge> callees;
};

absl::StatusOr<int> RunPeek(const PeekOptions& options) {
  RE2::Options re_options;
  re_options.set_log_errors(false);
  const RE2 expression(options.expression, re_options);
  if (!expression.ok()) {
    return absl::InvalidArgumentError(
        Cat(options.expression, ": not a regular expression in RE2 syntax: ", expression.error()));
  }
  const absl::StatusOr<ProfileSet> profiles = ProfileSet::Read(options.files);
  if (!profiles.ok()) return profiles.status();
  absl::StatusOr<SumsQuestion> question = ResolveOptions(*profiles, options);
  if (!question.ok()) return question.status();
  // Labels alone have no callers.
  if (question->grouping.frames == Grouping::Frames::kNone) question->grouping.frames = Grouping::Frames::kFunctions;
  const Sums sums(*profiles, {{0, profiles->files().size()}}, question->type, question->grouping, question->conditions,
                  true);
  std::vector<Neighbours> neighbours;
  const auto at = [&](uint32_t row) -> Neighbours& {
    if (neighbours.size() <= row) neighbours.resize(row + 1);
    return neighbours[row];
  };
  for (const Sums::Edge& edge : sums.edges()) {
    at(edge.caller).callees.push_back(edge);
    at(edge.callee).callers.push_back(edge);
  }
  std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  rows.erase(std::remove_if(rows.begin(), rows.end(),
                            [&](const Sums::Row& row) { return !RE2::PartialMatch(row.name, expression); }),
             rows.end());
  if (rows.empty()) {
    return absl::NotFoundError(Cat(options.files[0], ": no function matches '", options.expression, "'"));
  }
  const auto heaviest_first = [&](std::vector<Sums::Edge>& edges) {
    std::sort(edges.begin(), edges.end(), [](const Sums::Edge& a, const Sums::Edge& b) {
      return std::make_tuple(Minus(0, a.cum[1]), a.caller, a.callee) <
             std::make_tuple(Minus(0, b.cum[1]), b.caller, b.callee);
    });
  };

  const std::string& unit = question->unit;
  const int64_t total = sums.total()[1];
  Json json = {{"type", profiles->types()[question->type].type}, {"unit", unit}, {"total", total}};
  Json& list = json["rows"] = Json::array();
  using Align = Table::Align;
  std::string text;
  const size_t shown = options.json || options.rows == 0 ? rows.size() : std::min(options.rows, rows.size());
  for (size_t i = 0; i < shown; ++i) {
    const Sums::Row& row = rows[i];
    Neighbours& around = at(row.number);
    heaviest_first(around.callers);
    heaviest_first(around.callees);
    Json& entry = list.emplace_back(RowJson(row, question->grouping));
    entry["flat"] = row.flat[1];
    entry["cum"] = row.cum[1];
    Table table({Align::kRight, Align::kRight, Align::kLeft, Align::kLeft});
    const auto add = [&](const std::vector<Sums::Edge>& edges, bool callers, Json& target) {
      target = Json::array();
      for (const Sums::Edge& edge : edges) {
        const Sums::Row& other = sums.row(callers ? edge.caller : edge.callee);
        target.push_back({{"name", other.name}, {"cum", edge.cum[1]}, {"inlined", edge.inlined}});
        table.Add({FormatValue(edge.cum[1], unit, options.exact), FormatPercent(edge.cum[1], row.cum[1]),
                   Cat(callers ? "  from " : "  calls ", other.name, edge.inlined ? " (inlined)" : ""), other.place});
      }
    };
    add(around.callers, true, entry["callers"]);
    table.Add({FormatValue(row.cum[1], unit, options.exact), FormatPercent(row.cum[1], total), row.name, row.place});
    if (row.flat[1] != 0) {
      table.Add({FormatValue(row.flat[1], unit, options.exact), FormatPercent(row.flat[1], row.cum[1]),
                 "  allocates itself", ""});
    }
    add(around.callees, false, entry["callees"]);
    text += table.Text() + "\n";
  }
  Print(options.json ? ToText(json) : text + MoreRows(shown, rows.size()));
  return kSuccess;
}

}  // namespace

Command AddPeekCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("peek", "Show who calls a function, and what it calls");
  auto options = std::make_shared<PeekOptions>();
  arguments->add_option("REGEX", options->expression, "Part of the function's name")->required();
  arguments->add_option("FILE", options->files, "Profiles; those of several ranks are added up")->required();
  options->AddTo(*arguments);
  return {arguments, [options] { return RunPeek(*options); }, true};
}

}  // namespace hbmprof::tool
