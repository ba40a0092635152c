// `hbmprof leaks`: the findings on growth, with their call stacks.
#include "src/tool/commands/answer.h"
#include "src/tool/commands/command.h"

namespace hbmprof::tool {
namespace {

struct LeaksOptions : ViewOptions {
  std::vector<std::string> files;
  std::string type;
  std::string per;
  std::string fail_over;
  size_t rows = 5;
  size_t frames = 6;
  bool all = false;
  bool json = false;
};

struct Result {
  const ProfileSet& profiles;
  const Findings& found;
  std::vector<Finding> growing;           // those of `found` on growth
  std::vector<const SiteGrowth*> others;  // sites that grew and are no leaks, the largest first
  int64_t leaked = 0;                     // what --fail-over counts
  bool failed = false;
};

RowFields<const SiteGrowth*> OtherFields(const Result& result) {
  using Row = const SiteGrowth*;
  const auto name = [&result](Row site) { return result.profiles.ShownStack(site->stack)[0].name; };
  const auto where = [&result](Row site) { return result.profiles.ShownStack(site->stack)[0].Position(); };
  const auto why = [](Row site) { return site->why; };
  return {{"now", 'r', [&result](Row site) { return FormatValue(site->values.back(), result.found.unit); }, "growth",
           [](Row site) { return site->growth; }},
          {"function", 'l', name, "function", name},
          {"where", 'l', where, "where", where},
          {"", 'l', nullptr, "verdict", [](Row site) { return VerdictName(site->verdict); }},
          {"why", 'l', why, "why", why}};
}

Answer AnswerOf(const LeaksOptions& options, const Result& result) {
  Answer answer(options.json);
  answer.json.update({{"source", SourceJson(result.found)},
                      {"unit", result.found.unit},
                      {"leaked", result.leaked},
                      {"failed", result.failed},
                      {"finding_count", result.growing.size()},
                      {"findings", Json::array()}});
  answer.text = HeadText(result.found);
  if (!result.found.off_since.empty()) answer.text += OffText(result.found.off_since) + "\n";
  const size_t shown = ShownOf(options.rows, result.growing.size());
  for (size_t i = 0; i < shown; ++i) {
    Finding finding = result.growing[i];
    std::vector<ProfileSet::ShownFrame> stack;
    if (finding.stack.has_value()) stack = result.profiles.ShownStack(*finding.stack);
    const size_t frames = ShownOf(options.frames, stack.size());
    Json& entry = answer.json["findings"].emplace_back(FindingJson(finding, i + 1));
    Json& lines = entry["stack"] = Json::array();
    Table table("lll");
    for (size_t f = 0; f < frames; ++f) {
      const std::string position = stack[f].Position();
      lines.push_back(Cat(stack[f].name, position.empty() ? "" : " ", position));
      table.Add({"     ", stack[f].name, position});
    }
    finding.callers = finding.position = "";  // they are in the stack
    answer.text += FindingText(finding, i + 1) + table.Text(TerminalColumns());
    if (frames == stack.size()) continue;
    answer.text += Cat("       ... ", stack.size() - frames, " more callers (--frames 0 shows all)\n");
  }
  if (result.growing.empty()) answer.text += Cat("no leak in ", result.found.sites.size(), " call stacks\n");
  answer.text += MoreRows(shown, result.growing.size());
  if (options.all && (options.json || !result.others.empty())) {
    answer.text += "no leaks, although they grew:\n";
    answer.Add("others", result.others, OtherFields(result), options.json ? 0 : options.rows);
  }
  answer.text += TrustText(result.found);
  if (!options.fail_over.empty() && result.failed) {
    answer.text += Cat("FAILED: they grew by ", Visible(FormatValue(result.leaked, result.found.unit)), ", more than ",
                       Visible(options.fail_over), "\n");
  }
  answer.exit_code = result.failed || !result.found.off_since.empty() ? kFinding : kSuccess;
  return answer;
}

absl::StatusOr<int> RunLeaks(const LeaksOptions& options) {
  ASSIGN_OR_RETURN(Program program, ReadProgram("leaks", options.files));
  ASSIGN_OR_RETURN(const Findings found, JudgeProgram("leaks", options, options.type, options.per, program));
  ASSIGN_OR_RETURN(const int64_t limit, FailOverLimit(options.fail_over, found.unit));
  if (!found.not_judged.empty()) {
    return InvalidArgument(found.off_since.empty() ? "" : Cat("recording has been off since ", found.off_since, "; "),
                           found.not_judged);
  }
  if (!options.fail_over.empty()) RETURN_IF_ERROR(CheckIsUndamaged(program.profiles));

  Result result = {program.profiles, found, {}, {}};
  for (const Finding& finding : found.findings) {
    if (finding.code != FindingCode::kLeak && finding.code != FindingCode::kGrows) continue;
    if (finding.is_tiny && !options.all) continue;
    result.growing.push_back(finding);
    if (finding.code == FindingCode::kLeak) AddTo(result.leaked, finding.growth);
  }
  for (const SiteGrowth& site : found.sites) {
    if (site.verdict == Verdict::kStopped || site.verdict == Verdict::kUpAndDown) result.others.push_back(&site);
  }
  absl::c_stable_sort(result.others, [](const SiteGrowth* a, const SiteGrowth* b) {
    return *absl::c_max_element(a->values) > *absl::c_max_element(b->values);
  });
  result.failed = result.leaked > limit;
  return AnswerOf(options, result).Print();
}

}  // namespace

Command AddLeaksCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("leaks", "Rank the call stacks whose buffers are never freed");
  auto options = std::make_shared<LeaksOptions>();
  arguments
      ->add_option("SOURCE", options->files,
                   "One dump with ages of buffers, or three or more of one program; a recording; or a process")
      ->required();
  arguments->add_option("-t,--type", options->type, "Sample type (default: the profile's own)");
  arguments->add_option("-p,--per", options->per, "Growth per unit of this counter: --per requests");
  arguments->add_option("--fail-over", options->fail_over,
                        "Exit with 1 only if the leaks together grew by more than this size, such as 1MiB");
  arguments->add_option("-b,--by", options->by, "Judge each value of this label separately: --by phase")
      ->delimiter(',')
      ->allow_extra_args(false);
  AddCount(*arguments, "-n,--rows", options->rows, "Sites to show, 0 for all");
  AddCount(*arguments, "--frames", options->frames, "Frames to show of each site, 0 for all");
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->add_flag("--all", options->all,
                      "Also list sites that may leak little (below 5 % of all), or grew and are no leaks");
  AddViewOptions(*arguments, *options);
  arguments->footer(kFilterHelp);
  return {arguments, [options] { return RunLeaks(*options); }, true};
}

}  // namespace hbmprof::tool
