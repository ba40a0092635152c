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
  // Of a running process:
  std::string interval = "10s";
  size_t dumps = kEnoughDumps;
  std::string output;
  std::vector<CLI::Option*> live_options;  // those above
};

struct Result {
  const ProfileSet& profiles;
  const Findings& found;
  std::string unit;
  std::vector<Finding> growing;           // those of `found` on growth
  std::vector<const SiteGrowth*> others;  // sites that grew and are no leaks, the largest first
  int64_t leaked = 0;                     // what --fail-over counts
  bool failed = false;
};

std::vector<ProfileSet::ShownFrame> StackOf(const Result& result, const Finding& finding) {
  if (!finding.stack.has_value()) return {};
  return result.profiles.ShownStack(*finding.stack);
}

std::string NameOf(const ProfileSet& profiles, const SiteGrowth& site) {
  const std::vector<ProfileSet::ShownFrame> stack = profiles.ShownStack(site.stack);
  return stack.empty() ? "[no stack]" : stack[0].name;
}

void PrintJson(const LeaksOptions& options, const Result& result) {
  Json json = {{"version", kJsonVersion}, {"source", SourceJson(result.found)},
               {"unit", result.unit},     {"leaked", result.leaked},
               {"failed", result.failed}, {"finding_count", result.growing.size()}};
  Json& list = json["findings"] = Json::array();
  for (const Finding& finding : result.growing) {
    if (options.rows != 0 && list.size() == options.rows) break;
    Json& entry = list.emplace_back(FindingJson(finding, list.size() + 1));
    Json& stack = entry["stack"] = Json::array();
    for (const ProfileSet::ShownFrame& frame : StackOf(result, finding)) {
      if (options.frames != 0 && stack.size() == options.frames) break;
      stack.push_back(frame.Position().empty() ? frame.name : Cat(frame.name, " ", frame.Position()));
    }
  }
  if (options.all) {
    Json& others = json["others"] = Json::array();
    for (const SiteGrowth* site : result.others) {
      others.push_back({{"function", NameOf(result.profiles, *site)},
                        {"verdict", VerdictName(site->verdict)},
                        {"growth", site->growth},
                        {"why", site->why}});
    }
  }
  Print(ToText(json));
}

void PrintText(const LeaksOptions& options, const Result& result) {
  PrintVisible(HeadText(result.found));
  size_t shown = 0;
  for (const Finding& finding : result.growing) {
    if (options.rows != 0 && shown == options.rows) break;
    Finding with_stack = finding;
    with_stack.callers.clear();
    PrintVisible(FindingText(with_stack, ++shown));
    const std::vector<ProfileSet::ShownFrame> stack = StackOf(result, finding);
    Table table("lll");
    const size_t frames = options.frames == 0 ? stack.size() : std::min(options.frames, stack.size());
    for (size_t i = 0; i < frames; ++i) table.Add({"     ", stack[i].name, stack[i].Position()});
    PrintVisible(table.Text(TerminalColumns()));
    if (frames < stack.size())
      Print(Cat("       ... ", stack.size() - frames, " more callers (--frames 0 shows all)\n"));
  }
  if (result.growing.empty()) Print(Cat("no leak in ", result.found.sites.size(), " call stacks\n"));
  if (shown < result.growing.size()) Print(Cat("and ", result.growing.size() - shown, " more (-n 0 shows all)\n"));
  if (options.all && !result.others.empty()) {
    Table table("lrll");
    const size_t others =
        options.rows == 0 ? result.others.size() : std::min(options.rows - shown, result.others.size());
    for (size_t i = 0; i < others; ++i) {
      const SiteGrowth& site = *result.others[i];
      table.Add({" ", FormatValue(site.values.back(), result.unit), NameOf(result.profiles, site), site.why});
    }
    PrintVisible("no leaks, although they grew:\n" + table.Text());
    if (others < result.others.size()) Print(Cat("and ", result.others.size() - others, " more (-n 0 shows all)\n"));
  }
  PrintVisible(TrustText(result.found));
  if (!options.fail_over.empty() && result.failed) {
    Print(
        Cat("FAILED: they grew by ", FormatValue(result.leaked, result.unit), ", more than ", options.fail_over, "\n"));
  }
}

