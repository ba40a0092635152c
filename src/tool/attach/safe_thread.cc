#include "src/tool/attach/safe_thread.h"

#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/tool/util/text.h"

namespace hbmprof::tool {
namespace {

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
    std::ifstream file(target.ProcPath(Cat("task/", tid, "/syscall")));
    std::string text;
    std::getline(file, text);
    long number = 0;
    unsigned long long pc = 0;
    if (std::sscanf(text.c_str(), "%ld %*x %*x %*x %*x %*x %*x %*x %llx", &number, &pc) != 2) continue;
    const MappedFile* const code = target.FileAt(pc);
    const long* const call = std::find(std::begin(kWaits), std::end(kWaits), number);
    if (call != std::end(kWaits) && code != nullptr && IsLibc(code->name)) found.push_back({tid, call, text});
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.call < b.call; });
  return found;
}

// A thread's registers and the part of its stack that is unwound.
struct StackCopy {
  const Target* target = nullptr;
  pid_t tid = 0;
  user_regs_struct registers = {};
  std::string bytes;         // from the stack pointer on
  std::vector<size_t> read;  // where the unwinder has read a word

  bool Take(const StoppedThread& thread) {
    registers = thread.registers();
    constexpr size_t kMostBytes = 1 << 18, kPart = 4096;
    bytes.clear();
    read.clear();
    // Up to a page's end each, because the stack ends at the end of a page.
    for (size_t part = kPart - StackPointer(registers) % kPart; bytes.size() < kMostBytes; part = kPart) {
      const size_t size = bytes.size();
      bytes.resize(size + part);
      if (target->Read(StackPointer(registers) + size, &bytes[size], part)) continue;
      bytes.resize(size);
      break;
    }
    return !bytes.empty();
  }
  bool Read(Dwarf_Addr address, Dwarf_Word* word) {
    const uint64_t offset = address - StackPointer(registers);
    if (offset >= bytes.size() || bytes.size() - offset < sizeof(*word)) {
      return target->Read(address, word, sizeof(*word));
    }
    read.push_back(offset);
    std::memcpy(word, &bytes[offset], sizeof(*word));
    return true;
  }
  // Whether the thread has not moved since. Words that the unwinder did not need can differ: the kernel writes the rest
  // of a time-out there.
  bool IsSame(const StoppedThread& thread) const {
    std::string now(read.empty() ? 0 : *std::max_element(read.begin(), read.end()) + sizeof(Dwarf_Word), '\0');
    return IsSamePlace(registers, thread.registers()) &&
           target->Read(StackPointer(registers), now.data(), now.size()) &&
           std::all_of(read.begin(), read.end(),
                       [&](size_t at) { return std::memcmp(&bytes[at], &now[at], sizeof(Dwarf_Word)) == 0; });
  }
};

// Unwinds copies of stacks. The files are read through the process's own view of them.
class Unwinder {
 public:
  explicit Unwinder(const Target& target) : target_(target) {
    copy_.target = &target;
    static const Dwfl_Callbacks callbacks = {FindElf, NoDebugInfo, nullptr, nullptr};
    dwfl_ = dwfl_begin(&callbacks);
    if (dwfl_ == nullptr) return;
    for (const MappedFile& file : target.files()) {
      dwfl_report_module(dwfl_, target.OutsidePath(file.path).c_str(), file.start, file.end);
    }
    dwfl_report_end(dwfl_, nullptr, nullptr);
    static const Dwfl_Thread_Callbacks thread_callbacks = {NextThread,   GetThread, ReadMemory,
                                                           SetRegisters, nullptr,   nullptr};
    dwfl_attach_state(dwfl_, nullptr, target.pid(), &thread_callbacks, &copy_);
  }
  ~Unwinder() { dwfl_end(dwfl_); }
  Unwinder(const Unwinder&) = delete;
  Unwinder& operator=(const Unwinder&) = delete;

  StackCopy& copy() { return copy_; }
  // Returns why the thread whose stack was copied may not load a library; "" if it may.
  std::string WhyNotSafe(pid_t tid);

