#include "src/tool/serve/fleet.h"

#include <unistd.h>

#include <set>

#include "src/tool/serve/container.h"
#include "src/tool/serve/metrics_text.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

constexpr size_t kHistoryPoints = 240;
constexpr size_t kMostEnded = 100;  // processes
constexpr std::chrono::hours kKeptTime(1);
// For all processes together. Most scrapers stop waiting after ten seconds, and metrics take two such waits at most.
constexpr int kWaitMillis = 3'000;
constexpr int kProfileMillis = 30'000;              // for the whole profiles of all processes
constexpr std::chrono::seconds kJudgementTime(60);  // between two judgements of a process
// Nobody has asked for a judgement for the metrics, so it must not take much memory.
constexpr int64_t kMostJudgedBytes = 16 << 20;
constexpr size_t kMostLabelBytes = 200;

// The most bytes of the answer of each process, if so many are asked at the same time.
int64_t AnswerBytes(size_t processes) {
  return std::min(int64_t{256} << 20, (int64_t{1} << 30) / static_cast<int64_t>(std::max<size_t>(processes, 1)));
}

// Returns a string of JSON as the value of a label, with quotation marks; "" if there is none.
std::string LabelValue(const Json& object, const char* key) {
  const auto found = object.find(key);
  std::string text = found == object.end() ? "" : found->get<std::string>();
  if (text.size() > kMostLabelBytes) {
    size_t end = kMostLabelBytes;
    while ((text[end] & 0xC0) == 0x80) --end;  // the whole last character
    text.resize(end);
    text += "...";
  }
  return Cat("\"", absl::StrReplaceAll(Visible(text), {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

}  // namespace

Fleet::Fleet(Options options)
    : options_(std::move(options)), thread_([this] { RecordHistory(); }), judge_([this] { Judge(); }) {}

Fleet::~Fleet() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  thread_.join();
  judge_.join();
}

bool Fleet::WaitFor(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return !stopping_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stop_; });
}

void Fleet::RecordHistory() {
  do {
    std::vector<std::string> silent;
    absl::StatusOr<std::vector<LiveProcess>> processes = ListProcesses(options_.directory, &silent, kWaitMillis);
    if (!processes.ok()) silent.push_back(MessageOf(processes.status()));
    const std::lock_guard<std::mutex> lock(mutex_);
    now_ = std::chrono::steady_clock::now();
    silent_ = std::move(silent);
    for (LiveProcess& process : processes.ok() ? *processes : std::vector<LiveProcess>()) {
      Course& course = courses_[{process.pid, process.id}];
      // Another process can get the same id.
      if (process.seconds < course.process.seconds) {
        course.last = now_;
        ended_.push_back(std::exchange(course, Course()));
      }
      int64_t& bytes = course.bytes.emplace_back(0);  // on devices
      for (const LiveMemory& memory : process.memory) bytes += memory.space == "pinned_host" ? 0 : memory.in_use;
      if (course.bytes.size() > kHistoryPoints) course.bytes.pop_front();
      course.process = std::move(process);
      course.last = now_;
    }
    for (auto entry = courses_.begin(); entry != courses_.end();) {
      const std::string& socket = entry->second.process.socket;
      const bool is_there = entry->second.last == now_ || (access(socket.c_str(), F_OK) == 0 && !IsDead(socket));
      if (!is_there) {
        entry->second.last = now_;
        ended_.push_back(std::move(entry->second));
      }
      entry = is_there ? std::next(entry) : courses_.erase(entry);
    }
    while (!ended_.empty() && (ended_.size() > kMostEnded || now_ - ended_.front().last > kKeptTime)) {
      ended_.pop_front();
    }
  } while (WaitFor(options_.interval_s));
}

void Fleet::Judge() {
  while (WaitFor(1)) {
    std::vector<LiveProcess> processes;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!are_metrics_read_) continue;
      const Time now = std::chrono::steady_clock::now();
      for (auto& [key, course] : courses_) {
        if (course.last != now_ || now < course.next_judgement) continue;
        course.next_judgement = now + kJudgementTime;
        processes.push_back(course.process);
      }
      are_metrics_read_ = processes.empty();
    }
    for (const LiveProcess& process : processes) {
      try {
        ExplainProcess(process, kMostJudgedBytes).IgnoreError();  // its metrics keep the last answer
      } catch (const std::exception&) {
        // The same: there is no memory for it.
      }
      if (!WaitFor(0)) return;
    }
  }
}

