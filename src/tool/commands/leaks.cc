// `hbmprof leaks`: shows which call stacks grow, how fast, and where.

#include <cmath>

#include "src/tool/commands/command.h"
#include "src/tool/growth/growth.h"
#include "src/tool/recording/states.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kLeastDumps = 3;

struct LeaksOptions : ViewOptions {
  std::vector<std::string> files;
  std::string type;
  std::string per;
  std::string fail_over;
  std::string fail_on = "sure";
  bool has_fail_on = false;  // the option --fail-on was given
  size_t rows = 10;
  size_t frames = 8;
  bool all = false;
  bool json = false;
  // Of a running process:
  std::string interval = "10s";
  size_t dumps = 12;
  std::string output;
  std::vector<CLI::Option*> live_options;  // those above
};

struct Result {
  const ProfileSet& profiles;
  const DumpSeries& series;
  SampleType type;
  size_t type_index;
  bool trimmed;                   // frames of known libraries are left out
  std::vector<SiteGrowth> sites;  // in the order of RankGrowth
  Verdict worst;                  // sites up to this verdict count for --fail-over
  SiteGrowth rest;                // all other sites, judged as one
  int64_t counts[5] = {};         // sites by verdict
  int64_t leaked = 0;             // growth of the sites up to `worst`
  int64_t unexplained = 0;        // growth of `rest`, if its verdict is up to `worst`
  int64_t stopped = 0;            // growth of the sites that grew and stopped
};

// Returns the first judged dump after a third of the time (or of the counter).
size_t EndOfWarmUp(const DumpSeries& series) {
  const std::vector<double> at = series.Exposure();
  const double end = at[series.begin] + (at[series.end - 1] - at[series.begin]) / 3;
  size_t d = series.begin;
  while (d + 1 < series.end && at[d] < end) ++d;
  return d;
}

// Returns the growth of a site that --fail-over counts. Growth that stopped counts only after the dump `warm`.
int64_t CountedGrowth(const SiteGrowth& site, const DumpSeries& series, size_t warm) {
  if (site.verdict < Verdict::kStopped || series.end - series.begin < kLeastDumps) return site.growth;
  return std::max<int64_t>(0, Minus(site.values[series.end - 1], site.values[warm]));
}

Result JudgeSites(const LeaksOptions& options, const ProfileSet& profiles, const DumpSeries& series, size_t type,
                  bool trimmed) {
  const Verdict worst = options.fail_on == "growth"    ? Verdict::kStopped
                        : options.fail_on == "perhaps" ? Verdict::kPerhaps
                                                       : Verdict::kLeak;
  const size_t warm = EndOfWarmUp(series);
  Result result = {profiles, series, profiles.types()[type], type, trimmed, {}, worst, {}};
  result.sites = RankGrowth(profiles, series, type, options.by);
  result.rest = RestOf(profiles, series, type, result.sites, worst);
  for (const SiteGrowth& site : result.sites) {
    ++result.counts[static_cast<int>(site.verdict)];
    const int64_t growth = CountedGrowth(site, series, warm);
    if (site.verdict <= worst) AddTo(result.leaked, growth);
    if (site.verdict == Verdict::kStopped) AddTo(result.stopped, growth);
  }
  if (result.rest.verdict <= worst) result.unexplained = CountedGrowth(result.rest, series, warm);
  return result;
}

Json VerdictJson(const SiteGrowth& site, const DumpSeries& series) {
  Json json = {{"verdict", VerdictName(site.verdict)},
               {"sure", SureName(site.sure)},
               {"why", site.why},
               {"more_dumps", site.more_dumps},
               {"growth", site.growth},
               {"per_interval", site.per_interval},
               {"values", site.values}};
  if (site.oldest > 0) json["born"] = {{"oldest_seconds", site.oldest}, {"newest_seconds", site.newest}};
  if (!series.seconds.empty()) json["per_second"] = site.per_second;
  if (!series.counts.empty()) json["per_count"] = site.per_count;
  return json;
}