// Takes dumps of a process: one if that can be judged, or a series, also if one of its options was given. Reports wrong
// options before the series or after its first dump, as far as possible.
absl::StatusOr<ProfileSet> TakeDumpsOf(const LiveProcess& process, const LeaksOptions& options) {
  ASSIGN_OR_RETURN(const double seconds,
                   SecondsOf("--interval", options.interval, 0, 86400, "a time such as 10s or 5m, up to 24h"));
  const bool is_series =
      absl::c_any_of(options.live_options, [](const CLI::Option* option) { return option->count() > 0; });
  if (options.dumps < 3) {
    return InvalidArgument("--dumps ", options.dumps, ": take at least three, better ", kEnoughDumps);
  }
  RETURN_IF_ERROR(CheckView(options));
  if (!is_series) WaitForAges("leaks", {process});
  const auto is_enough = [&](const ProfileSet& first) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const JudgedProfiles judged, PrepareToJudge(first, options.type, options.per));
    RETURN_IF_ERROR(FailOverLimit(options.fail_over, first.types()[judged.type].unit).status());
    if (is_series || judged.series.CanBeJudged()) return !is_series;
    PrintError("leaks", Cat(process.name, " (", process.pid, ") has no ages of buffers: takes ", options.dumps,
                            " dumps, one every ", options.interval));
    return false;
  };
  return TakeDumps("leaks", process, {seconds, options.dumps, options.output}, is_enough);
}

// Returns the dumps: the files, or those of a process or recording, if `options.files` is one name and that of it.
absl::StatusOr<ProfileSet> ReadDumps(const LeaksOptions& options) {
  if (options.files.size() == 1) {
    ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(options.files[0]));
    if (process.has_value()) return TakeDumpsOf(*process, options);
  }
  for (const CLI::Option* const option : options.live_options) {
    if (option->count() == 0) continue;
    return InvalidArgument("--", option->get_lnames()[0], " is for the dumps of one running process, not for files");
  }
  if (options.files.size() == 1 && IsRecordingFile(options.files[0])) {
    ASSIGN_OR_RETURN(RecordedStates recorded, ReadRecorded("leaks", options.files[0]));
    return std::move(recorded.states);
  }
  return ReadProfiles(options.files);
}

absl::StatusOr<int> RunLeaks(const LeaksOptions& options) {
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadDumps(options));
  Subject subject;
  subject.problems = ContradictionsOf(profiles);
  RETURN_IF_ERROR(ApplyView("leaks", options, profiles));
  RETURN_IF_ERROR(profiles.CheckTextOfStacks());
  ASSIGN_OR_RETURN(const JudgedProfiles judged, PrepareToJudge(profiles, options.type, options.per));
  const std::string unit = profiles.types()[judged.type].unit;
  ASSIGN_OR_RETURN(const int64_t limit, FailOverLimit(options.fail_over, unit));
  RETURN_IF_ERROR(CheckLabels(profiles, options.by));
  subject.name =
      Cat(options.files.back(), options.files.size() == 1 ? "" : Cat(" and ", options.files.size() - 1, " more"));
  subject.sources = SourcesText(options.files);
  subject.counter = judged.counter;
  const Findings found = FindingsOf(profiles, judged.series, judged.type, subject, options.by);
  if (!found.not_judged.empty()) return InvalidArgument(found.not_judged);

  Result result = {profiles, found, unit, {}, {}};
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
  // The last lines of the help list these.
  arguments->add_flag("--all", options->all, "Also list the sites that grew and are no leaks")->group("");
  options->live_options = {
      arguments->add_option("--interval", options->interval,
                            "Of a process: take a series, with this time between two dumps"),
      arguments->add_option("--dumps", options->dumps, "Of a process: number of dumps of the series")
          ->transform(WholeNumber(0, kMaxCount)),
      arguments->add_option("-o,--output", options->output, "Of a process: folder that keeps the dumps")};
  for (CLI::Option* const option : options->live_options) option->group("");
  AddViewOptions(*arguments, *options);
  arguments->footer(
      Cat("Also --all: sites that grew and are no leaks. Of a process: --interval 10s, --dumps 12, -o DIR keeps the "
          "dumps\n",
          kFilterHelp));
  return {arguments, [options] { return RunLeaks(*options); }, true};
}

}  // namespace hbmprof::tool
