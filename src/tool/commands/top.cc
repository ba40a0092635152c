// `hbmprof top`: shows which functions, lines or labels hold the memory, or the call tree.
#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

struct TopOptions : SumsOptions {
  std::string callers;  // an expression
};

void PrintHead(const TopOptions& options, const SumsQuery& query, const Sums& sums) {
  for (const ProfileSet::File& file : query.profiles.files()) {
    PrintVisible(Cat(Visible(file.path), "  ", FormatTime(file.time_nanos), "\n", DeviceLines(file, options.exact)));
  }
  const int64_t sum = sums.sum()[1];
  const int64_t total = sums.total()[1];
  const std::string of = options.has_filter() || sum != total ? Cat(" of ", query.Text(total)) : "";
  Print(Cat(Visible(query.type_name), ": ", Visible(query.Text(sum)), Visible(of), "\n", FreedLine(query),
            query.trimmed ? kTrimmedText : "", "\n"));
}

// `json`: as for ShowTree.
void ShowRows(const TopOptions& options, const SumsQuery& query, const Sums& sums, Json* json) {
  const auto flat = [](const Sums::Row& row) { return row.flat[1]; };
  const auto cum = [](const Sums::Row& row) { return row.cum[1]; };
  const int64_t total = sums.total()[1];
  RowFields<Sums::Row> columns = {ValueField(query, "flat", flat), ShareField("flat%", total, flat)};
  if (query.grouping.frames != Grouping::Frames::kNone) {
    columns.push_back(ValueField(query, "cum", cum));
    columns.push_back(ShareField("cum%", total, cum));
  }
  AddNameFields(query.grouping, columns);
  const std::vector<Sums::Row> rows = sums.Rows(options.by_cum);
  if (json != nullptr) return AddRows("rows", rows, columns, options.rows, *json);
  PrintVisible(TableOf(rows, columns, options.rows));
}

absl::StatusOr<int> RunTop(const TopOptions& options) {
  if (!options.callers.empty() && options.tree) return InvalidArgument("--callers and --tree are two answers");
  if (!options.callers.empty()) return RunCallers(options, options.callers);
  ASSIGN_OR_RETURN(const SumsQuery query, ReadQuery("top", options.files, options));
  const Sums sums(query.profiles, {{0, query.profiles.files().size()}}, query.type, query.grouping);
  Json json = HeadJson(query, 0, sums.total()[1]);
  json["selected"] = sums.sum()[1];
  Json* const to = options.json ? &json : nullptr;
  if (!options.json) PrintHead(options, query, sums);
  if (options.tree) {
    ShowTree(query, 0, options.nodes(), sums.total()[1], to);
  } else {
    ShowRows(options, query, sums, to);
  }
  if (options.json) Print(ToText(json));
  return IsOff(query.profiles) ? kFinding : kSuccess;
}

}  // namespace

Command AddTopCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("top", "Show what holds the memory, largest first");
  auto options = std::make_shared<TopOptions>();
  arguments
      ->add_option("SOURCE", options->files,
                   "Profiles, also processes and run.hbmrec@peak; those of several processes are added up")
      ->required();
  AddSumsOptions(*arguments, *options, true);
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
