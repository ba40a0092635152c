#include "src/tool/attach/borrowed_thread.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "src/tool/attach/stub.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hbmprof::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kFunction[] = "hbmprof_attach";
constexpr uint64_t kRedZone = 128;

bool CanSaveVectors() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsUsesXsave = 1u << 27;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kOsUsesXsave) != 0 &&
         __get_cpuid_count(0xd, 0, &a, &b, &c, &d) != 0 && b <= kVectorBytes;
#else
  return true;
#endif
}

void Trace(int request, pid_t tid, const void* data) {
  ptrace(static_cast<__ptrace_request>(request), tid, nullptr, const_cast<void*>(data));
}

void SetRegisters(pid_t tid, user_regs_struct registers) {
  iovec part = {&registers, sizeof(registers)};
  ptrace(PTRACE_SETREGSET, tid, reinterpret_cast<void*>(NT_PRSTATUS), &part);
}

// The signals that the thread does not get meanwhile: all but those of its own faults.
uint64_t BlockedSignals() {
  uint64_t mask = ~uint64_t{0};
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT}) mask &= ~(uint64_t{1} << (signal - 1));
  return mask;
}

// --- What differs between processors ---

// How a thread goes on that was stopped.
struct GoingOn {
  bool was_borrowed = false;
  bool was_changed = false;  // by FindInterruptedCall
  uint64_t restarting = 0;   // StubData::restarting
};

// The signals for which a handler of the program's will run as soon as the thread goes on.
uint64_t HandledSignals(pid_t tid) {
  const auto signals = [tid](const char* key) { return std::strtoull(StatusOf(tid, key).c_str(), nullptr, 16); };
  return (signals("SigPnd") | signals("ShdPnd")) & ~signals("SigBlk") & signals("SigCgt");
}

#if defined(__x86_64__)
constexpr uint64_t kNoSystemCall = ~uint64_t{0};
constexpr uint64_t kSystemCallBytes = 2;

// Results of a system call that was interrupted, of the kernel's own (include/linux/errno.h).
constexpr int64_t kRestartSystemCall = -512;
constexpr int64_t kRestartNoInterrupt = -513;
constexpr int64_t kRestartNoHandler = -514;
constexpr int64_t kRestartBlock = -516;

bool IsInterrupted(int64_t result) {
  return result == -EINTR || result == kRestartSystemCall || result == kRestartNoInterrupt ||
         result == kRestartNoHandler || result == kRestartBlock;
}

uint64_t ProgramCounter(const user_regs_struct& r) { return r.rip; }
uint64_t StackPointer(const user_regs_struct& r) { return r.rsp; }

// The kernel ends some waits (epoll_wait) with EINTR when the thread is stopped. Changes the registers of such a thread
// so that it makes the call again, if they do not have all of its arguments. `call`: the text of /proc/PID/syscall
// before the stop. Returns whether it has changed them.
bool FindInterruptedCall(const std::string&, user_regs_struct&) { return false; }

// Returns the registers with which a thread that waits makes its wait again by itself.
user_regs_struct ToWaitAgain(user_regs_struct stopped) {
  stopped.rax = static_cast<int64_t>(stopped.rax) == kRestartBlock ? uint64_t{SYS_restart_syscall} : stopped.orig_rax;
  stopped.rip -= kSystemCallBytes;
  return stopped;
}

// Returns the registers with which the thread runs the stub, whose data is at `data`.
user_regs_struct ToRunStub(user_regs_struct stopped, uint64_t entry, uint64_t data) {
  stopped.rip = entry;
  stopped.rbx = data;
  stopped.rsp = data - kStubStack;
  stopped.rbp = 0;
  stopped.orig_rax = kNoSystemCall;
  constexpr uint64_t kTrap = 0x100, kBackwards = 0x400, kAlignmentCheck = 0x40000;
  stopped.eflags &= ~(kTrap | kBackwards | kAlignmentCheck);
  return stopped;
}

