// `hbmprof run`: runs a program with the injected library and prints a summary of its profiles at the end.
#include <errno.h>
#include <poll.h>
#include <re2/re2.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "src/base/atomic_file.h"
#include "src/base/descriptor.h"
#include "src/base/try_run.h"
#include "src/protocol/control.h"
#include "src/tool/commands/command.h"
#include "src/tool/findings/findings.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

constexpr char kProfilerApi[] = "cudaProfilerApi";
constexpr char kNvtxRange[] = "nvtx:";

constexpr char kCaptureVariable[] = "HBMPROF_CAPTURE_RANGE";
constexpr char kNvtxVariable[] = "NVTX_INJECTION64_PATH";

struct RunOptions : OutputOptions {
  bool json = false;
  std::string nvtx;           // "innermost", "outermost" or "path"; empty: no ranges
  std::string capture_range;  // "cudaProfilerApi" or "nvtx:NAME"; empty: the whole run is recorded
  std::vector<std::string> command;

  bool captures_nvtx() const { return absl::StartsWith(capture_range, kNvtxRange); }
};

// Returns the profiles RUN.PROCESS.NUMBER.pb.gz of `run` in `folder`, by process and number.
std::map<std::pair<int64_t, int64_t>, std::string> ProfilesOf(const std::string& run, const std::string& folder) {
  const RE2 pattern(Cat(RE2::QuoteMeta(run), R"(\.(\d+)\.(\d+))", RE2::QuoteMeta(kProfileSuffix)));
  std::map<std::pair<int64_t, int64_t>, std::string> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    int64_t process = 0;
    int64_t number = 0;
    if (RE2::FullMatch(name, pattern, &process, &number)) files[{process, number}] = Cat(folder, "/", name);
  }
  return files;
}

// Returns the processes with `variable` in their environment, as far as this user may read it.
std::vector<int> ProcessesWith(const std::string& variable) {
  std::vector<int> processes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    const int process = std::atoi(entry.path().filename().c_str());
    if (process <= 0 || process == getpid()) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    for (std::string one; std::getline(file, one, '\0');) {
      if (one == variable) processes.push_back(process);
    }
  }
  return processes;
}

// Returns those of `processes` that have recorded something: they have a control channel.
std::vector<LiveProcess> RecordedOf(const std::vector<int>& processes) {
  constexpr int kMillis = 500;
  if (processes.empty()) return {};
  absl::StatusOr<std::vector<LiveProcess>> all = ListProcesses(ControlDirectory(), nullptr, kMillis);
  if (!all.ok()) return {};
  EraseIf(*all, [&](const LiveProcess& process) { return !absl::c_linear_search(processes, process.pid); });
  return *std::move(all);
}

// The profiles that the processes of a run had when a signal came that can end them, by process: the program may kill
// its processes before they write their own.
struct ProfileAtSignal {
  std::string name;     // of the process
  std::string profile;  // empty: it did not answer
};
using ProfilesAtSignal = std::map<int64_t, ProfileAtSignal>;

// Requests the profiles of the processes with `variable` in their environment. Takes about six seconds at most; whoever
// stops a container waits ten. The first profile of a process reads the symbols of its libraries, which takes half a
// second of processor time for PyTorch's.
void TakeProfiles(const std::string& variable, ProfilesAtSignal& taken) {
  const std::vector<LiveProcess> processes = RecordedOf(ProcessesWith(variable));
  std::vector<std::string> sockets;
  for (const LiveProcess& process : processes) sockets.push_back(process.socket);
  QueryLimits limits;
  limits.millis = limits.total_millis = 5'000;
  std::vector<absl::StatusOr<std::string>> answers = QueryProcesses(sockets, "profile", limits);
  for (size_t i = 0; i < processes.size(); ++i) {
    // At a second signal, a process that ends already may not answer: its first profile stays.
    auto& one = taken[processes[i].pid];
    one.name = processes[i].name;
    if (answers[i].ok()) one.profile = *std::move(answers[i]);
  }
}