void PrintJson(const LeaksOptions& options, const Result& result, bool failed) {
  const ProfileSet& profiles = result.profiles;
  const DumpSeries& series = result.series;
  Json json = {{"version", kJsonVersion},   {"type", result.type.type}, {"unit", result.type.unit},
               {"own", options.own},        {"leaked", result.leaked},  {"unexplained", result.unexplained},
               {"stopped", result.stopped}, {"failed", failed}};
  Json& files = json["files"] = Json::array();
  for (const size_t f : series.files) files.push_back(profiles.files()[f].path);
  json["judged"] = {{"first", series.begin}, {"last", series.end - 1}};
  if (!series.restart.empty()) json["restart"] = series.restart;
  if (!series.seconds.empty()) json["seconds"] = series.seconds;
  if (!series.counts.empty()) json["counter"] = {{"name", options.per}, {"values", series.counts}};
  json["rest"] = VerdictJson(result.rest, series);
  Json& list = json["sites"] = Json::array();
  for (const SiteGrowth& site : result.sites) {
    Json entry = VerdictJson(site, series);
    entry["labels"] = ObjectOf({site.labels.begin(), site.labels.end()});
    Json& stack = entry["stack"] = Json::array();
    for (const ProfileSet::ShownFrame& frame : profiles.ShownStack(site.stack)) {
      stack.push_back({{"name", frame.name}, {"where", frame.Position()}});
    }
    list.push_back(std::move(entry));
  }
  Print(ToText(json));
}

void PrintHead(const LeaksOptions& options, const Result& result) {
  const DumpSeries& series = result.series;
  const std::string& unit = result.type.unit;
  int64_t first = 0;
  int64_t last = 0;
  for (const SiteGrowth& site : result.sites) {
    AddTo(first, site.values.front());
    AddTo(last, site.values.back());
  }
  const ProfileSet::File& now = result.profiles.files()[series.files[series.end - 1]];
  const bool is_one = series.files.size() == 1;
  std::string head = is_one ? "1 dump" : Cat(series.files.size(), " dumps");
  if (is_one) {
    head += Cat(", ", FormatDuration(static_cast<double>(now.info.UptimeSeconds().value_or(0))), " after the start");
  } else if (!series.seconds.empty()) {
    head += Cat(" over ", std::llround(series.seconds.back()), " s");
  }
  if (!is_one && !series.counts.empty()) {
    head += Cat(", ", std::llround(series.counts[series.end - 1] - series.counts[series.begin]), " ", options.per);
  }
  Print(Visible(Cat(head, ": ", result.type.type, " ", is_one ? "" : Cat("from ", FormatValue(first, unit), " to "),
                    FormatValue(last, unit))) +
        "\n");
  if (const std::string leaks = LeakSentence(result.profiles, now, result.type_index, result.sites); !leaks.empty()) {
    PrintVisible(Colored(Visible(leaks), Tone::kGrowth) + "\n");
  }
  const int64_t* counts = result.counts;
  Print(Cat(result.sites.size(), " sites: ", counts[0], " leak, ", counts[1], " perhaps, ", counts[2],
            " grew and stopped, ", counts[3], " go up and down, ", counts[4], " did not grow",
            options.all || counts[2] + counts[3] == 0 ? "" : " (--all lists those that grew)", "\n"));
  if (result.trimmed) Print(kTrimmedText);
  if (!series.restart.empty()) Print(Visible(series.restart) + "\n");
}

// Returns the verdict of a site with its rates and reasons, for PrintVisible.
std::string VerdictText(const LeaksOptions& options, const Result& result, const SiteGrowth& site) {
  const std::string& unit = result.type.unit;
  const auto rate = [&](double value, const std::string& per) {
    return Cat(FormatChange(static_cast<int64_t>(std::llround(value)), unit), "/", per);
  };
  std::string rates;
  if (result.series.files.size() > 1 && !result.series.counts.empty())
    rates += rate(site.per_count, OneOf(options.per)) + "  ";
  if (!result.series.seconds.empty()) rates += rate(site.per_second, "s") + "  ";
  if (result.series.files.size() > 1) rates += rate(site.per_interval, "interval") + "  ";
  const bool is_leak = site.verdict == Verdict::kLeak;
  const std::string line = Cat(GrowthSign(site.growth), is_leak ? "LEAK" : VerdictName(site.verdict), "  ",
                               Visible(rates), "(", Visible(FormatChange(site.growth, unit)), " in all)");
  return Cat(Colored(line, is_leak ? Tone::kGrowth : Tone::kWarning), "\n       sure: ", SureName(site.sure), "; ",
             Visible(site.why), "\n       more dumps: ", Visible(site.more_dumps), "\n");
}