// Changes the registers that a thread had when it was stopped so that it goes on with its wait, or ends it if a handler
// of the program's will run now. Returns whether they must be written. Here, the kernel makes the call again, or lets
// it return EINTR, by the registers that it has shown at the stop. It does not do so for calls that return EINTR at a
// stop.
bool PrepareToGoOn(pid_t tid, const GoingOn& how, user_regs_struct& registers) {
  const bool is_interrupted =
      static_cast<int64_t>(registers.orig_rax) >= 0 && static_cast<int64_t>(registers.rax) == -EINTR;
  if (!is_interrupted || HandledSignals(tid) != 0) return how.was_borrowed;
  registers.rax = registers.orig_rax;
  registers.orig_rax = kNoSystemCall;
  registers.rip -= kSystemCallBytes;
  return true;
}

#elif defined(__aarch64__)

// At a stop, the kernel (do_signal in arch/arm64/kernel/signal.c) shows the registers with which the thread makes its
// call again. For a call that is continued from the kernel's data (nanosleep), it puts the number of restart_syscall
// into x8 when the thread goes on. A thread that is borrowed was stopped for the second time, so x8 has this number.

constexpr uint64_t kSystemCallBytes = 4;

// Calls that a signal handler with SA_RESTART does not end.
constexpr uint64_t kRestarted[] = {SYS_futex,  SYS_accept, SYS_accept4,  SYS_wait4,
                                   SYS_waitid, SYS_read,   SYS_recvfrom, SYS_recvmsg};

uint64_t ProgramCounter(const user_regs_struct& r) { return r.pc; }
uint64_t StackPointer(const user_regs_struct& r) { return r.sp; }

bool FindInterruptedCall(const std::string& call, user_regs_struct& stopped) {
  if (static_cast<int64_t>(stopped.regs[0]) != -EINTR) return false;
  long number = -1;
  unsigned long long word[8] = {};  // the arguments, the stack pointer and the program counter
  const int count = std::sscanf(call.c_str(), "%ld %llx %llx %llx %llx %llx %llx %llx %llx", &number, &word[0],
                                &word[1], &word[2], &word[3], &word[4], &word[5], &word[6], &word[7]);
  const bool is_it = count == 9 && stopped.regs[8] == static_cast<uint64_t>(number) &&
                     std::equal(word + 1, word + 6, stopped.regs + 1) && stopped.sp == word[6] && stopped.pc == word[7];
  if (!is_it) return false;
  stopped.regs[0] = word[0];
  stopped.pc -= kSystemCallBytes;
  return true;
}

user_regs_struct ToWaitAgain(user_regs_struct stopped) { return stopped; }

user_regs_struct ToRunStub(user_regs_struct stopped, uint64_t entry, uint64_t data) {
  constexpr int kFramePointer = 29;
  constexpr uint64_t kBranchType = 0xc00, kSingleStep = 1 << 21;
  stopped.pc = entry;
  stopped.sp = data - kStubStack;
  stopped.regs[19] = data;
  stopped.regs[kFramePointer] = 0;
  stopped.pstate &= ~(kBranchType | kSingleStep);
  return stopped;
}

// If the registers are written, the kernel no longer knows that the call was interrupted. It then does not let it
// return EINTR for a handler.
bool PrepareToGoOn(pid_t tid, const GoingOn& how, user_regs_struct& registers) {
  const uint64_t signals = HandledSignals(tid);
  if (!how.was_borrowed) return how.was_changed && signals == 0;
  const uint64_t number = registers.regs[8];
  const bool is_restarted = absl::c_linear_search(kRestarted, number);
  if (signals == 0 || (is_restarted && (signals & ~how.restarting) == 0)) return true;
  registers.regs[0] = static_cast<uint64_t>(-EINTR);
  registers.pc += kSystemCallBytes;
  return true;
}

#endif

void Release(pid_t tid, user_regs_struct registers, const GoingOn& how) {
  if (PrepareToGoOn(tid, how, registers)) SetRegisters(tid, registers);
  Trace(PTRACE_DETACH, tid, nullptr);
}

}  // namespace

