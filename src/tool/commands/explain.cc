// `hbmprof explain`: what is wrong with the memory of programs, in one answer.
#include <unistd.h>

#include "src/tool/commands/answer.h"
#include "src/tool/commands/command.h"
#include "src/tool/profile/labels.h"
#include "src/tool/recording/instant.h"
#include "src/tool/recording/site_totals.h"
#include "src/tool/recording/stacks.h"
#include "src/tool/source/profile_source.h"
#include "src/tool/symbols/profile_symbols.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kShownSources = 8;

struct ExplainOptions : ViewOptions {
  std::vector<std::string> sources;
  std::string counter;
  size_t rows = 5;
  bool json = false;
};

// The answers on all programs, and what they have in common.
struct Answers {
  std::vector<Findings> programs;
  std::vector<Finding> findings;      // on all programs together
  std::vector<std::string> problems;  // processes that do not answer
};

absl::StatusOr<size_t> TypeToJudge(const ProfileSet& profiles, const std::string& name) {
  ASSIGN_OR_RETURN(size_t type, profiles.TypeNamed(name));
  if (name.empty()) type = profiles.FindType("inuse_space").value_or(type);
  const std::string& found = profiles.types()[type].type;
  if (found.rfind("alloc_", 0) != 0) return type;
  return InvalidArgument("live buffers are judged, not ", found, "; --type can be inuse_space or inuse_objects");
}

// Returns the bytes of other processes on each device. `answer`: that to "stats". A device whose processes do not
// include this one is left out, because it may be one of the others: in a container, the driver does not know its id.
// Empty if the answer has another form: processes of earlier versions do not know this request.
std::map<std::string, int64_t> OthersIn(const std::string& answer) {
  std::map<std::string, int64_t> others;
  try {
    const Json stats = Json::parse(answer);
    for (const Json& device : stats.value("devices", Json::array())) {
      const Json processes = device.value("processes", Json::array());
      if (absl::c_none_of(processes, [](const Json& one) { return one.value("is_this", false); })) continue;
      int64_t& bytes = others[device.value("name", "")];
      for (const Json& one : processes) {
        if (!one.value("is_this", true)) AddTo(bytes, one.value("bytes", int64_t{0}));
      }
    }
    return others;
  } catch (const Json::exception&) {
    return {};
  }
}

Program MakeProgram(ProfileSet profiles, Subject subject, std::unique_ptr<RecordingReader> recording = nullptr) {
  subject.problems = ContradictionsOf(profiles);
  return {std::move(profiles), std::move(subject), std::move(recording)};
}

absl::StatusOr<Program> ReadProcess(const LiveProcess& process) {
  ASSIGN_OR_RETURN(std::string profile, QueryProcess(process.socket, "profile"));
  return ProgramOf(process, std::move(profile), QueryProcess(process.socket, "stats").value_or(""));
}

absl::StatusOr<Program> ReadRecording(const std::string& command, const std::string& path) {
  ASSIGN_OR_RETURN(RecordedStates recorded, ReadRecorded(command, path));
  Subject subject = {recorded.last, SourcesText({path})};
  subject.kind = Subject::Kind::kRecording;
  subject.state = SourcesText({recorded.last});
  subject.free_segments = std::move(recorded.free_segments);
  subject.is_snapshot = IsSnapshot(path);
  subject.has_trace = !subject.is_snapshot || recorded.reader->event_count() > 0;
  for (const auto& [account, failed] : recorded.failed) {
    const RecordingTables& tables = recorded.reader->tables();
    const std::string memory = AccountName(tables, account);
    const double after = static_cast<double>(Minus(failed.last.time, tables.start_time)) / 1e9;
    const std::string text =
        Cat(failed.count == 1 ? "an allocation" : Cat(failed.count, " allocations failed; the last one"), " of ",
            FailedText(tables, failed.last, Cat(" on ", memory, " after ", FormatSeconds(after))));
    const std::string moment = recorded.failed.size() == 1 ? "oom" : "oom/" + memory;
    const std::string state = Cat(path, "@", moment);
    ASSIGN_OR_RETURN(const RecordedInstant instant, InstantNamed(*recorded.reader, moment));
    ASSIGN_OR_RETURN(std::string bytes, ProfileAt(*recorded.reader, instant));
    ASSIGN_OR_RETURN(ProfileSet profiles, ParseWithLines({{state, std::move(bytes)}}));
    subject.failures.push_back({memory, text, std::move(profiles), Cat("hbmprof top ", SourcesText({state}))});
  }
  return MakeProgram(std::move(recorded.states), std::move(subject), std::move(recorded.reader));
}

