// `hbmprof budget`, and `hbmprof diff --budget`.
#include "src/tool/budget/budget.h"

#include <unistd.h>

#include "src/tool/commands/command.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/util/files.h"
#include "src/tool/util/listing.h"

namespace hbmprof::tool {
namespace {

struct BudgetOptions : ViewOptions {
  std::vector<std::string> files;
  std::string output;
};

// Reads what the program held at its peak. Sets `*profiles`.
absl::StatusOr<HeldStacks> ReadHeld(const std::string& command, const std::vector<std::string>& files,
                                    const ViewOptions& view, std::optional<ProfileSet>* profiles) {
  ASSIGN_OR_RETURN(*profiles, ReadProfiles(files));
  KeepLastOfEachProcess(command, 0, **profiles);
  RETURN_IF_ERROR(ApplyView(command, view, **profiles));
  ASSIGN_OR_RETURN(HeldStacks held, HeldAtPeak(**profiles, view.known));
  // A program that ended before its work is not within its budget.
  RETURN_IF_ERROR(CheckIsComplete(**profiles));
  if (held.empty()) return NotFound(files[0], ": no device memory was in use at the peak");
  return held;
}

absl::StatusOr<int> RunBudget(const BudgetOptions& options) {
  RETURN_IF_ERROR(CheckIsNoInput(options.output, FilesOf(options.files)));
  Budget budget;
  std::map<FunctionNames, std::optional<double>> percents;
  // A file that is no budget is not replaced.
  if (!IsStandardOutput(options.output) && access(options.output.c_str(), F_OK) == 0) {
    ASSIGN_OR_RETURN(budget, ReadBudget(options.output));
    for (Budget::Entry& entry : std::exchange(budget.entries, {})) percents[entry.functions] = entry.percent;
  }
  std::optional<ProfileSet> profiles;
  ASSIGN_OR_RETURN(const HeldStacks held, ReadHeld("budget", options.files, options, &profiles));
  budget.total = 0;
  for (const auto& [functions, stack] : held) {
    AddTo(*budget.total, stack.bytes);
    budget.entries.push_back({functions, stack.bytes, ValueOr(percents, functions)});
  }
  const std::string text = TextOf(budget);
  RETURN_IF_ERROR(WriteOutput(options.output, text));
  PrintFile(options.output, text.size(), false,
            Cat(": ", Bytes(*budget.total), " in ", held.size(), held.size() == 1 ? " call stack" : " call stacks"));
  return kSuccess;
}

using BudgetRow = Comparison::Row;

const char* VerdictOf(const BudgetRow& row) {
  if (row.is_over()) return row.is_new ? "OVER, new code" : "OVER";
  return row.is_new ? "new code" : "within tolerance";
}

// Returns the call stack of a row, for PrintVisible.
std::string StackText(const ProfileSet& profiles, const BudgetRow& row) {
  Table table("ll");
  const std::vector<ProfileSet::ShownFrame> stack = profiles.ShownStack(row.stack);
  for (size_t i = 0; i < ShownOf(8, stack.size()); ++i) table.Add({"    " + stack[i].name, stack[i].Position()});
  return table.Text();
}

std::string Junit(const std::string& path, const ProfileSet& profiles, const Comparison& comparison) {
  const auto xml = [](const std::string& visible) {
    return absl::StrReplaceAll(visible, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
  };
  std::string cases;
  size_t failures = 0;
  const auto add = [&](const BudgetRow& row, const std::string& stack) {
    cases += Cat("<testcase classname=\"", xml(Visible(path)), "\" name=\"", xml(Visible(row.function)), "\">");
    if (row.is_over()) {
      ++failures;
      cases += Cat("<failure message=\"", VerdictOf(row), ": ", Bytes(row.now), ", budget ", Bytes(row.budget), "\">\n",
                   xml(stack), "</failure>");
    }
    cases += "</testcase>\n";
  };
  add(comparison.total, "");
  for (const BudgetRow& row : comparison.rows) add(row, StackText(profiles, row));
  return Cat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"hbmprof budget\" tests=\"",
             comparison.rows.size() + 1, "\" failures=\"", failures, "\">\n", cases, "</testsuite>\n");
}

// Returns what `hbmprof diff --budget` prints: JSON, or for PrintVisible. `path`: of the budget.
std::string AnswerOf(const std::string& format, const std::string& path, const ProfileSet& profiles,
                     const Comparison& comparison, size_t most_rows) {
  if (format == "junit") return Junit(path, profiles, comparison);
  const BudgetRow& total = comparison.total;
  std::vector<BudgetRow> rows = comparison.rows;
  EraseIf(rows, [](const BudgetRow& row) { return row.growth() <= 0; });
  const auto stack = [&](const BudgetRow& row) {
    Json frames = Json::array();
    for (const auto& frame : profiles.ShownStack(row.stack))
      frames.push_back({{"function", frame.name}, {"where", frame.Position()}});
    return frames;
  };
  const auto where = [&](const BudgetRow& row) { return profiles.ShownStack(row.stack)[0].Position(); };
  const auto function = [](const BudgetRow& row) { return row.function; };
  const auto growth = [](const BudgetRow& row) { return FormatChange(row.growth(), "bytes"); };
  const auto limit = [](const BudgetRow& row) { return row.has_limit() ? Json(row.limit) : Json(); };
  const RowFields<BudgetRow> fields = {
      {"growth", 'r', growth, "growth", &BudgetRow::growth},
      {"now", 'r', [](const BudgetRow& row) { return Bytes(row.now); }, "now", &BudgetRow::now},
      {"budget", 'r', [](const BudgetRow& row) { return Bytes(row.budget); }, "budget", &BudgetRow::budget},
      {"verdict", 'l', VerdictOf, "verdict", VerdictOf},
      {"function", 'l', function, "function", function},
      {"where", 'l', where, "where", where},
      {"", 'l', nullptr, "limit", limit},
      {"", 'l', nullptr, "stack", stack}};
  if (format == "json") {
    Json json = {{"version", kJsonVersion}, {"budget", path}, {"files", profiles.PathsFrom(0)}};
    json.update({{"total", total.now}, {"failed", comparison.failed}});
    if (total.has_limit()) json.update({{"total_budget", total.budget}, {"total_limit", total.limit}});
    AddRows("rows", rows, fields, most_rows, json);
    return ToText(json);
  }
  const auto tone = [](const BudgetRow& row) { return row.is_over() ? Tone::kGrowth : Tone::kPlain; };
  std::string text = rows.empty() ? "" : TableOf<BudgetRow>(rows, fields, most_rows, tone) + "\n";
  for (size_t i = 0; i < ShownOf(most_rows, rows.size()) && rows[i].is_over(); ++i) {
    text += Cat("in ", Visible(rows[i].function), ", most in this call stack:\n", StackText(profiles, rows[i]), "\n");
  }
  text += Cat("total ", Bytes(total.now), " at the peak");
  if (total.has_limit()) text += Cat(", budget ", Bytes(total.budget), ", limit ", Bytes(total.limit));
  const std::string verdict = Cat(comparison.failed ? "OVER" : "within", " the budget");
  if (format == "markdown") return Cat("### Device memory: ", verdict, "\n\n```text\n", text, "\n```\n");
  return Cat(text, "\n", Colored(verdict, comparison.failed ? Tone::kGrowth : Tone::kPlain), "\n");
}

}  // namespace

absl::StatusOr<int> RunBudgetDiff(const SumsOptions& options, const std::string& path, const std::string& format) {
  ASSIGN_OR_RETURN(const Budget budget, ReadBudget(path));
  std::optional<ProfileSet> profiles;
  ASSIGN_OR_RETURN(const HeldStacks held, ReadHeld("diff", options.files, options, &profiles));
  const Comparison comparison = Compare(budget, held);
  const std::string text = AnswerOf(format, path, *profiles, comparison, options.rows);
  format == "json" ? Print(text) : PrintVisible(text);
  return comparison.failed ? kFinding : kSuccess;
}

Command AddBudgetCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("budget", "Write what a program holds at its peak, for diff --budget");
  auto options = std::make_shared<BudgetOptions>();
  arguments
      ->add_option("SOURCE", options->files, "A profile, process or recording; those of several processes are added up")
      ->required();
  arguments->add_option("-o,--output", options->output,
                        "The file; if it exists, its tolerances stay. Default: standard output");
  AddViewOptions(*arguments, *options);
  arguments->footer(kFilterHelp);
  return {arguments, [options] { return RunBudget(*options); }, true};
}

}  // namespace hbmprof::tool