// Passes signals from other processes on to the program, except signals that stop, cannot be caught, or come from a
// fault. Before it passes on one that can end the program, it calls `before_end`. It blocks the signals and reads them
// in a thread, so their settings stay as this process has inherited them.
class SignalForwarding {
 public:
  explicit SignalForwarding(std::function<void()> before_end) : before_end_(std::move(before_end)) {
    sigfillset(&forwarded_);
    for (const int number :
         {SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
      sigdelset(&forwarded_, number);
    }
    sigprocmask(SIG_BLOCK, &forwarded_, &inherited_mask_);
  }
  SignalForwarding(const SignalForwarding&) = delete;
  SignalForwarding& operator=(const SignalForwarding&) = delete;

  // Without a descriptor or a thread, signals have the effect that they have without hbmprof, on this process.
  void Start(int process) {
    process_ = process;
    signals_.Reset(signalfd(-1, &forwarded_, SFD_CLOEXEC | SFD_NONBLOCK));
    stop_.Reset(eventfd(0, EFD_CLOEXEC));
    const auto start = [this] { thread_ = std::thread([this] { PassOnAll(); }); };
    if (signals_.get() < 0 || stop_.get() < 0 || !internal::TryRun(start)) Restore();
  }

  // Stops passing on signals, because another process can get the program's id after the wait. From then on signals
  // from other processes stay blocked, as if the program received them after its end. Ctrl-C ends this process.
  void Stop() {
    if (!thread_.joinable()) return;
    eventfd_write(stop_.get(), 1);
    thread_.join();
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) > 0) continue;  // such as the Ctrl-C that has ended the program
    sigset_t keys;
    sigemptyset(&keys);
    for (const int number : {SIGINT, SIGQUIT}) sigaddset(&keys, number);
    sigprocmask(SIG_UNBLOCK, &keys, nullptr);
  }

  // In the program, before it starts.
  void Restore() const { sigprocmask(SIG_SETMASK, &inherited_mask_, nullptr); }

 private:
  void PassOnAll() {
    while (true) {
      pollfd polled[] = {{stop_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
      poll(polled, 2, -1);
      if (polled[0].revents != 0) return;
      signalfd_siginfo info = {};
      if (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) PassOn(info);
    }
  }

  // Does not pass on signals of the kernel, such as Ctrl-C in the terminal, because the program receives them too, nor
  // signals that the program or this process sent. There is one exception: if the terminal hangs up, only the session
  // leader receives the SIGHUP. So if this process is the leader, it passes this signal on.
  void PassOn(const signalfd_siginfo& info) {
    const auto number = static_cast<int>(info.ssi_signo);
    const auto sender = static_cast<pid_t>(info.ssi_pid);
    if (number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT) before_end_();
    const bool is_hangup_of_leader = number == SIGHUP && info.ssi_code == SI_KERNEL && getsid(0) == getpid();
    if (!is_hangup_of_leader && (info.ssi_code > 0 || sender == process_ || sender == getpid())) return;
    if (info.ssi_code == SI_QUEUE) {
      sigval value = {};
      value.sival_ptr = reinterpret_cast<void*>(info.ssi_ptr);
      sigqueue(process_, number, value);
    } else {
      kill(process_, number);
    }
  }

  const std::function<void()> before_end_;
  int process_ = 0;
  internal::FileDescriptor signals_;
  internal::FileDescriptor stop_;
  std::thread thread_;
  sigset_t forwarded_;
  sigset_t inherited_mask_;
};

// Waits for the end of the program without reaping it.
void WaitUntilEnded(int process) {
  siginfo_t info = {};
  while (waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) continue;
}

// Ends this process in the same way as the program, without a second core dump. Returns only if this process ignores
// the signal, as the first process of a container does.
void EndBySignal(int number) {
  prctl(PR_SET_DUMPABLE, 0);
  signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  sigprocmask(SIG_UNBLOCK, &one, nullptr);
  raise(number);
}

// Returns the exit status that a shell returns for a program that it cannot execute.
int CannotStart(const absl::Status& status) {
  PrintError("run", MessageOf(status));
  return absl::IsNotFound(status) ? 127 : absl::IsPermissionDenied(status) ? 126 : kUnusable;
}

// The last profile of a process of the run.
struct Written {
  int64_t process;
  std::string file;
  std::string problem;  // why it cannot be read; "": it can
  ProfileInfo info;
};

// What the command says at the end.
struct RunResult {
  ProcessEnd end;
  std::string why_not_recorded;  // "": it was recorded
  std::string folder;
  size_t files = 0;                // written profiles
  std::vector<Written> profiles;   // by process
  std::vector<int> still_running;  // processes that are awaited
  std::string next;                // the next command; "" without a profile
};

std::string Unaccounted(const Comment& comment) {
  const std::optional<int64_t> unaccounted = comment.Number("unaccounted");
  if (!unaccounted.has_value()) return "unaccounted n/a (neither NVML nor the driver reports the memory in use)";
  const bool process = comment.Text("driver_scope") == "process";
  std::string text =
      Cat("unaccounted ", Bytes(*unaccounted), process ? " of this process" : " of all processes on the device");
  const std::optional<int64_t> baseline = comment.Number("baseline");
  if (!baseline.has_value()) return text;
  text += Cat(", ", Bytes(*baseline), " of it from the start");
  if (*unaccounted > *baseline) {
    text += Cat("; ", FormatChange(*unaccounted - *baseline, "bytes"), " since then, outside tracked allocations");
  }
  return text;
}

void PrintWritten(const Written& written) {
  PrintError("", Cat("process ", written.process, ": ", written.file));
  if (!written.problem.empty()) return PrintErrorText(Cat("  ", Visible(written.problem), "\n"));
  Table table("llrrl");
  if (const int64_t dropped = written.info.Dropped(); dropped != 0) {
    PrintErrorText(Cat("  ", dropped, " allocations were not recorded: a limit was reached\n"));
  }
  for (const std::string& warning : written.info.warnings) PrintErrorText(Cat("  ", Visible(warning), "\n"));
  for (const ProfileInfo::Device& device : written.info.devices) {
    const auto bytes = [&device](const char* key) {
      const std::optional<int64_t> value = device.Number(key);
      return value.has_value() ? Bytes(*value) : "n/a";
    };
    table.Add({Cat("  ", device.name), device.is_device_memory() ? "" : device.space, Cat("peak ", bytes("peak")),
               Cat("in use ", bytes("in_use")), device.is_device_memory() ? Unaccounted(device) : ""});
  }
  PrintErrorText(written.info.devices.empty() ? "  no allocation was seen\n" : table.Text());
}

Json WrittenJson(const Written& written) {
  Json json = {{"pid", written.process}, {"file", written.file}};
  if (!written.problem.empty()) json["problem"] = written.problem;
  json.update(
      {{"dropped_count", written.info.Dropped()}, {"warnings", written.info.warnings}, {"memories", Json::array()}});
  for (const ProfileInfo::Device& device : written.info.devices) {
    Json& memory = json["memories"].emplace_back(Json{{"name", device.memory()}});
    for (const char* key : {"in_use", "peak", "limit", "unaccounted"}) memory[key] = OrNull(device.Number(key));
  }
  return json;
}

Json ResultJson(const RunResult& result) {
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  Json processes = Json::array();
  for (const Written& written : result.profiles) processes.push_back(WrittenJson(written));
  return {{"version", kJsonVersion},
          {"exit_code", result.end.signal == 0 ? Json(result.end.code) : Json()},
          {"signal", result.end.signal == 0 ? Json() : Json(result.end.signal)},
          {"why_not_recorded", text(result.why_not_recorded)},
          {"folder", result.folder},
          {"file_count", result.files},
          {"processes", processes},
          {"still_running", result.still_running},
          {"next", text(result.next)}};
}

// Checks the value of --capture-range. Returns what is wrong with it; "" if nothing is.
std::string CheckCaptureRange(const std::string& value) {
  constexpr size_t kMostBytes = 128;  // of a name, as of each NVTX label
  const size_t start = sizeof(kNvtxRange) - 1;
  const bool is_nvtx =
      absl::StartsWith(value, kNvtxRange) && value.size() > start && value.size() <= start + kMostBytes;
  if (value == kProfilerApi || is_nvtx) return "";
  return Cat("'", value, "' is neither ", kProfilerApi, " nor ", kNvtxRange, "NAME with a name of at most ", kMostBytes,
             " bytes");
}

// Writes the profiles that were taken at a signal, of the processes that have ended without one.
void WriteTaken(const ProfilesAtSignal& at_signal, const std::string& folder, const std::string& run,
                const std::vector<int>& still_running) {
  const auto written = ProfilesOf(run, folder);
  for (const auto& [process, taken] : at_signal) {
    const auto first = written.lower_bound({process, 0});
    if (first != written.end() && first->first.first == process) continue;
    if (absl::c_linear_search(still_running, process)) continue;
    const absl::StatusOr<RawProfile> profile = ParseProfile(taken.profile, taken.name);
    if (profile.ok() && profile->message().sample().empty()) continue;  // at a signal it writes no such profile
    const std::string killed = Cat("process ", process, " (", taken.name, ") was killed before it wrote a profile");
    if (!profile.ok()) {
      PrintError("", killed);
      continue;
    }
    internal::FileRules rules;
    rules.must_be_new = true;
    const absl::Status status =
        internal::WriteFileAtomically(Cat(folder, "/", run, ".", process, ".0", kProfileSuffix), taken.profile, rules);
    PrintError("",
               Cat(killed, status.ok() ? "; its profile is of the moment of the signal" : ": " + MessageOf(status)));
  }
}

// Returns the processes of the run that have not ended. Helper processes, such as Python's resource tracker, end by
// themselves when the program has ended, so it waits for a second.
std::vector<int> StillRunning(const std::string& variable) {
  std::vector<int> processes = ProcessesWith(variable);
  for (int waited = 0; !processes.empty() && waited < 1000; waited += 50) {
    usleep(50'000);
    processes = ProcessesWith(variable);
  }
  return processes;
}

// Returns the last of the files `file`, `file`.1, ... if it was written since `start`, by the clock of files; else "".
// The library writes a new recording if there is one.
std::string FileSince(const timespec& start, const std::string& file) {
  std::string last;
  std::pair time(start.tv_sec, start.tv_nsec);
  struct stat info;
  for (int i = 0;; ++i) {
    const std::string name = i == 0 ? file : Cat(file, ".", i);
    if (stat(name.c_str(), &info) != 0) return last;
    const std::pair written(info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    if (!S_ISREG(info.st_mode) || written < time) continue;
    last = name;
    time = written;
  }
}

// Reads what the run, which has begun at `start` with the process `first`, has written into `result.folder`.
// `still_running`: the processes of the run that have not ended.
void ReadResult(const RunOptions& options, const std::string& run, const timespec& start, int64_t first,
                const std::vector<int>& still_running, RunResult& result) {
  const auto files = ProfilesOf(run, result.folder);
  result.files = files.size();
  // Without profiles at intervals and of ranges, each file is of another process, also if the ids are equal: an id can
  // be used in two containers, or again at a later time.
  const bool has_series = !options.interval.empty() || !options.capture_range.empty();
  for (auto file = files.begin(); file != files.end(); ++file) {
    const auto next = std::next(file);
    const int64_t process = file->first.first;
    if (has_series && next != files.end() && next->first.first == process) continue;
    Written& written = result.profiles.emplace_back(Written{process, file->second, "", {}});
    const absl::StatusOr<RawProfile> profile = ReadProfile(written.file);
    if (!profile.ok()) {
      written.problem = MessageOf(profile.status());
      continue;
    }
    for (const int64_t index : profile->message().comment()) written.info.Add(profile->text(index));
  }
  // A helper process writes no profile.
  for (const LiveProcess& process : RecordedOf(still_running)) {
    result.still_running.push_back(static_cast<int>(process.pid));
  }
  if (result.still_running.empty() && files.empty()) result.still_running = still_running;
  // Only the reports of failed allocations say that memory ran out.
  std::vector<std::string> sources;
  std::set<int64_t> processes;
  for (const auto& [key, file] : files) processes.insert(key.first);
  const bool is_one_process = processes.size() <= 1;
  if (is_one_process && !files.empty()) sources.push_back(files.rbegin()->second);
  for (const auto& [key, file] : ProfilesOf("hbmprof.oom", result.folder)) {
    const bool is_ours = key.first == first || processes.count(key.first) > 0;
    if (is_ours && !FileSince(start, file).empty()) sources.push_back(file);
  }
  if (files.empty() && sources.empty()) return;
  // A recording has more answers than a profile of the end.
  const std::string process = Cat(files.empty() ? first : files.begin()->first.first);
  const std::string recording =
      FileSince(start, options.record == "true" ? Cat(result.folder, "/", run, ".", process, ".0.hbmrec")
                                                : absl::StrReplaceAll(options.record, {{"%%", "%"}, {"%p", process}}));
  if (is_one_process && !recording.empty()) sources = {recording};
  std::vector<std::string> texts;
  if (!is_one_process) texts.push_back(Cat(SourcesText({Cat(result.folder, "/", run)}), ".*", kProfileSuffix));
  if (!sources.empty()) texts.push_back(SourcesText(sources, SIZE_MAX));
  result.next = Cat("hbmprof explain ", absl::StrJoin(texts, " "));
}

// Returns the value of HBMPROF if it turns recording off; else "".
std::string OffValue() {
  const char* const variable = std::getenv("HBMPROF");
  const std::string value = variable == nullptr ? "" : variable;
  bool is_on = false;
  return absl::EqualsIgnoreCase(value, "on") || (absl::SimpleAtob(value, &is_on) && is_on) ? "" : value;
}

// Makes the folder. Returns why no profile can be written to it, as far as that is known; "": one can.
std::string ProblemOf(const std::string& folder) {
  constexpr uint64_t kLeastFree = 64 << 10;
  std::error_code error;
  if (!fs::is_directory(folder, error)) fs::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error) return error.message();
  const fs::space_info space = fs::space(folder, error);
  const bool is_full = !error && space.capacity > 0 && space.available < kLeastFree;
  return is_full ? Cat(Bytes(static_cast<int64_t>(space.available)), " are free") : "";
}

void PrintResult(const RunOptions& options, const std::string& run, const RunResult& result) {
  const bool is_captured = !options.capture_range.empty();
  for (const Written& written : result.profiles) PrintWritten(written);
  if (is_captured && result.files > result.profiles.size()) {
    PrintError("", Cat(result.files, " profiles of ranges are in ", result.folder));
  }
  for (const int process : result.still_running) {
    PrintError("", Cat("process ", process, " still runs; it writes ", result.folder, "/", run, ".", process, ".*",
                       kProfileSuffix, is_captured ? " when a range ends" : " when it ends"));
  }
  if (!result.next.empty()) return PrintError("", Cat("next: ", result.next));
  if (!result.still_running.empty()) return;
  if (is_captured) {
    const std::string what = options.captures_nvtx()
                                 ? Cat("began no NVTX range with the name ", options.capture_range.substr(5))
                                 : "made no successful call of cudaProfilerStart";
    PrintError("", Cat("no profile: the program ", what, ", was killed, or cannot be injected"));
  } else if (const std::string value = OffValue(); !value.empty()) {
    PrintError("", Cat("no profile: HBMPROF=", value, " in the environment turns recording off"));
  } else if (const std::string problem = ProblemOf(result.folder); !problem.empty()) {
    PrintError("", Cat("no profile: ", result.folder, ": ", problem));
  } else {
    PrintError("",
               Cat("no profile: the program allocated no device memory, was killed, needed too long to write it at ",
                   "its end (then --interval 60 helps), or cannot be injected; `hbmprof doctor -- ",
                   options.command.front(), "` reports more"));
  }
}

// Makes programs that use NVTX load the library as their NVTX tool, if the environment does not name another tool.
void AddNvtx(const RunOptions& options, const std::string& library, ChildSetup& setup) {
  const char* const other = std::getenv(kNvtxVariable);
  if (other != nullptr && *other != '\0') {
    PrintError("", Cat("no NVTX ranges: ", kNvtxVariable, " already names another tool, ", other, "; unset it to use ",
                       options.captures_nvtx() ? "--capture-range=nvtx:NAME" : "--nvtx"));
    return;
  }
  setup.environment[kNvtxVariable] = library;
  setup.environment["HBMPROF_NVTX"] = options.nvtx.empty() ? "none" : options.nvtx;
}

// Returns the value of LD_PRELOAD. With CANN, it also has the file by whose name torch_npu and MindSpore know that
// someone wants reports of their blocks (src/inject/frameworks/mstx_blocks.cc).
std::string Preloaded(const std::string& library) {
  constexpr char kHook[] = "libascend_kernel_hook.so";
  std::string preloaded = PreloadWith(library);
  const char* const cann = std::getenv("ASCEND_HOME_PATH");
  std::error_code error;
  if (cann == nullptr || !fs::exists(Cat(cann, "/lib64/libms_tools_ext.so"), error)) return preloaded;
  const std::string hook = fs::path(library).parent_path() / kHook;
  if (absl::StrContains(preloaded, kHook) || !fs::exists(hook, error)) return preloaded;
  return absl::StrReplaceAll(preloaded, {{library, Cat(library, ":", hook)}});
}

// The options take the place of the variable.
absl::Status ReadCaptureVariable(RunOptions& options) {
  const char* const variable = std::getenv(kCaptureVariable);
  if (variable == nullptr || *variable == '\0' || !options.capture_range.empty()) return absl::OkStatus();
  if (!options.interval.empty() || !options.record.empty()) {
    PrintError("", Cat(kCaptureVariable, " has no effect with --interval and --record"));
    return absl::OkStatus();
  }
  options.capture_range = variable;
  const std::string problem = CheckCaptureRange(variable);
  return problem.empty() ? absl::OkStatus() : InvalidArgument(kCaptureVariable, ": ", problem);
}

absl::StatusOr<int> RunRun(RunOptions& options) {
  RETURN_IF_ERROR(ReadCaptureVariable(options));
  RunResult result;
  std::error_code error;
  const fs::path folder = fs::absolute(options.output, error);
  result.folder = fs::weakly_canonical(folder, error);
  if (result.folder.empty()) result.folder = folder.empty() ? options.output : folder.string();
  if (fs::exists(result.folder, error) && !fs::is_directory(result.folder, error)) {
    return InvalidArgument("--output '", options.output, "': not a folder");
  }
  const std::string run = NewRunName();
  ChildSetup setup;
  RETURN_IF_ERROR(SetOutputVariables(options, result.folder, run, setup.environment));
  ASSIGN_OR_RETURN(const std::string library, FindInjectedLibrary(options.library));
  const absl::StatusOr<std::string> program = FindProgram(options.command.front());
  if (absl::IsNotFound(program.status()) && options.record == "true") {
    return CannotStart(NotFound(MessageOf(program.status()), "; if this is the file of --record, write --record=FILE"));
  }
  if (!program.ok()) return CannotStart(program.status());

  result.why_not_recorded = WhyNotInjected(*program, library);
  const bool is_recorded = result.why_not_recorded.empty();
  if (is_recorded) {
    // A service must start also on a full disk.
    const std::string problem = OffValue().empty() ? ProblemOf(result.folder) : "";
    if (!problem.empty()) {
      PrintError("run",
                 Cat(result.folder, ": no profile can be written there: ", problem,
                     ". The program runs without one: `hbmprof dump PROCESS` saves one elsewhere while it runs; ",
                     "--output DIR names another folder"));
    }
    setup.environment["LD_PRELOAD"] = Preloaded(library);
    setup.environment[kOpenclLayers] = PreloadWith(library, kOpenclLayers);
    setup.environment[internal::kControlDirectoryVariable] = ControlDirectory();
    setup.environment[kCaptureVariable] = options.capture_range;
    if (!options.nvtx.empty() || options.captures_nvtx()) AddNvtx(options, library, setup);
  } else {
    setup.environment.clear();
    result.folder.clear();
    PrintError("", Cat(options.command.front(), " runs without hbmprof: ", result.why_not_recorded));
  }

  const std::string variable = Cat(kOutputVariable, "=", setup.environment[kOutputVariable]);
  ProfilesAtSignal at_signal;
  const bool writes_at_end = is_recorded && options.capture_range.empty();
  SignalForwarding forwarding([&] {
    if (writes_at_end) TakeProfiles(variable, at_signal);
  });
  setup.prepare = [&] { forwarding.Restore(); };
  timespec start = {};
  clock_gettime(CLOCK_REALTIME_COARSE, &start);
  const absl::StatusOr<int> process = StartProcess(*program, options.command, setup);
  if (!process.ok()) return CannotStart(process.status());
  forwarding.Start(*process);
  WaitUntilEnded(*process);
  forwarding.Stop();
  result.end = WaitForProcess(*process);
  const ProcessEnd& end = result.end;

  if (end.signal != 0) PrintError("", Cat("signal ", end.signal, " ended the program"));
  if (is_recorded) {
    const std::vector<int> still_running = StillRunning(variable);
    WriteTaken(at_signal, result.folder, run, still_running);
    ReadResult(options, run, start, *process, still_running, result);
    if (!options.json) PrintResult(options, run, result);
  }
  if (options.json) std::fputs((Compact(ResultJson(result)) + "\n").c_str(), stderr);
  if (end.signal == 0) return end.code;
  EndBySignal(end.signal);
  return 128 + end.signal;
}

}  // namespace

Command AddRunCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("run", "Run a program and record all its device memory");
  auto options = std::make_shared<RunOptions>();
  AddOutputOptions(*arguments, *options);
  arguments
      ->add_flag("--nvtx{innermost}", options->nvtx,
                 "Label allocations with their thread's NVTX range: innermost, outermost or path")
      ->option_text("[RANGE]")
      ->check(CLI::IsMember({"innermost", "outermost", "path"}));
  arguments
      ->add_option("--capture-range", options->capture_range,
                   "Write profiles and recordings of ranges only: cudaProfilerApi or nvtx:NAME")
      ->type_name("RANGE")
      ->check(&CheckCaptureRange)
      ->excludes(arguments->get_option("--interval"))
      ->excludes(arguments->get_option("--record"));
  arguments->add_flag("--json", options->json, "Print the result as JSON, as the last line of standard error");
  arguments->add_option("PROGRAM", options->command, "The program and its arguments, after --")->required();
  arguments->footer(
      "hbmprof preloads a library that wraps the calls of the CUDA driver, in the program and in every process that\n"
      "it starts. hbmprof ends like the program: with its exit code, or by the same signal.\n"
      "Example: hbmprof run --interval 60 -- ./server config.json");
  return {arguments, [options] { return RunRun(*options); }};
}

}  // namespace hbmprof::tool
