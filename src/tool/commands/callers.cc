// `hbmprof top --callers`: shows the callers and callees of functions.
#include <tuple>

#include "src/tool/commands/command.h"
#include "src/tool/profile/own_code.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

// The calls to and from one row, largest first.
struct Neighbours {
  std::vector<Sums::Edge> callers;
  std::vector<Sums::Edge> callees;
};

// Returns those of `rows`, by row number.
std::map<uint32_t, Neighbours> NeighboursOf(const Sums& sums, const std::vector<Sums::Row>& rows) {
  std::map<uint32_t, Neighbours> neighbours;
  for (const Sums::Row& row : rows) neighbours[row.number];
  for (const Sums::Edge& edge : sums.edges()) {
    if (const auto row = neighbours.find(edge.caller); row != neighbours.end()) row->second.callees.push_back(edge);
    if (const auto row = neighbours.find(edge.callee); row != neighbours.end()) row->second.callers.push_back(edge);
  }
  // The numbers of rows differ from run to run.
  const auto key = [&sums](const Sums::Edge& edge) {
    const Sums::Row& caller = sums.row(edge.caller);
    const Sums::Row& callee = sums.row(edge.callee);
    return std::tuple<int64_t, const std::string&, const std::string&, uint32_t, uint32_t>(
        Minus(0, edge.cum[1]), caller.name, callee.name, edge.caller, edge.callee);
  };
  const auto is_larger = [&key](const Sums::Edge& a, const Sums::Edge& b) { return key(a) < key(b); };
  for (auto& [number, row] : neighbours) {
    absl::c_sort(row.callers, is_larger);
    absl::c_sort(row.callees, is_larger);
  }
  return neighbours;
}

Json EdgesJson(const Sums& sums, const std::vector<Sums::Edge>& edges, bool callers) {
  Json list = Json::array();
  for (const Sums::Edge& edge : edges) {
    const Sums::Row& other = sums.row(callers ? edge.caller : edge.callee);
    list.push_back({{"function", other.name}, {"cum", edge.cum[1]}, {"inlined", edge.inlined}});
  }
  return list;
}

// Returns the table of one row, with its callers above and its callees below.
std::string RowText(const SumsQuery& query, const Sums& sums, const Sums::Row& row, const Neighbours& around) {
  Table table("rrll");
  const auto add = [&](const std::vector<Sums::Edge>& edges, bool callers) {
    for (const Sums::Edge& edge : edges) {
      const Sums::Row& other = sums.row(callers ? edge.caller : edge.callee);
      table.Add({query.Text(edge.cum[1]), FormatPercent(edge.cum[1], row.cum[1]),
                 Cat(callers ? "  from " : "  calls ", other.name, edge.inlined ? " (inlined)" : ""), other.position});
    }
  };
  add(around.callers, true);
  table.Add({query.Text(row.cum[1]), FormatPercent(row.cum[1], sums.total()[1]), row.name, row.position});
  if (row.flat[1] != 0) {
    table.Add({query.Text(row.flat[1]), FormatPercent(row.flat[1], row.cum[1]), "  allocates itself", ""});
  }
  add(around.callees, false);
  return table.Text();
}

}  // namespace

absl::StatusOr<int> RunCallers(const SumsOptions& options, const std::string& text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<RE2> expression, CompileRegex("--callers", text));
  ASSIGN_OR_RETURN(SumsQuery query, ReadQuery("top", options.files, options));
  // Rows of labels have no callers, so frames are added to the grouping.
  if (query.grouping.frames == Grouping::Frames::kNone) query.grouping.frames = Grouping::Frames::kFunctions;
  const Sums sums(query.profiles, {{0, query.profiles.files().size()}}, query.type, query.grouping, true);
  std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  EraseIf(rows, [&](const Sums::Row& row) { return !RE2::PartialMatch(row.name, *expression); });
  if (rows.empty()) return NotFound(options.files[0], ": no function matches '", text, "'");
  std::map<uint32_t, Neighbours> neighbours = NeighboursOf(sums, rows);
  const int exit_code = IsOff(query.profiles) ? kFinding : kSuccess;
  if (options.json) {
    RowFields<Sums::Row> columns = {ValueField(query, "flat", [](const Sums::Row& row) { return row.flat[1]; }),
                                    ValueField(query, "cum", [](const Sums::Row& row) { return row.cum[1]; })};
    AddNameFields(query.grouping, columns);
    for (const bool callers : {true, false}) {
      columns.push_back({"", 'l', nullptr, callers ? "callers" : "callees", [&, callers](const Sums::Row& row) {
                           const Neighbours& around = neighbours.at(row.number);
                           return EdgesJson(sums, callers ? around.callers : around.callees, callers);
                         }});
    }
    Json json = HeadJson(query, 0, sums.total()[1]);
    AddRows("rows", rows, columns, options.rows, json);
    Print(ToText(json));
    return exit_code;
  }
  const size_t shown = ShownOf(options.rows, rows.size());
  std::string tables;
  for (const ProfileSet::File& file : query.profiles.files()) {
    if (const std::string since = OffSince(file.info.warnings); !since.empty()) tables += OffText(since) + "\n";
  }
  tables += FreedLine(query);
  for (size_t i = 0; i < shown; ++i) tables += RowText(query, sums, rows[i], neighbours[rows[i].number]) + "\n";
  PrintVisible(tables + MoreRows(shown, rows.size()));
  return exit_code;
}

}  // namespace hbmprof::tool
