#include "src/tool/attach/attach.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "src/protocol/attach.h"
#include "src/protocol/driver_slot.h"
#include "src/tool/util/files.h"

namespace hbmprof::tool {
namespace {

constexpr char kDriver[] = "libcuda.so";
constexpr char kLibrary[] = "libhbmprof_gpu.so";
// Longer than a thread that another, killed command has borrowed needs to go on.
constexpr double kSecondsForSafeThread = 10;

const MappedFile* Driver(const Target& target) { return target.Find({kDriver}); }

bool HasSlot(const Target& target, uint64_t entry) {
  unsigned char code[internal::kDriverEntryBytes];
  return target.Read(entry, code, sizeof(code)) && internal::DriverSlotOf(code, entry) != 0;
}

// The number of the seccomp filters of a process or thread, by its file `status`.
int SeccompFilters(const std::string& status) {
  const std::string mode = StatusIn(status, "Seccomp");
  if (mode.empty() || mode == "0") return 0;
  if (mode == "1") return INT_MAX;                                 // only read, write and exit are allowed
  const std::string number = StatusIn(status, "Seccomp_filters");  // since Linux 5.9
  return number.empty() ? 1 : std::atoi(number.c_str());
}

// Calls that can wait for long, best first: those that the kernel continues unseen, then those that are begun again.
constexpr long kWaits[] = {
#if defined(__x86_64__)
    SYS_poll,          SYS_select,          SYS_pause,
#endif
    SYS_ppoll,         SYS_pselect6,        SYS_futex,    SYS_accept,  SYS_accept4,
    SYS_nanosleep,     SYS_clock_nanosleep, SYS_wait4,    SYS_waitid,  SYS_read,
    SYS_rt_sigsuspend, SYS_restart_syscall, SYS_recvfrom, SYS_recvmsg,
#if defined(__x86_64__)
    SYS_epoll_wait,
#endif
    SYS_epoll_pwait,   SYS_rt_sigtimedwait};

// The functions of the C library that wait and hold none of its locks while they wait. Not here: those in which a
// program can wait while it holds one, such as fgets or getaddrinfo.
constexpr std::string_view kWaitFunctions =
    " accept accept4 clock_nanosleep epoll_pwait epoll_wait nanosleep pause poll ppoll ppoll64 pselect"
    " pthread_barrier_wait pthread_clockjoin_ex pthread_clockjoin_np pthread_cond_clockwait pthread_cond_timedwait"
    " pthread_cond_wait pthread_join pthread_timedjoin_np read recv recvfrom recvmsg select sem_clockwait"
    " sem_timedwait sem_wait sigsuspend sigtimedwait sigwait sigwaitinfo sleep usleep wait4 waitid waitpid ";

bool IsWait(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('_'), name.size()));
  return kWaitFunctions.find(Cat(" ", name, " ")) != std::string_view::npos;
}

struct Candidate {
  pid_t tid;
  const long* call;  // in kWaits
  std::string wait;  // the system call with its arguments and the position in the code, as /proc shows them
};

// Returns the threads that wait in the C library now, best first. Stops none.
std::vector<Candidate> WaitingThreads(const Target& target) {
  std::vector<Candidate> found;
  for (const pid_t tid : target.Threads()) {
    const std::string text = internal::ReadProcFile(target.ProcPath(Cat("task/", tid, "/syscall")).c_str());
    long number = 0;
    unsigned long long pc = 0;
    if (std::sscanf(text.c_str(), "%ld %*x %*x %*x %*x %*x %*x %*x %llx", &number, &pc) != 2) continue;
    const MappedFile* const code = target.FileAt(pc);
    const long* const call = std::find(std::begin(kWaits), std::end(kWaits), number);
    if (call != std::end(kWaits) && code != nullptr && IsLibc(code->name)) found.push_back({tid, call, text});
  }
  absl::c_stable_sort(found, [](const Candidate& a, const Candidate& b) { return a.call < b.call; });
  return found;
}

struct Frame {
  Dwarf_Addr pc;
  bool is_signal;
  bool operator==(const Frame& other) const { return pc == other.pc && is_signal == other.is_signal; }
};