absl::StatusOr<Program> ParseFiles(const std::vector<ProfileBytes>& files) {
  ASSIGN_OR_RETURN(ProfileSet profiles, ParseWithLines(files));
  const std::vector<std::string> paths = profiles.PathsFrom(0);
  Subject subject = {Cat(paths.back(), paths.size() == 1 ? "" : Cat(" and ", paths.size() - 1, " more")),
                     SourcesText(paths)};
  subject.is_snapshot = absl::c_any_of(paths, &IsSnapshot);
  return MakeProgram(std::move(profiles), std::move(subject));
}

absl::StatusOr<Program> ReadFiles(const std::vector<std::string>& files) {
  ASSIGN_OR_RETURN(const std::vector<ProfileBytes> bytes, ReadSources(files));
  return ParseFiles(bytes);
}

absl::Status Judge(const ExplainOptions& options, absl::StatusOr<Program> program, Answers& answers) {
  RETURN_IF_ERROR(program.status());
  ASSIGN_OR_RETURN(Findings findings, JudgeProgram("explain", options, "", options.counter, *program));
  answers.programs.push_back(std::move(findings));
  return absl::OkStatus();
}

absl::Status JudgeFiles(const ExplainOptions& options, const std::vector<std::string>& files, Answers& answers) {
  ASSIGN_OR_RETURN(std::vector<ProfileBytes> bytes, ReadSources(files));  // once: one can be a pipe
  ASSIGN_OR_RETURN(Program all, ParseFiles(bytes));
  std::map<std::string, std::vector<ProfileBytes>> of_process;
  for (size_t i = 0; i < bytes.size(); ++i) {
    of_process[ProcessAndRankOf(all.profiles.files()[i])].push_back(std::move(bytes[i]));
  }
  if (of_process.size() <= 1) return Judge(options, std::move(all), answers);
  for (const auto& [process, own] : of_process) RETURN_IF_ERROR(Judge(options, ParseFiles(own), answers));
  if (!AreRanks(all.profiles)) return absl::OkStatus();
  KeepLastOfEachProcess("explain: ranks", 0, all.profiles);
  RETURN_IF_ERROR(ApplyView("explain", options, all.profiles));
  ASSIGN_OR_RETURN(const size_t type, TypeToJudge(all.profiles, ""));
  LabelRanks(all.profiles);
  if (std::optional<Finding> outlier = OutlierOf(all.profiles, type, all.subject.sources); outlier.has_value()) {
    answers.findings.push_back(*std::move(outlier));
  }
  return absl::OkStatus();
}

absl::StatusOr<Answers> JudgeAll(const ExplainOptions& options) {
  Answers answers;
  std::vector<LiveProcess> processes;
  std::vector<std::string> files;
  if (options.sources.empty()) {
    ASSIGN_OR_RETURN(processes, ListProcesses(ControlDirectory(), &answers.problems));
    if (processes.empty() && answers.problems.empty()) return NotFound(NoProcessText("", ControlDirectory()));
  }
  for (const std::string& source : options.sources) {
    if (IsRecordingFile(source)) {
      RETURN_IF_ERROR(Judge(options, ReadRecording("explain", source), answers));
      continue;
    }
    ASSIGN_OR_RETURN(std::optional<LiveProcess> process, ProcessOf(source));
    process.has_value() ? processes.push_back(*std::move(process)) : files.push_back(source);
  }
  if (!files.empty()) RETURN_IF_ERROR(JudgeFiles(options, files, answers));
  WaitForAges("explain", processes);
  for (const LiveProcess& process : processes) {
    const absl::Status status = Judge(options, ReadProcess(process), answers);
    if (!status.ok() && !options.sources.empty()) return status;
    if (!status.ok()) answers.problems.push_back(MessageOf(status));
  }
  if (answers.programs.empty()) return Unavailable(absl::StrJoin(answers.problems, "; "));
  return answers;
}

