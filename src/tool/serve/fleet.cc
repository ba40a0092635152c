#include "src/tool/serve/fleet.h"

#include "src/tool/report/report.h"
#include "src/tool/serve/container.h"
#include "src/tool/serve/metrics_text.h"
#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kHistoryPoints = 240;
constexpr size_t kMaxSites = 30;
// Most scrapers stop waiting after ten seconds. So the wait for a process that does not answer must be shorter.
constexpr int kWaitMillis = 3'000;
constexpr int kProfileMillis = 30'000;  // for the whole profile of a process
constexpr std::chrono::seconds kSitesAge{1};
constexpr int64_t kMaxAnswerBytes = int64_t{256} << 20;  // of one process

std::string KeyOf(const LiveProcess& process) { return Cat(process.id, " ", process.name); }

absl::StatusOr<Fleet::Text> Held(absl::StatusOr<std::string> bytes, std::shared_ptr<AnswerBudget::Lease> lease) {
  if (!bytes.ok()) return bytes.status();
  return Fleet::Text{*std::move(bytes), std::move(lease)};
}

}  // namespace

Fleet::Fleet(Options options)
    : options_(std::move(options)), answer_bytes_(options_.answer_bytes), thread_([this] { RecordHistory(); }) {}

Fleet::~Fleet() { thread_.join(); }

void Fleet::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
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
    processes_ = processes.ok() ? *std::move(processes) : std::vector<LiveProcess>();
    silent_ = std::move(silent);
    std::map<std::string, Course> courses;
    for (const LiveProcess& process : processes_) {
      const std::string key = KeyOf(process);
      Course course = std::move(courses_[key]);
      if (process.seconds < course.seconds) course.bytes.clear();  // another process with the same id
      course.seconds = process.seconds;
      int64_t& bytes = course.bytes.emplace_back(0);  // on devices
      for (const LiveMemory& memory : process.memory) bytes += memory.space == "pinned_host" ? 0 : memory.in_use;
      if (course.bytes.size() > kHistoryPoints) course.bytes.pop_front();
      courses[key] = std::move(course);
    }
    courses_ = std::move(courses);
  } while (WaitFor(options_.interval_s));
}

Json Fleet::Processes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Json json = {{"interval", options_.interval_s}, {"directory", options_.directory}, {"silent", silent_}};
  Json& list = json["processes"] = Json::array();
  for (const LiveProcess& process : processes_) {
    list.push_back(ProcessJson(process));
    list.back()["history"] = courses_.at(KeyOf(process)).bytes;
  }
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

absl::StatusOr<Fleet::Answers> Fleet::ProfilesOf(const std::vector<LiveProcess>& processes,
                                                 AnswerBudget::Lease* lease) const {
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
  const QueryLimits limits = {kQueryMillis, kProfileMillis, kMaxAnswerBytes, lease};
  std::vector<absl::StatusOr<std::string>> answers = QueryProcesses(paths, request, limits);
  Answers profiles;
  absl::Status problem = Unavailable("the process did not answer, or has ended");
  for (size_t i = 0; i < processes.size(); ++i) {
    // A process with an earlier version of hbmprof does not know the limits.
    if (!answers[i].ok() && answers[i].status().code() == absl::StatusCode::kInternal) {
      answers[i] = QueryProcess(paths[i], "profile", limits);
    }
    if (answers[i].ok()) profiles.emplace_back(processes[i], *std::move(answers[i]));
    if (absl::IsResourceExhausted(answers[i].status())) return answers[i].status();
    if (absl::IsOutOfRange(answers[i].status())) problem = answers[i].status();
  }
  if (profiles.empty()) return problem;
  return profiles;
}

absl::StatusOr<Fleet::Text> Fleet::Profile(const Selection& selection, const ProfileMerger::Labels& where) {
  ASSIGN_OR_RETURN(const std::vector<LiveProcess> processes, Select(selection));
  const bool has_process_labels = selection.pid.empty();
  auto lease = std::make_shared<AnswerBudget::Lease>(answer_bytes_);
  ASSIGN_OR_RETURN(Answers answers, ProfilesOf(processes, lease.get()));
  if (!has_process_labels && where.empty()) return Text{std::move(answers[0].second), std::move(lease)};
  return Held(Merged(answers, where, has_process_labels), std::move(lease));
}

