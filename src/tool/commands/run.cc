// `hbmprof run`: runs a program with the injected library and prints a summary of its profiles at the end.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <re2/re2.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "src/base/atomic_file.h"
#include "src/base/descriptor.h"
#include "src/base/try_run.h"
#include "src/protocol/control.h"
#include "src/tool/commands/command.h"
#include "src/tool/commands/injection.h"
#include "src/tool/commands/output_options.h"
#include "src/tool/profile/profile.h"
#include "src/tool/source/control_client.h"
#include "src/tool/source/profile_source.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;

constexpr char kProfilerApi[] = "cudaProfilerApi";
constexpr char kNvtxRange[] = "nvtx:";

struct RunOptions : OutputOptions {
  std::string nvtx;           // "innermost", "outermost" or "path"; empty: no ranges
  std::string capture_range;  // "cudaProfilerApi" or "nvtx:NAME"; empty: the whole run is recorded

  bool captures_nvtx() const { return capture_range.rfind(kNvtxRange, 0) == 0; }
  std::vector<std::string> command;
};

constexpr char kNvtxVariable[] = "NVTX_INJECTION64_PATH";

// The folder for the profiles. Creates it if it does not exist. As long as this object exists, no other run removes the
// folder.
class OutputFolder {
 public:
  bool Open(const std::string& path) {
    std::error_code error;
    for (int attempt = 0; attempt < 100; ++attempt) {
      for (fs::path missing = fs::absolute(path, error).lexically_normal();
           !missing.empty() && !fs::exists(missing, error); missing = missing.parent_path()) {
        if (missing.has_filename()) created_.push_back(missing);
      }
      fs::create_directories(path, error);
      path_ = fs::canonical(path, error);
      if (error || !fs::is_directory(path_, error) || access(path_.c_str(), W_OK) != 0) return false;
      lock_.Reset(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (lock_.get() < 0) return true;  // not readable: usable, but never removed
      flock(lock_.get(), LOCK_SH);
      // Another run can have removed the folder after it was created and before it was locked.
      struct stat locked = {};
      struct stat named = {};
      fstat(lock_.get(), &locked);
      if (stat(path_.c_str(), &named) == 0 && named.st_ino == locked.st_ino && named.st_dev == locked.st_dev)
        return true;
      lock_.Reset(-1);
      created_.clear();
    }
    return false;
  }

  const std::string& path() const { return path_; }

  // Returns the names RUN.PROCESS.NUMBER.pb.gz of the profiles of `run`, by process and number. With `last_only`,
  // returns only the last profile of each process. Otherwise each file is from a different process, also if the ids are
  // equal: an id can be used in two containers, or again at a later time.
  std::map<std::pair<int64_t, int64_t>, std::string> Profiles(const std::string& run, bool last_only) const {
    const RE2 pattern(Cat(RE2::QuoteMeta(run), R"(\.(\d+)\.(\d+))", RE2::QuoteMeta(kProfileSuffix)));
    std::map<std::pair<int64_t, int64_t>, std::string> names;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
      const std::string name = entry.path().filename();
      int64_t process = 0;
      int64_t number = 0;
      if (RE2::FullMatch(name, pattern, &process, &number)) names[{process, number}] = name;
    }
    for (auto name = names.begin(); last_only && name != names.end();) {
      const auto next = std::next(name);
      const bool is_last = next == names.end() || next->first.first != name->first.first;
      name = is_last ? next : names.erase(name);
    }
    return names;
  }

  // Removes the empty folders that Open() created, unless another run uses them.
  void RemoveIfEmpty() {
    if (created_.empty() || lock_.get() < 0 || flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) return;
    for (const fs::path& folder : created_) {
      if (rmdir(folder.c_str()) != 0) return;
    }
  }