// Returns all findings in the order in which they are shown. The minor ones are left out, and added to `minor`.
std::vector<Finding> AllFindings(const Answers& answers, std::vector<Finding>& minor) {
  std::vector<Finding> all = answers.findings;
  for (const Findings& program : answers.programs) {
    for (Finding finding : program.findings) {
      if (answers.programs.size() > 1) finding.process = program.name;
      (finding.is_minor ? minor : all).push_back(std::move(finding));
    }
  }
  RankFindings(all);
  return all;
}

absl::StatusOr<int> RunExplain(const ExplainOptions& options) {
  ASSIGN_OR_RETURN(const Answers answers, JudgeAll(options));
  std::vector<Finding> minor;
  const std::vector<Finding> findings = AllFindings(answers, minor);
  const auto advice = static_cast<size_t>(absl::c_count_if(findings, [](const Finding& one) { return one.is_advice; }));
  const size_t wrong = findings.size() - advice;
  const size_t shown = options.rows == 0 ? findings.size() : std::min(options.rows, findings.size());
  const bool is_judged = answers.problems.empty() && absl::c_all_of(answers.programs, [](const Findings& program) {
                           return program.not_judged.empty();
                         });
  const size_t sources = options.rows == 0 ? answers.programs.size() : std::min(kShownSources, answers.programs.size());
  if (options.json) {
    Json json = {{"version", kJsonVersion}};
    Json& list = json["sources"] = Json::array();
    for (size_t i = 0; i < sources; ++i) list.push_back(SourceJson(answers.programs[i]));
    json["source_count"] = answers.programs.size();
    json["silent"] = answers.problems;
    json["finding_count"] = wrong;
    json["advice_count"] = advice;
    json["minor_count"] = minor.size();
    Json& entries = json["findings"] = Json::array();
    for (size_t i = 0; i < shown; ++i) entries.push_back(FindingJson(findings[i], i + 1));
    Print(ToText(json));
  } else {
    for (size_t i = 0; i < sources; ++i) {
      PrintVisible(Cat(HeadText(answers.programs[i]), PhasesText(answers.programs[i].phases)));
    }
    if (sources < answers.programs.size()) Print(Cat("and ", answers.programs.size() - sources, " more\n"));
    for (size_t i = 0; i < shown; ++i) PrintVisible(FindingText(findings[i], i + 1));
    if (wrong == 0 && minor.empty()) Print(Cat(NoFindingText(is_judged), "\n"));
    if (!minor.empty()) {
      int64_t growth = 0;
      for (const Finding& finding : minor) AddTo(growth, finding.bytes.value_or(0));
      PrintVisible(Cat(wrong == 0 ? "no finding, but " : "and ", minor.size(), " possible leak",
                       minor.size() == 1 ? "" : "s", " (", Bytes(growth), ", little for the device): see ",
                       Visible(minor[0].next), "\n"));
    }
    if (shown < findings.size()) Print(Cat("and ", findings.size() - shown, " more findings (-n 0 shows all)\n"));
    const bool is_one = absl::c_all_of(answers.programs, [&](const Findings& program) {
      return TrustText(program) == TrustText(answers.programs[0]);
    });
    for (size_t i = 0; i < (is_one ? 1 : sources); ++i) {
      PrintVisible(Cat(is_one ? "" : Visible(answers.programs[i].name) + " ", TrustText(answers.programs[i])));
    }
    for (const std::string& problem : answers.problems) PrintVisible(Cat("no answer: ", Visible(problem), "\n"));
  }
  if (wrong > 0) return kFinding;
  return is_judged ? kSuccess : kUnusable;
}

}  // namespace