absl::StatusOr<std::string> Fleet::Merged(const Answers& answers, const ProfileMerger::Labels& where,
                                          bool has_process_labels) {
  const std::lock_guard<std::mutex> lock(parsing_);
  ProfileMerger merger;
  absl::Status problem;
  bool is_empty = true;
  for (const auto& [process, bytes] : answers) {
    absl::StatusOr<RawProfile> profile = ParseProfile(bytes, process.name);
    ProfileMerger::Labels added;
    if (has_process_labels) added = {{"pid", process.id}, {"name", process.name}};
    const absl::Status status = profile.ok() ? merger.Add(*profile, where, added) : profile.status();
    problem.Update(status);
    is_empty = is_empty && !status.ok();
  }
  if (is_empty) return problem;
  return merger.Take();
}

absl::StatusOr<Json> Fleet::Sites(const std::string& pid) {
  {
    const std::lock_guard<std::mutex> lock(parsing_);
    const auto cached = sites_.find(pid);
    if (cached != sites_.end() && Clock::now() - cached->second.time < kSitesAge) return cached->second.json;
  }
  ASSIGN_OR_RETURN(const Text profile, Profile({pid, ""}, {}));
  const std::lock_guard<std::mutex> lock(parsing_);
  ASSIGN_OR_RETURN(ProfileSet profiles, ProfileSet::Parse({{pid, profile.bytes}}));
  SumsOptions options;
  options.type = "inuse_space";
  ASSIGN_OR_RETURN(const SumsQuery query, MakeQuery("serve", std::move(profiles), options));
  const Sums sums(query.profiles, {{0, 1}}, query.type, query.grouping);
  Json json = {{"total", sums.sum()[1]}};
  Json& rows = json["rows"] = Json::array();
  for (const Sums::Row& row : sums.Rows(false)) {
    if (row.flat[1] == 0 || rows.size() == kMaxSites) break;
    rows.push_back({{"function", row.name}, {"where", row.position}, {"flat", row.flat[1]}});
  }
  if (sites_.size() > kMaxSites) sites_.clear();
  sites_[pid] = {Clock::now(), json};
  return json;
}

absl::StatusOr<Fleet::Text> Fleet::Report(const std::string& pid) {
  ASSIGN_OR_RETURN(Text profile, Profile({pid, ""}, {}));
  const std::lock_guard<std::mutex> lock(parsing_);
  ASSIGN_OR_RETURN(ProfileSet profiles, ProfileSet::Parse({{Cat("process ", pid), profile.bytes}}));
  return Held(ReportPage(std::move(profiles), nullptr, ViewOptions(), ""), std::move(profile.held));
}

Fleet::Text Fleet::Metrics() const {
  std::vector<std::string> silent;
  const absl::StatusOr<std::vector<LiveProcess>> processes = ListProcesses(options_.directory, &silent, kWaitMillis);
  std::vector<std::string> paths;
  if (processes.ok()) {
    for (const LiveProcess& process : *processes) paths.push_back(process.socket);
  }
  const std::string request = options_.metrics_tags.empty() ? "metrics" : Cat("metrics tags=", options_.metrics_tags);
  auto lease = std::make_shared<AnswerBudget::Lease>(answer_bytes_);
  const std::vector<absl::StatusOr<std::string>> answers =
      QueryProcesses(paths, request, {kWaitMillis, kWaitMillis, kMaxAnswerBytes, lease.get()});
  std::vector<ProcessMetrics> metrics;
  for (size_t i = 0; i < paths.size(); ++i) {
    const LiveProcess& process = (*processes)[i];
    std::vector<std::pair<std::string, std::string>> labels = ContainerLabels(process);
    labels.insert(labels.begin(), {{"pid", process.id}, {"name", process.name}});
    metrics.push_back(
        {std::move(labels), Cat("# HELP hbmprof_process_up Whether the process answered the request for its metrics.\n",
                                "# TYPE hbmprof_process_up gauge\nhbmprof_process_up ", answers[i].ok() ? 1 : 0, "\n",
                                answers[i].ok() ? *answers[i] : "")});
  }
  return {Cat("# HELP hbmprof_silent_processes Processes with a control channel that did not answer.\n",
              "# TYPE hbmprof_silent_processes gauge\nhbmprof_silent_processes ", silent.size(), "\n",
              MergeMetrics(metrics)),
          std::move(lease)};
}

}  // namespace hbmprof::tool