 private:
  std::string path_;
  std::vector<fs::path> created_;  // innermost first
  internal::FileDescriptor lock_;
};

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
  std::vector<LiveProcess> recorded;
  if (processes.empty()) return recorded;
  absl::StatusOr<std::vector<LiveProcess>> all = ListProcesses(ControlDirectory(), nullptr, kMillis);
  if (!all.ok()) return recorded;
  for (LiveProcess& process : *all) {
    if (absl::c_linear_search(processes, process.pid)) recorded.push_back(std::move(process));
  }
  return recorded;
}

// The profiles that the processes of a run had when a signal came that can end them. The program may kill its processes
// before they write their own.
class ProfilesAtSignal {
 public:
  // `variable`: "NAME=VALUE" in the environment of the processes.
  explicit ProfilesAtSignal(std::string variable) : variable_(std::move(variable)) {}

  // Requests the profiles. Takes about six seconds at most; whoever stops a container waits ten. The first profile of a
  // process reads the symbols of its libraries, which takes half a second of processor time for PyTorch's.
  void Take() {
    const std::vector<LiveProcess> processes = RecordedOf(ProcessesWith(variable_));
    std::vector<std::string> sockets;
    for (const LiveProcess& process : processes) sockets.push_back(process.socket);
    QueryLimits limits;
    limits.millis = limits.total_millis = 5'000;
    std::vector<absl::StatusOr<std::string>> answers = QueryProcesses(sockets, "profile", limits);
    for (size_t i = 0; i < processes.size(); ++i) {
      Taken& taken = taken_[processes[i].pid];
      taken.name = processes[i].name;
      if (answers[i].ok()) taken.profile = *std::move(answers[i]);
    }
  }

  struct Taken {
    std::string name;     // of the process
    std::string profile;  // empty: it did not answer
  };
  const std::map<int64_t, Taken>& taken() const { return taken_; }

 private:
  const std::string variable_;
  std::map<int64_t, Taken> taken_;
};

volatile sig_atomic_t forward_to = 0;
volatile sig_atomic_t is_session_leader = 0;

// Signal handler: passes the signal on to the program. Does not pass on signals of the kernel, such as Ctrl-C in the
// terminal, because the program receives them too, nor signals that the program or this process sent. There is one
// exception: if the terminal hangs up, only the session leader receives the SIGHUP. So if this process is the leader,
// it passes this signal on.
void Forward(int number, siginfo_t* info, void*) {
  if (forward_to == 0) return;
  const bool is_hangup_of_leader = number == SIGHUP && info->si_code == SI_KERNEL && is_session_leader != 0;
  if (!is_hangup_of_leader && (info->si_code > 0 || info->si_pid == forward_to || info->si_pid == getpid())) return;
  const int error = errno;
  if (info->si_code == SI_QUEUE) {
    sigqueue(forward_to, number, info->si_value);
  } else {
    kill(forward_to, number);
  }
  errno = error;
}