// Returns the frames of a thread that is stopped, innermost first; none if its stack cannot be read to its end.
std::vector<Frame> FramesOf(const Target& target, pid_t tid) {
  const auto add = [](Dwfl_Frame* state, void* argument) -> int {
    auto* const frames = static_cast<std::vector<Frame>*>(argument);
    Frame frame;
    constexpr size_t kMostFrames = 512;
    if (!dwfl_frame_pc(state, &frame.pc, &frame.is_signal) || frames->size() == kMostFrames) return DWARF_CB_ABORT;
    frames->push_back(frame);
    return DWARF_CB_OK;
  };
  std::vector<Frame> frames;
  if (dwfl_getthread_frames(target.dwfl(), tid, add, &frames) != 0) frames.clear();
  return frames;
}

// Returns why a thread with these frames may not load a library; "" if it may.
std::string WhyNotSafe(const Target& target, const std::vector<Frame>& frames) {
  if (frames.empty()) return "has a call stack that cannot be read to its end";
  struct Function {
    const MappedFile* file;
    std::string file_name;
    std::string name;
    bool is_libc;
  };
  std::vector<Function> functions;
  for (const Frame& frame : frames) {
    const Dwarf_Addr pc = frame.pc - (frame.is_signal ? 0 : 1);
    const MappedFile* const file = target.FileAt(pc);
    Dwfl_Module* const module = dwfl_addrmodule(target.dwfl(), pc);
    const char* const name = module != nullptr ? dwfl_module_addrname(module, pc) : nullptr;
    functions.push_back({file, file != nullptr ? file->name : "", name != nullptr ? name : "", false});
    functions.back().is_libc = IsLibc(functions.back().file_name);
  }
  size_t waits = 0;  // the functions of the wait itself
  while (waits < functions.size() && functions[waits].is_libc) ++waits;
  if (waits == 0) return "does not wait in the C library";
  if (!IsWait(functions[waits - 1].name)) return Cat("is in ", functions[waits - 1].name, " of the C library");
  size_t end = functions.size();  // of the functions that the thread's first function has called
  while (end > waits && (functions[end - 1].is_libc || functions[end - 1].name == "_start")) --end;
  for (const Function& function : functions) {
    if (IsLinker(function.file_name)) return "is in the dynamic linker";
    if (function.name == "exit" || function.name == "__run_exit_handlers" || function.name == "__cxa_finalize") {
      return "ends the process";
    }
  }
  for (size_t i = waits; i < end; ++i) {
    const Function& function = functions[i];
    if (function.is_libc) return Cat("is in ", function.name, " of the C library");
    const bool is_known = function.file == functions[i - 1].file || function.file == &target.Program();
    if (function.file != nullptr && !is_known && target.Symbol(*function.file, "malloc") != 0) {
      return Cat("is in ", function.file_name, ", which has an allocator");
    }
  }
  return "";
}

}  // namespace

bool HasInjectedLibrary(const Target& target) { return target.Find({kLibrary, Cat("memfd:", kLibrary)}) != nullptr; }

std::string DriverVersion(const Target& target) {
  const MappedFile* const driver = Driver(target);
  const std::string version =
      driver == nullptr ? "" : driver->name.substr(std::min(sizeof(kDriver), driver->name.size()));
  return version.find('.') == std::string::npos ? "" : version;
}