#if defined(__x86_64__)
bool IsThreadOfLibc(const Target& target, pid_t, const user_regs_struct& registers) {
  constexpr uint64_t kSelf = 0x10;  // where the data has its own address
  return target.Get<uint64_t>(registers.fs_base + kSelf) == registers.fs_base;
}

bool IsWaiting(const Target& target, const user_regs_struct& stopped) {
  constexpr uint16_t kSystemCall = 0x050f;
  return IsInterrupted(static_cast<int64_t>(stopped.rax)) && static_cast<int64_t>(stopped.orig_rax) >= 0 &&
         target.Get<uint16_t>(stopped.rip - kSystemCallBytes) == kSystemCall;
}
#elif defined(__aarch64__)
bool IsThreadOfLibc(const Target& target, pid_t tid, const user_regs_struct&) {
  uint64_t data = 0;
  iovec part = {&data, sizeof(data)};
  if (ptrace(PTRACE_GETREGSET, tid, reinterpret_cast<void*>(NT_ARM_TLS), &part) != 0) return false;
  return data != 0 && target.Get<uint64_t>(data).value_or(0) != 0;  // its first word is the address of a table
}

bool IsWaiting(const Target& target, const user_regs_struct& stopped) {
  constexpr uint32_t kSystemCall = 0xd4000001;
  return target.Get<uint32_t>(stopped.pc) == kSystemCall;
}
#endif

StoppedThread::StoppedThread(StoppedThread&& other) noexcept
    : tid_(other.tid_), registers_(other.registers_), was_changed_(other.was_changed_) {
  other.tid_ = 0;
}

StoppedThread::~StoppedThread() {
  if (tid_ != 0) Release(tid_, registers_, {false, was_changed_, 0});
}

absl::StatusOr<StoppedThread> StoppedThread::Stop(pid_t tid) {
  if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
    return Aborted("it has ended, is traced by another process, or may not be traced");
  }
  const std::string call = internal::ReadProcFile(Cat("/proc/", tid, "/syscall").c_str());
  ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr);
  const auto end = Clock::now() + std::chrono::seconds(2);
  int status = 0;
  pid_t waited = 0;
  while ((waited = waitpid(tid, &status, __WALL | WNOHANG)) == 0) {
    // A thread that does not stop cannot be released either, except by the end of this process.
    if (Clock::now() > end) return Unavailable("the thread ", tid, " does not stop");
    usleep(50);
  }
  if (waited < 0 || WIFEXITED(status) || WIFSIGNALED(status)) return Aborted("it has ended");
  if (status >> 16 != PTRACE_EVENT_STOP || WSTOPSIG(status) != SIGTRAP) {
    const long signal = status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
    Trace(PTRACE_DETACH, tid, reinterpret_cast<void*>(signal));
    return Aborted("it gets a signal");
  }
  StoppedThread stopped(tid);
  iovec part = {&stopped.registers_, sizeof(stopped.registers_)};
  ptrace(PTRACE_GETREGSET, tid, reinterpret_cast<void*>(NT_PRSTATUS), &part);
  stopped.was_changed_ = FindInterruptedCall(call, stopped.registers_);
  return stopped;
}

bool StoppedThread::WriteCode(uint64_t address, std::string_view code) const {
  for (size_t i = 0; i < code.size(); i += sizeof(long)) {
    long word = 0;
    std::memcpy(&word, code.data() + i, std::min(sizeof(word), code.size() - i));
    if (ptrace(PTRACE_POKEDATA, tid_, reinterpret_cast<void*>(address + i), reinterpret_cast<void*>(word)) != 0) {
      return false;
    }
  }
  return true;
}

bool StoppedThread::ReadMask(uint64_t* mask) const {
  return ptrace(PTRACE_GETSIGMASK, tid_, reinterpret_cast<void*>(sizeof(*mask)), mask) == 0;
}