// Passes signals from other processes on to the program, except signals that stop, cannot be caught, or come from a
// fault. Before it passes on one that can end the program, it calls `before_end` in a thread of its own.
class SignalForwarding {
 public:
  explicit SignalForwarding(std::function<void()> before_end) : before_end_(std::move(before_end)) {
    sigemptyset(&ends_);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&ends_, number);
    struct sigaction forward = {};
    forward.sa_sigaction = &Forward;
    forward.sa_flags = SA_SIGINFO | SA_RESTART;
    sigfillset(&forward.sa_mask);
    sigemptyset(&forwarded_);
    for (int number = 1; number <= SIGRTMAX; ++number) {
      if (number < SIGRTMIN && kKept.count(number) != 0) continue;
      if (number > SIGSYS && number < SIGRTMIN) continue;
      sigaddset(&forwarded_, number);
    }
    // Signals are blocked until the program has started.
    sigprocmask(SIG_BLOCK, &forwarded_, &inherited_mask_);
    for (int number = 1; number <= SIGRTMAX; ++number) {
      if (sigismember(&forwarded_, number) == 1) sigaction(number, &forward, &inherited_[number]);
    }
  }
  ~SignalForwarding() { Restore(); }
  SignalForwarding(const SignalForwarding&) = delete;
  SignalForwarding& operator=(const SignalForwarding&) = delete;

  void Start(int process) {
    is_session_leader = getsid(0) == getpid() ? 1 : 0;
    forward_to = process;
    signals_.Reset(signalfd(-1, &ends_, SFD_CLOEXEC));
    stop_.Reset(eventfd(0, EFD_CLOEXEC));
    sigset_t others = forwarded_;
    if (signals_.get() >= 0 && stop_.get() >= 0 && internal::TryRun([&] { StartThread(); })) {
      for (int number = 1; number <= SIGRTMAX; ++number) {
        if (sigismember(&ends_, number) == 1) sigdelset(&others, number);
      }
    }
    sigprocmask(SIG_UNBLOCK, &others, nullptr);
  }

  // Stops passing on signals, because another process can get the program's id after the wait. From then on signals
  // from other processes have no effect, as if the program received them after its end. Ctrl-C ends this process.
  void Stop() {
    sigprocmask(SIG_BLOCK, &forwarded_, nullptr);
    forward_to = 0;
    if (thread_.joinable()) {
      eventfd_write(stop_.get(), 1);
      thread_.join();
    }
    for (const int number : {SIGINT, SIGQUIT}) sigaction(number, &inherited_[number], nullptr);
    sigprocmask(SIG_UNBLOCK, &forwarded_, nullptr);
  }

  void Restore() const {
    for (int number = 1; number <= SIGRTMAX; ++number) {
      if (sigismember(&forwarded_, number) == 1) sigaction(number, &inherited_[number], nullptr);
    }
    sigprocmask(SIG_SETMASK, &inherited_mask_, nullptr);
  }

 private:
  inline static const std::set<int> kKept = {SIGKILL, SIGSTOP, SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU,
                                             SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGTRAP, SIGSYS};

  void StartThread() {
    thread_ = std::thread([this] { PassOnEnds(); });
  }
  void PassOnEnds() {
    while (true) {
      pollfd polled[] = {{stop_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
      poll(polled, 2, -1);
      if (polled[0].revents != 0) return;
      signalfd_siginfo read_info = {};
      if (read(signals_.get(), &read_info, sizeof(read_info)) != sizeof(read_info)) continue;
      before_end_();
      siginfo_t info = {};
      info.si_code = read_info.ssi_code;
      info.si_pid = static_cast<pid_t>(read_info.ssi_pid);
      info.si_value.sival_ptr = reinterpret_cast<void*>(read_info.ssi_ptr);
      Forward(static_cast<int>(read_info.ssi_signo), &info, nullptr);
    }
  }

  const std::function<void()> before_end_;
  internal::FileDescriptor signals_;
  internal::FileDescriptor stop_;
  std::thread thread_;
  sigset_t ends_;
  sigset_t forwarded_;
  sigset_t inherited_mask_;
  struct sigaction inherited_[_NSIG + 1] = {};
};

// Returns whether an interactive shell waits for this process and shows a prompt when it stops.
bool IsTerminalsForegroundJob() {
  const internal::FileDescriptor terminal(open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC));
  return terminal.get() >= 0 && tcgetpgrp(terminal.get()) == getpgrp();
}