 private:
  struct Frame {
    Dwarf_Addr pc;
    bool is_signal;
  };
  static int FindElf(Dwfl_Module*, void**, const char* name, Dwarf_Addr, char** file_name, Elf**) {
    *file_name = strdup(name);
    return open(name, O_RDONLY | O_CLOEXEC);
  }
  static int NoDebugInfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
    return -1;
  }
  static pid_t NextThread(Dwfl*, void* argument, void** thread_argument) {
    const bool is_first = *thread_argument == nullptr;
    *thread_argument = argument;
    return is_first ? static_cast<StackCopy*>(argument)->tid : 0;
  }
  static bool GetThread(Dwfl*, pid_t, void* argument, void** thread_argument) {
    *thread_argument = argument;
    return true;
  }
  static bool ReadMemory(Dwfl*, Dwarf_Addr address, Dwarf_Word* word, void* argument) {
    return static_cast<StackCopy*>(argument)->Read(address, word);
  }
  static bool SetRegisters(Dwfl_Thread* thread, void* argument) {
    const user_regs_struct& registers = static_cast<StackCopy*>(argument)->registers;
    const std::vector<Dwarf_Word> words = DwarfRegisters(registers);
    dwfl_thread_state_register_pc(thread, ProgramCounter(registers));
    return dwfl_thread_state_registers(thread, 0, static_cast<unsigned>(words.size()), words.data());
  }
  static int AddFrame(Dwfl_Frame* state, void* argument) {
    auto* const frames = static_cast<std::vector<Frame>*>(argument);
    Frame frame;
    constexpr size_t kMostFrames = 512;
    if (!dwfl_frame_pc(state, &frame.pc, &frame.is_signal) || frames->size() == kMostFrames) return DWARF_CB_ABORT;
    frames->push_back(frame);
    return DWARF_CB_OK;
  }

  const Target& target_;
  Dwfl* dwfl_ = nullptr;
  StackCopy copy_;
};

std::string Unwinder::WhyNotSafe(pid_t tid) {
  copy_.tid = tid;
  std::vector<Frame> found;
  if (dwfl_ == nullptr || dwfl_getthread_frames(dwfl_, tid, AddFrame, &found) != 0) {
    return "has a call stack that cannot be read to its end";
  }
  struct Function {
    const MappedFile* file;
    std::string file_name;
    std::string name;
    bool is_libc;
  };
  std::vector<Function> functions;
  for (const Frame& frame : found) {
    const Dwarf_Addr pc = frame.pc - (frame.is_signal ? 0 : 1);
    const MappedFile* const file = target_.FileAt(pc);
    Dwfl_Module* const module = dwfl_addrmodule(dwfl_, pc);
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
    const bool is_main = function.file == &target_.Program();
    if (function.file != nullptr && !is_main && target_.Symbol(*function.file, "malloc") != 0) {
      return Cat("is in ", function.file_name, ", which has an allocator");
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<StoppedThread> StopSafeThread(const Target& target, double seconds) {
  Unwinder unwinder(target);
  std::map<pid_t, std::string> rejected;  // the wait in which the thread was not safe
  std::map<std::string, int> reasons;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    if (absl::Status status = target.CheckIsThere(); !status.ok()) return status;
    for (const Candidate& candidate : WaitingThreads(target)) {
      if (rejected[candidate.tid] == candidate.wait) continue;
      std::string reason;
      {
        absl::StatusOr<StoppedThread> stopped = StoppedThread::Stop(candidate.tid);
        if (absl::IsAborted(stopped.status())) continue;
        if (!stopped.ok()) return stopped.status();
        const user_regs_struct& registers = stopped->registers();
        if (!IsWaiting(target, registers)) continue;
        if (!IsThreadOfLibc(target, stopped->tid(), registers)) reason = "is no thread of the C library";
        if (!unwinder.copy().Take(*stopped)) reason = "has no stack";
      }
      if (reason.empty()) reason = unwinder.WhyNotSafe(candidate.tid);
      if (!reason.empty()) {
        rejected[candidate.tid] = candidate.wait;
        ++reasons[reason];
        continue;
      }
      absl::StatusOr<StoppedThread> stopped = StoppedThread::Stop(candidate.tid);
      if (stopped.ok() && unwinder.copy().IsSame(*stopped)) return stopped;
      if (!stopped.ok() && !absl::IsAborted(stopped.status())) return stopped.status();
    }
    usleep(5'000);
  } while (std::chrono::steady_clock::now() < end);
  const auto most = std::max_element(reasons.begin(), reasons.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return absl::UnavailableError(
      Cat("no thread of the process waited where it can load a library, within ", static_cast<int>(seconds), " s",
          reasons.empty() ? "" : Cat("; a thread that waited ", most->first), "; try again when it is less busy"));
}

}  // namespace hbmprof::tool