// Returns the stack and the labels of a site, for PrintVisible. `frames`: the number of frames to show, 0 for all.
std::string SiteText(const ProfileSet& profiles, const SiteGrowth& site, size_t frames) {
  const std::vector<ProfileSet::ShownFrame> stack = profiles.ShownStack(site.stack);
  const size_t shown = frames == 0 ? stack.size() : std::min(frames, stack.size());
  Table table("lll");
  for (size_t i = 0; i < shown; ++i) table.Add({"     ", stack[i].name, stack[i].Position()});
  std::string text = table.Text(TerminalColumns());
  if (shown < stack.size()) text += Cat("       ... ", stack.size() - shown, " more callers (--frames 0 shows all)\n");
  if (stack.empty()) text += "       [no stack]\n";
  if (site.labels.empty()) return text;
  return Cat(text, "       ", Visible(absl::StrJoin(site.labels, " ", absl::PairFormatter("="))), "\n");
}

// Prints the sites that are or may be leaks, and the rest if it is a leak or --fail-over counts it.
void PrintGrowing(const LeaksOptions& options, const Result& result) {
  size_t shown = 0;
  for (const SiteGrowth& site : result.sites) {
    if (site.verdict != Verdict::kLeak && site.verdict != Verdict::kPerhaps) break;
    if (options.rows != 0 && shown == options.rows) {
      Print("\n" + MoreRows(shown, static_cast<size_t>(result.counts[0] + result.counts[1])));
      break;
    }
    ++shown;
    PrintVisible(Cat("\n", shown < 10 ? " " : "", shown, ". ", VerdictText(options, result, site),
                     SiteText(result.profiles, site, options.frames)));
  }
  if (result.rest.verdict == Verdict::kLeak || result.unexplained > 0) {
    PrintVisible("\nall other sites together: " + VerdictText(options, result, result.rest));
  }
}

// Prints one line for each site that grew and is not a leak, the largest first: with --all, or if --fail-over counts
// it.
void PrintOthers(const LeaksOptions& options, const Result& result) {
  std::vector<const SiteGrowth*> others;
  for (const SiteGrowth& site : result.sites) {
    const bool grew = site.verdict == Verdict::kStopped || site.verdict == Verdict::kUpAndDown;
    if (grew && (options.all || site.verdict <= result.worst)) others.push_back(&site);
  }
  if (others.empty()) return;
  absl::c_sort(others, [](const SiteGrowth* a, const SiteGrowth* b) {
    return *absl::c_max_element(a->values) > *absl::c_max_element(b->values);
  });
  const size_t all = others.size();
  if (options.rows != 0 && all > options.rows) others.resize(options.rows);
  Table table("lrll");
  for (const SiteGrowth* site : others) {
    table.Add({" ", FormatValue(site->values.back(), result.type.unit), NameOf(result.profiles, *site),
               Cat(site->why, "; more dumps: ", site->more_dumps)});
  }
  PrintVisible("\nno leaks:\n" + table.Text() + MoreRows(others.size(), all));
}

void PrintCheck(const Result& result, bool failed, int64_t limit) {
  const std::string& unit = result.type.unit;
  if (!failed) {
    if (result.worst == Verdict::kStopped || result.stopped <= limit) return;
    PrintVisible(Cat("\n--fail-over does not count ", Visible(FormatValue(result.stopped, unit)),
                     " of growth that stopped (--fail-on growth counts it)\n"));
    return;
  }
  const char* subject = result.worst == Verdict::kLeak      ? "the leaks grew by "
                        : result.worst == Verdict::kPerhaps ? "the leaks and possible leaks grew by "
                                                            : "all growing call stacks grew by ";
  const std::string rest =
      result.unexplained > 0 ? Cat(", all other sites together by ", FormatValue(result.unexplained, unit)) : "";
  const std::string text =
      Cat("FAILED: ", subject, FormatValue(result.leaked, unit), rest, ", more than ", FormatValue(limit, unit));
  PrintVisible("\n" + Colored(Visible(text), Tone::kGrowth) + "\n");
}