void StoppedThread::StartAt(const user_regs_struct& registers) {
  // From here on the thread restores itself, also its mask. It blocks the signals by itself, too.
  SetRegisters(tid_, registers);
  uint64_t blocked = BlockedSignals();
  ptrace(PTRACE_SETSIGMASK, tid_, reinterpret_cast<void*>(sizeof(blocked)), &blocked);
  Trace(PTRACE_DETACH, tid_, nullptr);
  tid_ = 0;
}

void StoppedThread::GoOnAfterLoan(const user_regs_struct& registers, uint64_t mask, uint64_t restarting) {
  // In this order: a thread with the old registers restores its mask by itself.
  ptrace(PTRACE_SETSIGMASK, tid_, reinterpret_cast<void*>(sizeof(mask)), &mask);
  Release(std::exchange(tid_, 0), registers, {true, false, restarting});
}

absl::StatusOr<LoaderFunctions> FindLoader(const Target& target) {
  LoaderFunctions loader;
  const MappedFile* const libc = target.Find({"libc.so.6", "libc-2."});
  if (libc == nullptr) {
    return FailedPrecondition(
        "the program is linked statically, so it can load no library; link libhbmprof into it (docs/cuda_cpp.md)");
  }
  loader.errno_location = target.Symbol(*libc, "__errno_location");
  loader.mode = RTLD_NOW;
  for (const MappedFile* const file : {libc, target.Find({"libdl.so.2", "libdl-2."})}) {
    if (file == nullptr || loader.open != 0) continue;
    loader.open = target.Symbol(*file, "dlopen");
    loader.symbol = target.Symbol(*file, "dlsym");
    loader.error = target.Symbol(*file, "dlerror");
  }
  if (loader.open != 0 && loader.symbol != 0 && loader.errno_location != 0) return loader;
  return FailedPrecondition("its C library, ", libc->path,
                            ", has no dlopen that hbmprof knows; start the program with `hbmprof run`");
}

namespace {

// Writes the texts, and the library into its memory file, into the memory that the stub has made.
absl::Status WriteTexts(const Target& target, const StubData& data, const Loading& loading) {
  std::string path = loading.path;
  if (path.empty()) {
    if (data.memory_file < 0) {
      return FailedPrecondition("the process does not see the library's file and can make no file in memory: ",
                                std::strerror(-data.memory_file),
                                "; copy the library to where the process sees it: --library");
    }
    path = Cat("/proc/self/fd/", data.memory_file);
    const internal::FileDescriptor file(
        open(target.ProcPath(Cat("fd/", data.memory_file)).c_str(), O_RDWR | O_CLOEXEC));
    for (size_t done = 0; done < loading.contents.size();) {
      const ssize_t count = write(file.get(), loading.contents.data() + done, loading.contents.size() - done);
      if (count <= 0) return Unavailable("the process's file in memory cannot be written");
      done += static_cast<size_t>(count);
    }
  }
  if (path.size() >= kFunctionAt - kPathAt || loading.options.size() >= kTextsEnd - kOptionsAt) {
    return InvalidArgument("the options are too long");
  }
  const bool is_written = target.Write(data.scratch + kPathAt, path.c_str(), path.size() + 1) &&
                          target.Write(data.scratch + kFunctionAt, kFunction, sizeof(kFunction)) &&
                          target.Write(data.scratch + kOptionsAt, loading.options.c_str(), loading.options.size() + 1);
  return is_written ? absl::OkStatus() : Unavailable("the process has ended");
}

absl::StatusOr<int> ResultOf(const Target& target, const StubData& data) {
  if (data.state < 0) {
    return FailedPrecondition("the process gets no memory for the stack of the call: ", std::strerror(-data.state));
  }
  if (data.is_done == 0) return DeadlineExceeded("the process was not ready in time; try again");
  if (data.handle == 0) {
    std::string text = data.error_text != 0
                           ? target.Text(data.error_text)
                           : "the library is no longer loaded, or another command loads it now; try again";
    if (text.find("static TLS") != std::string::npos) {
      text += "; other libraries have taken this memory: start the program with `hbmprof run`";
    }
    return FailedPrecondition("the process cannot load the library: ", text);
  }
  if (data.function == 0) {
    return FailedPrecondition("the library has no ", kFunction, ": it is of an earlier version of hbmprof");
  }
  return data.result;
}

}  // namespace

