// `hbmprof explain`: what is wrong with the memory of programs, in one answer.
#include <unistd.h>

#include "src/tool/commands/answer.h"
#include "src/tool/commands/command.h"
#include "src/tool/profile/labels.h"
#include "src/tool/recording/states.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kShownSources = 8;

struct ExplainOptions : ViewOptions {
  std::vector<std::string> sources;
  std::string counter;
  size_t rows = 6;
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

absl::Status Judge(const ExplainOptions& options, ProfileSet profiles, Subject subject, Answers& answers) {
  ASSIGN_OR_RETURN(Findings findings,
                   JudgeProgram("explain", options, "", options.counter, std::move(subject), profiles));
  answers.programs.push_back(std::move(findings));
  return absl::OkStatus();
}

// Returns the bytes of other processes on each device, as `process` knows them. Empty if its answer has another form:
// processes of earlier versions do not know this request.
std::map<std::string, int64_t> OthersOf(const LiveProcess& process) {
  std::map<std::string, int64_t> others;
  try {
    const Json stats = Json::parse(QueryProcess(process.socket, "stats").value_or("{}"));
    for (const Json& device : stats.value("devices", Json::array())) {
      for (const Json& other : device.value("processes", Json::array())) {
        int64_t& bytes = others[device.value("name", "")];
        if (!other.value("is_this", true)) AddTo(bytes, other.value("bytes", int64_t{0}));
      }
    }
    return others;
  } catch (const Json::exception&) {
    return {};
  }
}

absl::Status JudgeProcess(const ExplainOptions& options, const LiveProcess& process, Answers& answers) {
  Subject subject;
  subject.name = Cat(process.name, " (", process.id, ")");
  subject.sources = SourcesText({process.id});
  ASSIGN_OR_RETURN(std::string profile, QueryProcess(process.socket, "profile"));
  subject.others = OthersOf(process);
  ASSIGN_OR_RETURN(ProfileSet profiles, ProfileSet::Parse({{subject.name, std::move(profile)}}));
  return Judge(options, std::move(profiles), std::move(subject), answers);
}

absl::Status JudgeRecording(const ExplainOptions& options, const std::string& path, Answers& answers) {
  ASSIGN_OR_RETURN(RecordedStates recorded, ReadRecorded("explain", path));
  Subject subject = {path, SourcesText({path})};
  int64_t failed = 0;
  RecordedEvent last;
  RecordingCursor cursor(*recorded.reader);
  for (RecordedEvent event; cursor.Next(&event);) {
    if (event.kind != RecordedKind::kFailed) continue;
    ++failed;
    last = event;
  }
  if (failed > 0) {
    const RecordingTables& tables = recorded.reader->tables();
    subject.failures = Cat(failed, failed == 1 ? " allocation" : " allocations", " failed; the last one of ",
                           last.bytes > 0 ? Bytes(last.bytes) : "unknown size", " after ",
                           FormatSeconds(static_cast<double>(Minus(last.time, tables.start_time)) / 1e9));
    subject.next_of_failures = Cat("hbmprof top ", SourcesText({path + "@oom"}));
  }
  return Judge(options, std::move(recorded.states), std::move(subject), answers);
}

absl::Status JudgeFiles(const ExplainOptions& options, const std::vector<std::string>& files, Answers& answers) {
  if (files.size() > 1 && absl::c_linear_search(files, "-")) {
    return InvalidArgument("-: standard input cannot be one of several sources; write it to a file");
  }
  ASSIGN_OR_RETURN(ProfileSet profiles, ReadProfiles(files));
  std::map<std::string, std::vector<std::string>> of_process;
  for (const ProfileSet::File& file : profiles.files()) of_process[ProcessIn(file)].push_back(file.path);
  if (of_process.size() <= 1) {
    const std::string name = Cat(files.back(), files.size() == 1 ? "" : Cat(" and ", files.size() - 1, " more"));
    return Judge(options, std::move(profiles), {name, SourcesText(files)}, answers);
  }
  for (const auto& [process, paths] : of_process) {
    ASSIGN_OR_RETURN(ProfileSet of_one, ReadProfiles(paths));
    RETURN_IF_ERROR(Judge(options, std::move(of_one), {paths.back(), SourcesText(paths)}, answers));
  }
  RETURN_IF_ERROR(ApplyView("explain", options, profiles));
  ASSIGN_OR_RETURN(const size_t type, TypeToJudge(profiles, ""));
  LabelRanks(profiles);
  if (std::optional<Finding> outlier = OutlierOf(profiles, type, SourcesText(files)); outlier.has_value()) {
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
      RETURN_IF_ERROR(JudgeRecording(options, source, answers));
      continue;
    }
    ASSIGN_OR_RETURN(std::optional<LiveProcess> process, ProcessOf(source));
    if (process.has_value())
      processes.push_back(*std::move(process));
    else
      files.push_back(source);
  }
  if (!files.empty()) RETURN_IF_ERROR(JudgeFiles(options, files, answers));
  WaitForAges("explain", processes);
  for (const LiveProcess& process : processes) {
    const absl::Status status = JudgeProcess(options, process, answers);
    if (!status.ok() && !options.sources.empty()) return status;
    if (!status.ok()) answers.problems.push_back(MessageOf(status));
  }
  if (answers.programs.empty()) return Unavailable(absl::StrJoin(answers.problems, "; "));
  return answers;
}