// Returns the sample type that is judged. Errors: those of TypeNamed; kInvalidArgument if it counts freed buffers too,
// and so grows in each program.
absl::StatusOr<size_t> JudgedType(const ProfileSet& profiles, const std::string& name) {
  ASSIGN_OR_RETURN(const size_t type, profiles.TypeNamed(name));
  const std::string& found = profiles.types()[type].type;
  if (found.rfind("alloc_", 0) != 0) return type;
  return InvalidArgument("leaks judges live buffers, not ", found, "; --type can be inuse_space or inuse_objects");
}

// Takes dumps of a process: one if that can be judged, or a series, also if one of its options was given. Reports wrong
// options before the series or after its first dump, as far as possible.
absl::StatusOr<ProfileSet> TakeDumpsOf(const LiveProcess& process, const LeaksOptions& options) {
  ASSIGN_OR_RETURN(const double seconds,
                   SecondsOf("--interval", options.interval, 0, 86400, "a time such as 10s or 5m, up to 24h"));
  const bool is_series =
      absl::c_any_of(options.live_options, [](const CLI::Option* option) { return option->count() > 0; });
  if (options.dumps < kLeastDumps) {
    return InvalidArgument("--dumps ", options.dumps, ": take at least three, better twelve");
  }
  RETURN_IF_ERROR(CheckView(options));
  const auto is_enough = [&](const ProfileSet& first) -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const size_t type, JudgedType(first, options.type));
    RETURN_IF_ERROR(FailOverLimit(options.fail_over, first.types()[type].unit).status());
    ASSIGN_OR_RETURN(const DumpSeries series, OrderDumps(first, options.per));
    if (is_series || series.CanBeJudged()) return !is_series;
    PrintError("leaks",
               Cat(process.name, " (", process.pid, ") has no ages of buffers, or is younger than 16 s: takes ",
                   options.dumps, " dumps, one every ", options.interval));
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
    ASSIGN_OR_RETURN(std::unique_ptr<RecordedStates> recorded, ReadRecorded("leaks", options.files[0], kJudgedStates));
    return std::move(recorded->states);
  }
  return ReadProfiles(options.files);
}

absl::StatusOr<int> RunLeaks(const LeaksOptions& options) {
  // Otherwise a check without a limit would succeed always. The field "leaked" of the JSON needs no limit.
  if (options.has_fail_on && options.fail_over.empty() && !options.json) {
    return InvalidArgument("--fail-on ", options.fail_on, ": selects what --fail-over counts; add --fail-over SIZE");
  }
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadDumps(options));
  bool trimmed = false;
  RETURN_IF_ERROR(ApplyView("leaks", options, profiles, &trimmed));
  ASSIGN_OR_RETURN(const size_t type, JudgedType(profiles, options.type));
  ASSIGN_OR_RETURN(const int64_t limit, FailOverLimit(options.fail_over, profiles.types()[type].unit));
  ASSIGN_OR_RETURN(const DumpSeries series, OrderDumps(profiles, options.per));
  if (!series.CanBeJudged()) {
    const size_t dumps = series.files.size();
    return InvalidArgument(
        dumps, dumps == 1 ? " dump" : " dumps",
        " cannot show whether memory leaks without the ages of buffers, which a process has after 16 seconds; give at "
        "least three, better five (for two, use hbmprof diff)");
  }
  RETURN_IF_ERROR(CheckLabels(profiles, options.by));

  const Result result = JudgeSites(options, profiles, series, type, trimmed);
  const bool failed = !options.fail_over.empty() && Plus(result.leaked, result.unexplained) > limit;
  if (options.json) {
    RETURN_IF_ERROR(profiles.CheckTextOfStacks());
    PrintJson(options, result, failed);
  } else {
    PrintHead(options, result);
    PrintGrowing(options, result);
    PrintOthers(options, result);
    if (!options.fail_over.empty()) PrintCheck(result, failed, limit);
  }
  return failed ? kFinding : kSuccess;
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
                        "Exit with 1 if the leaks together grew by more than this size, such as 1MiB");
  arguments
      ->add_option("--fail-on", options->fail_on,
                   "What --fail-over counts: sure (leaks), perhaps (also possible leaks), growth (all growth)")
      ->check(CLI::IsMember({"sure", "perhaps", "growth"}))
      ->capture_default_str()
      ->each([options](const std::string&) { options->has_fail_on = true; });
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