std::string Fleet::FindingMetrics(const LiveProcess& process) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto course = courses_.find({process.pid, process.id});
  if (course == courses_.end() || course->second.explain.is_null()) return "";
  if (std::chrono::steady_clock::now() - course->second.explained > 3 * kJudgementTime) return "";
  const Json& answer = course->second.explain;
  std::set<std::string> samples;  // two findings can have the same labels
  for (const Json& finding : answer["findings"]) {
    samples.insert(Cat("hbmprof_finding{code=", LabelValue(finding, "code"), ",device=", LabelValue(finding, "memory"),
                       ",function=", LabelValue(finding, "function"), "} 1\n"));
  }
  return Cat("# HELP hbmprof_findings The number of findings of hbmprof explain, about once a minute.\n",
             "# TYPE hbmprof_findings gauge\nhbmprof_findings ",
             answer["findings"].size() + answer["more"].get<size_t>(), "\n",
             "# HELP hbmprof_finding 1 for each of the most important findings.\n", "# TYPE hbmprof_finding gauge\n",
             absl::StrJoin(samples, ""));
}

Json Fleet::Processes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Json json = {{"interval", options_.interval_s}, {"directory", options_.directory}, {"silent", silent_}};
  Json& list = json["processes"] = Json::array();
  const auto add = [&](const Course& course, bool has_ended) {
    Json& process = list.emplace_back(ProcessJson(course.process));
    process["history"] = course.bytes;
    process["explain"] = course.explain;
    if (!has_ended && course.last == now_) return;
    const auto ago = std::chrono::duration_cast<std::chrono::seconds>(now_ - course.last);
    process.update({{"ended", has_ended}, {"last_answer", ago.count()}});
  };
  for (const auto& [key, course] : courses_) add(course, false);
  for (auto course = ended_.rbegin(); course != ended_.rend(); ++course) add(*course, true);
  return json;
}

absl::StatusOr<std::vector<LiveProcess>> Fleet::Select(const Selection& selection) const {
  ASSIGN_OR_RETURN(std::vector<LiveProcess> processes, ListProcesses(options_.directory, nullptr, kWaitMillis));
  EraseIf(processes, [&](const LiveProcess& process) {
    return (!selection.pid.empty() && process.id != selection.pid) ||
           (!selection.name.empty() && process.name != selection.name);
  });
  if (processes.empty()) return NotFound("no such process has a control channel that answers");
  return processes;
}

absl::StatusOr<LiveProcess> Fleet::SelectOne(const Selection& selection) const {
  ASSIGN_OR_RETURN(std::vector<LiveProcess> processes, Select(selection));
  if (processes.size() == 1) return std::move(processes.front());
  return InvalidArgument("this route answers for one process: add pid=ID, one of: ", ListOf(processes));
}

absl::StatusOr<Fleet::Answers> Fleet::ProfilesOf(const std::vector<LiveProcess>& processes) const {
  const auto count = static_cast<int64_t>(std::max<size_t>(processes.size(), 1));
  std::string request = "profile";
  if (options_.max_samples > 0) {
    request += Cat(" max_samples=", std::max<int64_t>(options_.max_samples / count, 1));
  }
  if (options_.max_bytes > 0) {
    request += Cat(" max_bytes=", std::max<int64_t>(options_.max_bytes / count, 1));
  }
  std::vector<std::string> paths;
  for (const LiveProcess& process : processes) paths.push_back(process.socket);
  const QueryLimits limits = {kQueryMillis, kProfileMillis, AnswerBytes(processes.size())};
  std::vector<absl::StatusOr<std::string>> answers = QueryProcesses(paths, request, limits);
  Answers profiles;
  absl::Status problem = Unavailable("the process did not answer, or has ended");
  for (size_t i = 0; i < processes.size(); ++i) {
    if (answers[i].ok()) profiles.emplace_back(processes[i], *std::move(answers[i]));
    if (absl::IsOutOfRange(answers[i].status())) problem = answers[i].status();
  }
  if (profiles.empty()) return problem;
  return profiles;
}

