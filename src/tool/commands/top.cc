// `hbmprof top`: shows which functions, lines or labels hold the memory, the call tree, or callers and callees.
#include <tuple>

#include "src/tool/commands/command.h"
#include "src/tool/profile/labels.h"
#include "src/tool/profile/series.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

struct TopOptions : SumsOptions {
  std::string callers;  // an expression
};

// The calls to one row, and those from it, largest first.
using Neighbours = std::array<std::vector<Sums::Edge>, 2>;

// Returns those of `rows`, by row number.
std::map<uint32_t, Neighbours> NeighboursOf(const Sums& sums, const std::vector<Sums::Row>& rows) {
  std::map<uint32_t, Neighbours> neighbours;
  for (const Sums::Row& row : rows) neighbours[row.number];
  for (const Sums::Edge& edge : sums.edges()) {
    if (const auto row = neighbours.find(edge.callee); row != neighbours.end()) row->second[0].push_back(edge);
    if (const auto row = neighbours.find(edge.caller); row != neighbours.end()) row->second[1].push_back(edge);
  }
  // The numbers of rows differ from run to run.
  const auto key = [&sums](const Sums::Edge& edge) {
    const Sums::Row& caller = sums.row(edge.caller);
    const Sums::Row& callee = sums.row(edge.callee);
    return std::tuple<int64_t, const std::string&, const std::string&, uint32_t, uint32_t>(
        Minus(0, edge.cum[1]), caller.name, callee.name, edge.caller, edge.callee);
  };
  for (auto& [number, row] : neighbours) {
    for (std::vector<Sums::Edge>& edges : row) {
      absl::c_sort(edges, [&key](const Sums::Edge& a, const Sums::Edge& b) { return key(a) < key(b); });
    }
  }
  return neighbours;
}

// Returns the table of one row, with its callers above and its callees below.
std::string RowText(const SumsQuery& query, const Sums& sums, const Sums::Row& row, const Neighbours& around) {
  Table table("rrll");
  const auto add = [&](bool callers) {
    for (const Sums::Edge& edge : around[callers ? 0 : 1]) {
      const Sums::Row& other = sums.row(callers ? edge.caller : edge.callee);
      table.Add({query.Text(edge.cum[1]), FormatPercent(edge.cum[1], row.cum[1]),
                 Cat(callers ? "  from " : "  calls ", other.name, edge.inlined ? " (inlined)" : ""), other.position});
    }
  };
  add(true);
  table.Add({query.Text(row.cum[1]), FormatPercent(row.cum[1], sums.total()[1]), row.name, row.position});
  if (row.flat[1] != 0) {
    table.Add({query.Text(row.flat[1]), FormatPercent(row.flat[1], row.cum[1]), "  allocates itself", ""});
  }
  add(false);
  return table.Text();
}

// Shows the callers and callees of the functions whose names match `options.callers`.
absl::StatusOr<int> RunCallers(const TopOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RE2> expression, CompileRegex("--callers", options.callers));
  ASSIGN_OR_RETURN(SumsQuery query, ReadQuery("top", options.files, options));
  // Rows of labels have no callers, so frames are added to the grouping.
  if (query.grouping.frames == Grouping::Frames::kNone) query.grouping.frames = Grouping::Frames::kFunctions;
  const Sums sums(query.profiles, {{0, query.profiles.files().size()}}, query.type, query.grouping, true);
  std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  EraseIf(rows, [&](const Sums::Row& row) { return !RE2::PartialMatch(row.name, *expression); });
  if (rows.empty()) return NotFound(options.files[0], ": no function matches '", options.callers, "'");
  std::map<uint32_t, Neighbours> neighbours = NeighboursOf(sums, rows);
  Answer answer =
      AnswerTo(query, options.json, 0, sums.total()[1], Visible(Cat(query.type_name, ": ", query.Text(sums.sum()[1]))));
  if (options.json) {
    RowFields<Sums::Row> columns = {ValueField(query, "flat", [](const Sums::Row& row) { return row.flat[1]; }),
                                    ValueField(query, "cum", [](const Sums::Row& row) { return row.cum[1]; })};
    AddNameFields(query.grouping, columns);
    for (const bool callers : {true, false}) {
      const auto json = [&, callers](const Sums::Row& row) {
        Json list = Json::array();
        for (const Sums::Edge& edge : neighbours.at(row.number)[callers ? 0 : 1]) {
          const Sums::Row& other = sums.row(callers ? edge.caller : edge.callee);
          list.push_back({{"function", other.name}, {"cum", edge.cum[1]}, {"inlined", edge.inlined}});
        }
        return list;
      };
      columns.push_back({"", 'l', nullptr, callers ? "callers" : "callees", json});
    }
    answer.Add("rows", rows, columns, options.rows);
  }
  const size_t shown = ShownOf(options.rows, rows.size());
  for (size_t i = 0; i < shown; ++i) answer.text += RowText(query, sums, rows[i], neighbours[rows[i].number]) + "\n";
  answer.text += MoreRows(shown, rows.size());
  return answer.Print();
}

absl::StatusOr<int> RunTop(const TopOptions& options) {
  if (!options.callers.empty() && options.tree) return InvalidArgument("--callers and --tree are two answers");
  if (!options.callers.empty()) return RunCallers(options);
  ASSIGN_OR_RETURN(const SumsQuery query, ReadQuery("top", options.files, options));
  const Sums sums(query.profiles, {{0, query.profiles.files().size()}}, query.type, query.grouping);
  const int64_t sum = sums.sum()[1];
  const int64_t total = sums.total()[1];
  const std::string of = options.has_filter() || sum != total ? Cat(" of ", query.Text(total)) : "";
  Answer answer = AnswerTo(query, options.json, 0, total, Visible(Cat(query.type_name, ": ", query.Text(sum), of)));
  answer.json["selected"] = sum;
  if (options.tree) {
    AddTree(query, 0, options.nodes(), total, answer);
    return answer.Print();
  }
  const auto flat = [](const Sums::Row& row) { return row.flat[1]; };
  const auto cum = [](const Sums::Row& row) { return row.cum[1]; };
  RowFields<Sums::Row> columns = {ValueField(query, "flat", flat), ShareField("flat%", total, flat)};
  if (query.grouping.frames != Grouping::Frames::kNone) {
    columns.push_back(ValueField(query, "cum", cum));
    columns.push_back(ShareField("cum%", total, cum));
  }
  AddNameFields(query.grouping, columns);
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  const bool has_memory = !rows.empty() || absl::c_any_of(query.profiles.files(), HasMemory);
  if (!has_memory && !options.has_filter() && options.older.empty() && answer.exit_code == kSuccess) {
    answer.text += Cat(kNoMemoryText, "\n");
  }
  answer.Add("rows", rows, columns, options.rows);
  return answer.Print();
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
  arguments->add_option("--callers", options->callers,
                        "Show the callers and callees of the functions that match this expression; all frames");
  arguments->add_option("--older", options->older, "Only live buffers that are older than this time, such as 10m");
  return {arguments,
          [options, arguments] {
            // A known library calls and is called, too.
            if (!options->callers.empty() && arguments->count("--own") == 0) options->own = false;
            return RunTop(*options);
          },
          true};
}

}  // namespace hbmprof::tool