// Returns all findings in the order in which they are shown. Adds the number of minor ones, which are left out, to
// `*minor`.
std::vector<Finding> AllFindings(const Answers& answers, size_t* minor) {
  std::vector<Finding> all = answers.findings;
  for (const Findings& program : answers.programs) {
    for (Finding finding : program.findings) {
      if (finding.is_minor) {
        ++*minor;
        continue;
      }
      if (answers.programs.size() > 1) finding.process = program.name;
      all.push_back(std::move(finding));
    }
  }
  RankFindings(all);
  return all;
}

absl::StatusOr<int> RunExplain(const ExplainOptions& options) {
  ASSIGN_OR_RETURN(const Answers answers, JudgeAll(options));
  size_t minor = 0;
  const std::vector<Finding> findings = AllFindings(answers, &minor);
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
    json["finding_count"] = findings.size();
    json["minor_count"] = minor;
    Json& entries = json["findings"] = Json::array();
    for (size_t i = 0; i < shown; ++i) entries.push_back(FindingJson(findings[i], i + 1));
    Print(ToText(json));
  } else {
    for (size_t i = 0; i < sources; ++i) PrintVisible(HeadText(answers.programs[i]));
    if (sources < answers.programs.size()) Print(Cat("and ", answers.programs.size() - sources, " more\n"));
    for (size_t i = 0; i < shown; ++i) PrintVisible(FindingText(findings[i], i + 1));
    if (findings.empty() && minor == 0) Print(Cat(NoFindingText(is_judged), "\n"));
    if (minor > 0) {
      Print(Cat(findings.empty() ? "no finding, but " : "and ", minor,
                minor == 1 ? " possible leak" : " possible leaks", " of few bytes: see hbmprof leaks SOURCE\n"));
    }
    if (shown < findings.size()) Print(Cat("and ", findings.size() - shown, " more findings (-n 0 shows all)\n"));
    for (size_t i = 0; i < sources; ++i) {
      PrintVisible(Cat(answers.programs.size() == 1 ? "" : Visible(answers.programs[i].name) + " ",
                       TrustText(answers.programs[i])));
    }
    for (const std::string& problem : answers.problems) PrintVisible(Cat("no answer: ", Visible(problem), "\n"));
  }
  if (!findings.empty()) return kFinding;
  return is_judged ? kSuccess : kUnusable;
}

}  // namespace

void WaitForAges(const std::string& command, const std::vector<LiveProcess>& processes) {
  const LiveProcess* youngest = nullptr;
  for (const LiveProcess& process : processes) {
    if (youngest == nullptr || process.seconds < youngest->seconds) youngest = &process;
  }
  if (youngest == nullptr || youngest->seconds >= kAgeSeconds) return;
  // The process says how old it is, so this can be any number.
  const int64_t seconds = kAgeSeconds - std::max<int64_t>(0, youngest->seconds);
  PrintError(command, Cat(youngest->name, " (", youngest->id, ") has run for ", youngest->seconds, " s: waits ",
                          seconds, " s, until the ages of its buffers are known"));
  sleep(static_cast<unsigned>(seconds));
}

absl::StatusOr<Findings> JudgeProgram(const std::string& command, const ViewOptions& view, const std::string& type,
                                      const std::string& counter, Subject subject, ProfileSet& profiles) {
  for (std::string& problem : ContradictionsOf(profiles)) subject.problems.push_back(std::move(problem));
  RETURN_IF_ERROR(ApplyView(command, view, profiles));
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
  arguments->add_option("-n,--rows", options->rows, "Findings to show, 0 for all")
      ->capture_default_str()
      ->transform(WholeNumber(0, kMaxCount));
  arguments->add_flag("--json", options->json, kJsonHelp);
  AddViewOptions(*arguments, *options);
  arguments->footer(
      Cat("Exits with 1 if there is a finding, with 0 if there is none, with 2 if there is no answer.\n", kFilterHelp));
  return {arguments, [options] { return RunExplain(*options); }, true};
}

}  // namespace hbmprof::tool