// Waits for the end of the program without reaping it. Ctrl-Z stops this process and the program, and the shell resumes
// both. If the program stops by itself, this process stops too, because the shell only watches this process.
void WaitUntilEnded(int process) {
  siginfo_t info = {};
  const auto wait = [&](int options) {
    info.si_pid = 0;
    int result = 0;
    while ((result = waitid(P_PID, static_cast<id_t>(process), &info, options)) != 0 && errno == EINTR) continue;
    return result == 0 && info.si_pid == process;
  };
  const auto is_stopped = [&] { return wait(WSTOPPED | WNOHANG | WNOWAIT); };
  while (wait(WEXITED | WSTOPPED | WNOWAIT) && info.si_code == CLD_STOPPED) {
    // A signal that is sent to both processes can arrive at one of them first.
    usleep(20'000);
    if (!is_stopped()) continue;
    if (!IsTerminalsForegroundJob()) {
      wait(WSTOPPED | WNOHANG);  // consumes the report of this stop
      continue;
    }
    raise(SIGSTOP);
    usleep(20'000);
    if (is_stopped()) kill(process, SIGCONT);
  }
}

// Ends this process in the same way as the program, without a second core dump. Returns only if this process ignores
// the signal, as the first process of a container does.
void EndBySignal(int number) {
  const rlimit no_core = {};
  setrlimit(RLIMIT_CORE, &no_core);
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

void Summarize(int64_t process, const std::string& path) {
  PrintErrorText(Cat("hbmprof: process ", process, ": ", Visible(path), "\n"));
  const absl::StatusOr<RawProfile> profile = ReadProfile(path);
  if (!profile.ok()) {
    PrintErrorText(Cat("  ", Visible(MessageOf(profile.status())), "\n"));
    return;
  }
  Table table("llrrl");
  ProfileInfo info;
  for (const int64_t index : profile->message().comment()) info.Add(profile->text(index));
  for (const Comment& tracker : info.trackers) {
    const int64_t dropped = tracker.Number("dropped_records").value_or(0);
    if (dropped != 0) PrintErrorText(Cat("  ", dropped, " allocations were not recorded: a limit was reached\n"));
  }
  for (const std::string& warning : info.warnings) PrintErrorText(Cat("  ", Visible(warning), "\n"));
  for (const ProfileInfo::Device& device : info.devices) {
    const auto bytes = [&device](const char* key) {
      const std::optional<int64_t> value = device.Number(key);
      return value.has_value() ? Bytes(*value) : "n/a";
    };
    table.Add({Cat("  ", device.name), device.is_device_memory() ? "" : device.space, Cat("peak ", bytes("peak")),
               Cat("in use ", bytes("in_use")), device.is_device_memory() ? Unaccounted(device) : ""});
  }
  PrintErrorText(info.devices.empty() ? "  no allocation was seen\n" : table.Text());
}

// Checks the value of --capture-range. Returns what is wrong with it; "" if nothing is.
std::string CheckCaptureRange(const std::string& value) {
  constexpr size_t kMostBytes = 128;  // of a name, as of each NVTX label
  const size_t start = sizeof(kNvtxRange) - 1;
  const bool is_nvtx = value.rfind(kNvtxRange, 0) == 0 && value.size() > start && value.size() <= start + kMostBytes;
  if (value == kProfilerApi || is_nvtx) return "";
  return Cat("'", value, "' is neither ", kProfilerApi, " nor ", kNvtxRange, "NAME with a name of at most ", kMostBytes,
             " bytes");
}

// Writes the profiles that were taken at a signal, of the processes that have ended without one.
void WriteTaken(const ProfilesAtSignal& at_signal, const OutputFolder& folder, const std::string& run,
                const std::vector<int>& still_running) {
  const auto written = folder.Profiles(run, /*last_only=*/false);
  for (const auto& [process, taken] : at_signal.taken()) {
    const auto first = written.lower_bound({process, 0});
    if (first != written.end() && first->first.first == process) continue;
    if (absl::c_linear_search(still_running, process)) continue;
    const absl::StatusOr<RawProfile> profile = ParseProfile(taken.profile, taken.name);
    if (profile.ok() && profile->message().sample().empty()) continue;  // at a signal it writes no such profile
    const std::string killed =
        Cat("hbmprof: process ", process, " (", Visible(taken.name), ") was killed before it wrote a profile");
    if (!profile.ok()) {
      PrintErrorText(Cat(killed, "\n"));
      continue;
    }
    internal::FileRules rules;
    rules.must_be_new = true;
    const absl::Status status = internal::WriteFileAtomically(
        Cat(folder.path(), "/", run, ".", process, ".0", kProfileSuffix), taken.profile, rules);
    PrintErrorText(status.ok() ? Cat(killed, "; its profile is of the moment of the signal\n")
                               : Cat(killed, ": ", Visible(MessageOf(status)), "\n"));
  }
}

// `still_running`: the processes of the run that have not ended.
void SummarizeRun(const RunOptions& options, const OutputFolder& folder, const std::string& run,
                  const std::vector<int>& still_running) {
  constexpr size_t kMostRanges = 5;
  const bool is_captured = !options.capture_range.empty();
  const auto written = folder.Profiles(run, /*last_only=*/!options.interval.empty());
  // Of many ranges, the first ones and the last one.
  const size_t left_out = is_captured && written.size() > kMostRanges ? written.size() - kMostRanges : 0;
  size_t number = 0;
  for (const auto& [key, name] : written) {
    const size_t i = number++;
    if (left_out > 0 && i == kMostRanges - 1) PrintErrorText(Cat("hbmprof: ... and ", left_out, " more ranges\n"));
    if (left_out > 0 && i >= kMostRanges - 1 && i + 1 < written.size()) continue;
    Summarize(key.first, Cat(folder.path(), "/", name));
  }
  if (left_out > 0) {
    PrintErrorText(Cat("hbmprof: ", written.size(), " profiles of ranges are in ", Visible(folder.path()), "\n"));
  }
  // A helper process, such as Python's resource tracker, writes no profile.
  std::vector<int> awaited;
  for (const LiveProcess& process : RecordedOf(still_running)) awaited.push_back(static_cast<int>(process.pid));
  if (awaited.empty() && written.empty()) awaited = still_running;
  for (const int process : awaited) {
    PrintErrorText(Cat("hbmprof: process ", process, " still runs; it writes ", Visible(folder.path()), "/", run, ".",
                       process, ".*", kProfileSuffix, is_captured ? " when a range ends\n" : " when it ends\n"));
  }
  if (!written.empty()) {
    const std::string& last = written.rbegin()->second;
    const bool is_one_process = written.begin()->first.first == written.rbegin()->first.first;
    PrintErrorText(Cat("hbmprof: next: hbmprof explain ", Visible(folder.path()), "/",
                       is_one_process ? last : Cat(run, ".*", kProfileSuffix), "\n"));
  }
  if (!written.empty() || !awaited.empty()) return;
  if (is_captured) {
    const std::string what = options.captures_nvtx()
                                 ? Cat("began no NVTX range with the name ", options.capture_range.substr(5))
                                 : "made no successful call of cudaProfilerStart";
    PrintErrorText(Cat("hbmprof: no profile: the program ", Visible(what), ", was killed, or cannot be injected\n"));
  } else {
    PrintErrorText(
        Cat("hbmprof: no profile: the program allocated no device memory, was killed, or cannot be injected; ",
            "`hbmprof doctor -- ", Visible(options.command.front()), "` reports more\n"));
  }
}

// Makes programs that use NVTX load the library as their NVTX tool, if the environment does not name another tool.
void AddNvtx(const RunOptions& options, const std::string& library, ChildSetup& setup) {
  const char* const other = std::getenv(kNvtxVariable);
  if (other != nullptr && *other != '\0') {
    PrintErrorText(Cat("hbmprof: no NVTX ranges: ", kNvtxVariable, " already names another tool, ", Visible(other),
                       "; unset it to use ", options.captures_nvtx() ? "--capture-range=nvtx:NAME" : "--nvtx", "\n"));
    return;
  }
  setup.environment[kNvtxVariable] = library;
  setup.environment["HBMPROF_NVTX"] = options.nvtx.empty() ? "none" : options.nvtx;
}

absl::StatusOr<int> RunRun(const RunOptions& options) {
  RETURN_IF_ERROR(CheckOutputOptions(options));
  ASSIGN_OR_RETURN(const std::string library, FindInjectedLibrary(options.library));
  const absl::StatusOr<std::string> program = FindProgram(options.command.front());
  if (absl::IsNotFound(program.status()) && options.record == "true") {
    return CannotStart(NotFound(MessageOf(program.status()), "; if this is the file of --record, write --record=FILE"));
  }
  if (!program.ok()) return CannotStart(program.status());

  OutputFolder folder;
  ChildSetup setup;
  const std::string reason = WhyNotInjected(*program, library);
  const std::string run = NewRunName();
  if (reason.empty()) {
    if (!folder.Open(options.output)) return PermissionDenied("--output '", options.output, "': not a writable folder");
    setup.environment["LD_PRELOAD"] = PreloadWith(library);
    setup.environment[internal::kControlDirectoryVariable] = ControlDirectory();
    SetOutputVariables(options, folder.path(), run, setup.environment);
    if (!options.capture_range.empty()) setup.environment["HBMPROF_CAPTURE_RANGE"] = options.capture_range;
    if (!options.nvtx.empty() || options.captures_nvtx()) AddNvtx(options, library, setup);
  } else {
    PrintErrorText(
        Cat("hbmprof: ", Visible(options.command.front()), " runs without hbmprof: ", Visible(reason), "\n"));
  }

  ProfilesAtSignal at_signal(Cat(kOutputVariable, "=", setup.environment[kOutputVariable]));
  const bool writes_at_end = reason.empty() && options.capture_range.empty();
  SignalForwarding forwarding([&] {
    if (writes_at_end) at_signal.Take();
  });
  setup.prepare = [&] { forwarding.Restore(); };
  const absl::StatusOr<int> process = StartProcess(*program, options.command, setup);
  if (!process.ok()) {
    folder.RemoveIfEmpty();
    return CannotStart(process.status());
  }
  forwarding.Start(*process);
  WaitUntilEnded(*process);
  forwarding.Stop();
  const ProcessEnd end = WaitForProcess(*process);

  if (end.signal != 0) PrintErrorText(Cat("hbmprof: signal ", end.signal, " ended the program\n"));
  if (reason.empty()) {
    const std::vector<int> still_running = ProcessesWith(Cat(kOutputVariable, "=", setup.environment[kOutputVariable]));
    WriteTaken(at_signal, folder, run, still_running);
    SummarizeRun(options, folder, run, still_running);
    if (still_running.empty()) folder.RemoveIfEmpty();
  }
  if (end.signal == 0) return end.code;
  EndBySignal(end.signal);
  return 128 + end.signal;
}

}  // namespace

Command AddRunCommand(CLI::App& tool) {
  CLI::App* arguments = tool.add_subcommand("run", "Run a program and record all its CUDA allocations");
  auto options = std::make_shared<RunOptions>();
  AddOutputOptions(*arguments, *options);
  arguments
      ->add_flag("--nvtx{innermost}", options->nvtx,
                 "Label allocations with their thread's NVTX range: innermost, outermost or path")
      ->check(CLI::IsMember({"innermost", "outermost", "path"}));
  arguments
      ->add_option("--capture-range", options->capture_range,
                   "Write profiles and recordings of ranges only: cudaProfilerApi or nvtx:NAME")
      ->type_name("RANGE")
      ->envname("HBMPROF_CAPTURE_RANGE")
      ->check(&CheckCaptureRange)
      ->excludes(arguments->get_option("--interval"))
      ->excludes(arguments->get_option("--record"));
  arguments->add_option("PROGRAM", options->command, "The program and its arguments, after --")->required();
  arguments->footer(
      "The program is not rebuilt: hbmprof preloads a library that wraps the calls of the CUDA driver, in the\n"
      "program and in every process that it starts. hbmprof ends like the program: with its exit code, or by the\n"
      "same signal. The exit code is 127 if there is no such program, and 126 if it cannot be executed.\n"
      "Example: hbmprof run --interval 60 -- ./server config.json");
  return {arguments, [options] { return RunRun(*options); }};
}

}  // namespace hbmprof::tool