absl::StatusOr<int> LoadInThread(const Target& target, StoppedThread stopped, const LoaderFunctions& loader,
                                 const Loading& loading) {
  const user_regs_struct before = stopped.registers();
  const std::string_view stub(__start_hbmprof_stub, static_cast<size_t>(__stop_hbmprof_stub - __start_hbmprof_stub));
  const uint64_t place = target.PlaceFor(stub);
  if (place == 0 || !stopped.WriteCode(place, stub)) {
    return FailedPrecondition("no place was found in its memory for hbmprof's code");
  }
  if (!CanSaveVectors()) {
    return absl::UnimplementedError("this processor has larger registers than expected, or no instruction XSAVE");
  }

  StubData data;
  data.registers = ToWaitAgain(before);
  data.mode = loader.mode | (loading.is_loaded ? RTLD_NOLOAD : 0);
  data.open = loader.open, data.error = loader.error, data.symbol = loader.symbol;
  data.errno_location = loader.errno_location;
  data.blocked = BlockedSignals();
  if (loading.path.empty()) std::strcpy(data.memory_name, "libhbmprof_gpu.so");

  const uint64_t at = (StackPointer(before) - kRedZone - sizeof(data)) & ~uint64_t{63};
  const pid_t tid = stopped.tid();
  if (!stopped.ReadMask(&data.mask) || !target.Write(at, &data, sizeof(data))) {
    return Unavailable("the thread's stack cannot be written");
  }
  stopped.StartAt(ToRunStub(before, place + static_cast<uint64_t>(hbmprof_stub_entry - __start_hbmprof_stub), at));

  // From here on the thread goes on by itself, whatever happens.
  const auto read_until = [&](auto is_reached, std::chrono::seconds limit, const char* late) -> absl::Status {
    const auto end = Clock::now() + limit;
    for (;;) {
      if (!target.Read(at, &data, sizeof(data))) return Unavailable("the process has ended meanwhile");
      if (is_reached()) return absl::OkStatus();
      if (const std::string state = StatusOf(tid, "State"); state.empty() || state[0] == 'Z' || state[0] == 'X') {
        return Unavailable(
            "the thread that was to load the library has ended meanwhile: probably a seccomp filter of the process "
            "forbids a system call");
      }
      if (Clock::now() > end) return DeadlineExceeded(late);
      usleep(100);
    }
  };
  RETURN_IF_ERROR(read_until([&] { return data.state != StubData::kStarted; }, std::chrono::seconds(10),
                             "the process does not run now (is it stopped or frozen?); try again"));
  absl::Status written;
  if (data.state == StubData::kReady) {
    written = WriteTexts(target, data, loading);
    const uint32_t go = written.ok() ? 1 : 2;
    target.Write(at + offsetof(StubData, go), &go, sizeof(go));
    RETURN_IF_ERROR(read_until(
        [&] { return data.state != StubData::kReady; }, std::chrono::seconds(60),
        "the library is not loaded after 60 s: another thread of the process probably holds the dynamic linker's "
        "lock; the thread goes on when it is free"));
  }
  if (absl::StatusOr<StoppedThread> last = StoppedThread::Stop(tid); last.ok()) {
    const uint64_t pc = ProgramCounter(last->registers());
    // Else it has gone on by itself, and can serve another command: this process was stopped for seconds.
    const bool is_ours = target.Read(at, &data, sizeof(data)) && data.owner == getpid();
    if (is_ours && pc >= place && pc < place + stub.size() && data.state != StubData::kLeft) {
      last->GoOnAfterLoan(before, data.mask, data.restarting);
    }
  }
  RETURN_IF_ERROR(written);
  return ResultOf(target, data);
}

}  // namespace hbmprof::tool