absl::StatusOr<std::string> Fleet::Profile(const Selection& selection) {
  ASSIGN_OR_RETURN(const std::vector<LiveProcess> processes, Select(selection));
  ASSIGN_OR_RETURN(Answers answers, ProfilesOf(processes));
  if (!selection.pid.empty()) return std::move(answers[0].second);
  return Merged(answers);
}

absl::StatusOr<std::string> Fleet::Merged(const Answers& answers) {
  const std::lock_guard<std::mutex> lock(parsing_);
  ProfileMerger merger;
  absl::Status problem;
  bool is_empty = true;
  for (const auto& [process, bytes] : answers) {
    absl::StatusOr<RawProfile> profile = ParseProfile(bytes, process.name);
    const absl::Status status =
        profile.ok() ? merger.Add(*profile, {{"pid", process.id}, {"name", process.name}}, answers.size() == 1)
                     : profile.status();
    problem.Update(status);
    is_empty = is_empty && !status.ok();
  }
  if (is_empty) return problem;
  return merger.Take();
}

absl::StatusOr<Json> Fleet::Explain(const Selection& selection) {
  ASSIGN_OR_RETURN(const LiveProcess process, SelectOne(selection));
  return ExplainProcess(process, AnswerBytes(1));
}

template <typename Answer>
absl::StatusOr<Answer> Fleet::Make(const LiveProcess& process, int64_t most_bytes, const Options::Maker<Answer>& make) {
  const QueryLimits limits = {kQueryMillis, kProfileMillis, most_bytes};
  // The whole profile: what is folded cannot be judged.
  ASSIGN_OR_RETURN(std::string profile, QueryProcess(process.socket, "profile", limits));
  const std::string stats = QueryProcess(process.socket, "stats", limits).value_or("");
  const std::lock_guard<std::mutex> parsing(parsing_);
  return make(process, std::move(profile), stats);
}

absl::StatusOr<Json> Fleet::ExplainProcess(const LiveProcess& process, int64_t most_bytes) {
  ASSIGN_OR_RETURN(Json answer, Make(process, most_bytes, options_.explain));
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto course = courses_.find({process.pid, process.id});
  if (course != courses_.end()) {
    course->second.explain = answer;
    course->second.explained = std::chrono::steady_clock::now();
  }
  return answer;
}

absl::StatusOr<std::string> Fleet::Report(const Selection& selection) {
  ASSIGN_OR_RETURN(const LiveProcess process, SelectOne(selection));
  return Make(process, AnswerBytes(1), options_.report);
}

std::string Fleet::Metrics() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    are_metrics_read_ = true;
  }
  std::vector<std::string> silent;
  const absl::StatusOr<std::vector<LiveProcess>> processes = ListProcesses(options_.directory, &silent, kWaitMillis);
  if (!processes.ok() && !absl::IsNotFound(processes.status())) silent.push_back(MessageOf(processes.status()));
  std::vector<std::string> paths;
  if (processes.ok()) {
    for (const LiveProcess& process : *processes) paths.push_back(process.socket);
  }
  const std::string request = options_.metrics_tags.empty() ? "metrics" : Cat("metrics tags=", options_.metrics_tags);
  const std::vector<absl::StatusOr<std::string>> answers =
      QueryProcesses(paths, request, {kWaitMillis, kWaitMillis, AnswerBytes(paths.size())});
  std::vector<ProcessMetrics> metrics;
  for (size_t i = 0; i < paths.size(); ++i) {
    const LiveProcess& process = (*processes)[i];
    std::vector<std::pair<std::string, std::string>> labels = ContainerLabels(process);
    labels.insert(labels.begin(), {{"pid", process.id}, {"name", process.name}});
    metrics.push_back(
        {std::move(labels), Cat("# HELP hbmprof_process_up Whether the process answered the request for its metrics.\n",
                                "# TYPE hbmprof_process_up gauge\nhbmprof_process_up ", answers[i].ok() ? 1 : 0, "\n",
                                answers[i].ok() ? Cat(FindingMetrics(process), *answers[i]) : "")});
  }
  return Cat("# HELP hbmprof_silent_processes Processes with a control channel that did not answer.\n",
             "# TYPE hbmprof_silent_processes gauge\nhbmprof_silent_processes ", silent.size(), "\n",
             MergeMetrics(metrics));
}

}  // namespace hbmprof::tool