absl::Status CheckCanAttach(const Target& target) {
  const std::string process = Cat("process ", target.pid());
  const auto refuse = [&](auto... parts) { return FailedPrecondition(process, parts...); };
  // Another command of hbmprof traces it for some milliseconds.
  for (int i = 0; i < 20 && target.Status("TracerPid") != "0"; ++i) usleep(10'000);
  if (const std::string tracer = target.Status("TracerPid"); tracer != "0") {
    return refuse(" is traced by process ", tracer, " (a debugger or strace); end that first");
  }
  if (const std::string state = target.Status("State"); !state.empty() && (state[0] == 'T' || state[0] == 't')) {
    return refuse(" is stopped; let it go on (kill -CONT ", target.pid(), ") and try again");
  }
  if (const absl::Status loader = FindLoader(target).status(); !loader.ok()) {
    return refuse(": ", std::string(loader.message()));
  }
  const MappedFile* const driver = Driver(target);
  if (driver == nullptr) {
    return refuse(" has not loaded the CUDA driver (", kDriver,
                  ".1). Attach after its first use of CUDA, or start it with `hbmprof run`");
  }
  for (const char* const name : {"cuMemAlloc_v2", "cuMemFree_v2"}) {
    const uint64_t entry = target.Symbol(*driver, name);
    if (entry != 0 && HasSlot(target, entry)) continue;
    return refuse(": its CUDA driver, ", driver->path, ", ", entry == 0 ? "lacks " : "has an unknown form of ", name,
                  ". hbmprof can attach with drivers from " HBMPROF_KNOWN_DRIVERS
                  "; start the program with `hbmprof run`");
  }
  return absl::OkStatus();
}

absl::Status CheckSystemCalls(const Target& target) {
  // The first process of a container has the filter of the container.
  const int usual = target.inner_pid() == 1 ? 1 : SeccompFilters(target.OutsidePath("/proc/1/status"));
  for (const pid_t thread : target.Threads()) {
    if (SeccompFilters(Cat("/proc/", thread, "/status")) <= usual) continue;
    return FailedPrecondition(
        "process ", target.pid(),
        " has a seccomp filter of its own, which can end it at a system call that hbmprof makes in it (socket, openat, "
        "clone, pselect6, ...). Start it with `hbmprof run`; or, if the filter allows these calls or gives errors, "
        "attach with --allow-seccomp");
  }
  return absl::OkStatus();
}

absl::StatusOr<StoppedThread> StopSafeThread(const Target& target, double seconds) {
  if (const int error = dwfl_linux_proc_attach(target.dwfl(), target.pid(), true); error != 0) {
    return Unavailable("its stacks cannot be read: ", error > 0 ? strerror(error) : dwfl_errmsg(-1));
  }
  std::map<pid_t, std::string> rejected;  // the wait in which the thread was not safe
  std::map<std::string, int> reasons;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    RETURN_IF_ERROR(target.CheckIsThere());
    for (const Candidate& candidate : WaitingThreads(target)) {
      if (rejected[candidate.tid] == candidate.wait) continue;
      std::string reason;
      std::vector<Frame> frames;
      {
        absl::StatusOr<StoppedThread> stopped = StoppedThread::Stop(candidate.tid);
        if (absl::IsAborted(stopped.status())) continue;
        if (!stopped.ok()) return stopped.status();
        if (!IsWaiting(target, stopped->registers())) continue;
        if (!IsThreadOfLibc(target, stopped->tid(), stopped->registers())) reason = "is no thread of the C library";
        if (reason.empty()) frames = FramesOf(target, candidate.tid);
      }
      if (reason.empty()) reason = WhyNotSafe(target, frames);
      if (!reason.empty()) {
        rejected[candidate.tid] = candidate.wait;
        ++reasons[reason];
        continue;
      }
      absl::StatusOr<StoppedThread> stopped = StoppedThread::Stop(candidate.tid);
      if (!stopped.ok() && !absl::IsAborted(stopped.status())) return stopped.status();
      if (stopped.ok() && IsWaiting(target, stopped->registers()) && FramesOf(target, candidate.tid) == frames) {
        return stopped;
      }
    }
    usleep(5'000);
  } while (std::chrono::steady_clock::now() < end);
  const auto most = absl::c_max_element(reasons, [](const auto& a, const auto& b) { return a.second < b.second; });
  return Unavailable("no thread of the process waited where it can load a library, within ", static_cast<int>(seconds),
                     " s", reasons.empty() ? "" : Cat("; a thread that waited ", most->first),
                     "; try again when it is less busy");
}

absl::StatusOr<int> LoadLibrary(const Target& target, const std::string& library, const std::string& options) {
  RETURN_IF_ERROR(target.CheckIsThere());
  ASSIGN_OR_RETURN(const LoaderFunctions loader, FindLoader(target));
  Loading loading;
  loading.options = options;
  if (HasInjectedLibrary(target)) {
    loading.path = kLibrary;
    loading.is_loaded = true;
  } else if (target.SharesFiles()) {
    loading.path = library;
  } else {
    ASSIGN_OR_RETURN(loading.contents, ReadFile(library));
    if (ReadFile(target.OutsidePath(library)).value_or("") == loading.contents) loading.path = library;
  }
  ASSIGN_OR_RETURN(StoppedThread thread, StopSafeThread(target, kSecondsForSafeThread));
  return LoadInThread(target, std::move(thread), loader, loading);
}

}  // namespace hbmprof::tool
