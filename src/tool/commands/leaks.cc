// `hbmprof leaks`: the findings on growth, with their call stacks.
#include "src/tool/commands/answer.h"
#include "src/tool/commands/command.h"
#include "src/tool/recording/states.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

struct LeaksOptions : ViewOptions {
  std::vector<std::string> files;
  std::string type;
  std::string per;
  std::string fail_over;
  bool fail_on_perhaps = false;
  size_t rows = 10;
  size_t frames = 8;
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

std::vector<ProfileSet::ShownFrame> StackOf(const Result& result, const Finding& finding) {
  if (!finding.stack.has_value()) return {};
  return result.profiles.ShownStack(*finding.stack);
}

// The fields of a site that grew and is no leak.
RowFields<const SiteGrowth*> OtherFields(const Result& result) {
  using Row = const SiteGrowth*;
  const auto name = [&result](Row site) {
    const std::vector<ProfileSet::ShownFrame> stack = result.profiles.ShownStack(site->stack);
    return stack.empty() ? "[no stack]" : stack[0].name;
  };
  const auto why = [](Row site) { return site->why; };
  return {{"now", 'r', [&result](Row site) { return FormatValue(site->values.back(), result.found.unit); }, "growth",
           [](Row site) { return site->growth; }},
          {"function", 'l', name, "function", name},
          {"", 'l', nullptr, "verdict", [](Row site) { return VerdictName(site->verdict); }},
          {"why", 'l', why, "why", why}};
}

void PrintJson(const LeaksOptions& options, const Result& result) {
  Json json = {{"version", kJsonVersion},   {"source", SourceJson(result.found)},
               {"unit", result.found.unit}, {"leaked", result.leaked},
               {"failed", result.failed},   {"finding_count", result.growing.size()}};
  Json& list = json["findings"] = Json::array();
  for (size_t i = 0; i < ShownOf(options.rows, result.growing.size()); ++i) {
    Json& entry = list.emplace_back(FindingJson(result.growing[i], i + 1));
    Json& shown = entry["stack"] = Json::array();
    const std::vector<ProfileSet::ShownFrame> stack = StackOf(result, result.growing[i]);
    for (size_t f = 0; f < ShownOf(options.frames, stack.size()); ++f) {
      shown.push_back(Cat(stack[f].name, stack[f].Position().empty() ? "" : " ", stack[f].Position()));
    }
  }
  if (options.all) AddRows("others", result.others, OtherFields(result), 0, json);
  Print(ToText(json));
}

void PrintText(const LeaksOptions& options, const Result& result) {
  PrintVisible(HeadText(result.found));
  const size_t shown = ShownOf(options.rows, result.growing.size());
  for (size_t i = 0; i < shown; ++i) {
    Finding finding = result.growing[i];
    finding.callers.clear();  // they are in the stack
    PrintVisible(FindingText(finding, i + 1));
    const std::vector<ProfileSet::ShownFrame> stack = StackOf(result, finding);
    Table table("lll");
    const size_t frames = ShownOf(options.frames, stack.size());
    for (size_t f = 0; f < frames; ++f) table.Add({"     ", stack[f].name, stack[f].Position()});
    PrintVisible(table.Text(TerminalColumns()));
    if (frames < stack.size()) {
      Print(Cat("       ... ", stack.size() - frames, " more callers (--frames 0 shows all)\n"));
    }
  }
  if (result.growing.empty()) Print(Cat("no leak in ", result.found.sites.size(), " call stacks\n"));
  PrintVisible(MoreRows(shown, result.growing.size()));
  if (options.all && !result.others.empty()) {
    PrintVisible("no leaks, although they grew:\n" + TableOf(result.others, OtherFields(result), options.rows));
  }
  PrintVisible(TrustText(result.found));
  if (!options.fail_over.empty() && result.failed) {
    Print(Cat("FAILED: they grew by ", FormatValue(result.leaked, result.found.unit), ", more than ", options.fail_over,
              "\n"));
  }
}

// Returns the dumps: the files, the states of a recording, or the profile of a process that is old enough.
absl::StatusOr<ProfileSet> ReadDumps(const LeaksOptions& options) {
  if (options.files.size() != 1) return ReadProfiles(options.files);
  ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(options.files[0]));
  if (process.has_value()) WaitForAges("leaks", {*process});
  if (!IsRecordingFile(options.files[0])) return ReadProfiles(options.files);
  ASSIGN_OR_RETURN(RecordedStates recorded, ReadRecorded("leaks", options.files[0]));
  return std::move(recorded.states);
}

absl::StatusOr<int> RunLeaks(const LeaksOptions& options) {
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadDumps(options));
  Subject subject;
  subject.name =
      Cat(options.files.back(), options.files.size() == 1 ? "" : Cat(" and ", options.files.size() - 1, " more"));
  subject.sources = SourcesText(options.files);
  ASSIGN_OR_RETURN(const Findings found, JudgeProgram("leaks", options, options.type, options.per, subject, profiles));
  ASSIGN_OR_RETURN(const int64_t limit, FailOverLimit(options.fail_over, found.unit));
  if (!found.not_judged.empty()) return InvalidArgument(found.not_judged);

  Result result = {profiles, found, {}, {}};
  // A leak of all other call stacks together includes those that are perhaps leaks.
  const bool counts_perhaps = options.fail_on_perhaps && found.rest.verdict != Verdict::kLeak;
  for (const Finding& finding : found.findings) {
    if (!finding.is_growth()) continue;
    result.growing.push_back(finding);
    if (finding.code == FindingCode::kLeak || counts_perhaps) AddTo(result.leaked, finding.growth);
  }
  for (const SiteGrowth& site : found.sites) {
    if (site.verdict == Verdict::kStopped || site.verdict == Verdict::kUpAndDown) result.others.push_back(&site);
  }
  absl::c_stable_sort(result.others, [](const SiteGrowth* a, const SiteGrowth* b) {
    return *absl::c_max_element(a->values) > *absl::c_max_element(b->values);
  });
  result.failed = result.leaked > limit;
  options.json ? PrintJson(options, result) : PrintText(options, result);
  return result.failed ? kFinding : kSuccess;
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
  arguments->add_flag("--fail-on-perhaps", options->fail_on_perhaps, "Exit with 1 also for possible leaks");
  arguments->add_option("-b,--by", options->by, "Judge each value of this label separately: --by phase")
      ->delimiter(',')
      ->allow_extra_args(false);
  arguments->add_option("-n,--rows", options->rows, "Sites to show, 0 for all")
      ->capture_default_str()
      ->transform(WholeNumber(0, kMaxCount));
  arguments->add_option("--frames", options->frames, "Frames to show of each site, 0 for all")
      ->capture_default_str()
      ->transform(WholeNumber(0, kMaxCount));
  arguments->add_flag("--json", options->json, kJsonHelp);
  arguments->add_flag("--all", options->all, "Also list the sites that grew and are no leaks");
  AddViewOptions(*arguments, *options);
  arguments->footer(kFilterHelp);
  return {arguments, [options] { return RunLeaks(*options); }, true};
}

}  // namespace hbmprof::tool