void WaitForAges(const std::string& command, const std::vector<LiveProcess>& processes) {
  const auto youngest =
      absl::c_min_element(processes, [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  if (youngest == processes.end() || youngest->seconds >= kAgeSeconds) return;
  // The process says how old it is, so this can be any number.
  const int64_t seconds = kAgeSeconds - std::max<int64_t>(0, youngest->seconds);
  PrintError(command, Cat(youngest->name, " (", youngest->id, ") has run for ", youngest->seconds, " s: waits ",
                          seconds, " s, until the ages of its buffers are known"));
  sleep(static_cast<unsigned>(seconds));
}

absl::StatusOr<Program> ReadProgram(const std::string& command, const std::vector<std::string>& sources) {
  if (sources.size() > 1) return ReadFiles(sources);
  if (IsRecordingFile(sources[0])) return ReadRecording(command, sources[0]);
  ASSIGN_OR_RETURN(const std::optional<LiveProcess> process, ProcessOf(sources[0]));
  if (!process.has_value()) return ReadFiles(sources);
  WaitForAges(command, {*process});
  return ReadProcess(*process);
}

absl::StatusOr<Program> ProgramOf(const LiveProcess& process, std::string profile, const std::string& stats) {
  Subject subject = {Cat(process.name, " (", process.id, ")"), SourcesText({process.id})};
  subject.kind = Subject::Kind::kProcess;
  subject.is_detached = process.is_detached;
  subject.others = OthersIn(stats);
  ASSIGN_OR_RETURN(ProfileSet profiles, ParseWithLines({{subject.name, std::move(profile)}}));
  return MakeProgram(std::move(profiles), std::move(subject));
}

absl::StatusOr<Findings> JudgeProgram(const std::string& command, const ViewOptions& view, const std::string& type,
                                      const std::string& counter, Program& program) {
  auto& [profiles, subject, recording] = program;
  if (profiles.CheckLabelKey("", kPhaseLabel).ok()) {  // before own code, which hides the libraries
    ASSIGN_OR_RETURN(KnownLibraries libraries, KnownLibraries::Make(view.known));
    LabelLibraries(libraries, profiles);
  }
  RETURN_IF_ERROR(ApplyView(command, view, profiles));
  ApplyViewAtFailure(command, view, subject);
  RETURN_IF_ERROR(profiles.CheckTextOfStacks());
  RETURN_IF_ERROR(CheckLabels(profiles, view.by));
  ASSIGN_OR_RETURN(const size_t judged, TypeToJudge(profiles, type));
  subject.counter = counter;
  ASSIGN_OR_RETURN(const DumpSeries series, OrderToJudge(profiles, &subject.counter));
  return FindingsOf(profiles, series, judged, subject, view.by);
}

Command AddExplainCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("explain", "Say what is wrong with the memory of programs, and what to do");
  auto options = std::make_shared<ExplainOptions>();
  arguments->add_option("SOURCE", options->sources,
                        "A process, profiles, a recording, a snapshot of PyTorch; default: all processes of this host");
  arguments->add_option("-p,--per", options->counter,
                        "Growth per unit of this counter (default: the only one of the program)");
  AddCount(*arguments, "-n,--rows", options->rows, "Findings to show, 0 for all");
  arguments->add_flag("--json", options->json, kJsonHelp);
  AddViewOptions(*arguments, *options);
  arguments->footer(
      Cat("Exits with 1 if there is a finding besides advice, with 0 if there is none, with 2 if there is no answer.\n",
          kFilterHelp));
  return {arguments, [options] { return RunExplain(*options); }, true};
}

}  // namespace hbmprof::tool
