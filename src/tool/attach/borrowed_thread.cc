#include "src/tool/attach/borrowed_thread.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <utility>

#include "src/base/descriptor.h"
#include "src/tool/attach/stub.h"
#include "src/tool/util/text.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hbmprof::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kFunction[] = "hbmprof_attach";
constexpr uint64_t kRedZone = 128;

// Returns the bytes that XSAVE needs; 0: there is no such instruction.
uint32_t XsaveBytes() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsUsesXsave = 1u << 27;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsUsesXsave) == 0) return 0;
  return __get_cpuid_count(0xd, 0, &a, &b, &c, &d) != 0 ? b : 0;
#else
  return 0;
#endif
}

void Trace(int request, pid_t tid, const void* data) {
  ptrace(static_cast<__ptrace_request>(request), tid, nullptr, const_cast<void*>(data));
}

bool HasEnded(int status) { return WIFEXITED(status) || WIFSIGNALED(status); }

// Writes the registers of a stopped thread.
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

}  // namespace

StoppedThread::StoppedThread(StoppedThread&& other) noexcept
    : tid_(other.tid_), registers_(other.registers_), was_changed_(other.was_changed_) {
  other.tid_ = 0;
}

StoppedThread::~StoppedThread() {
  if (tid_ != 0) Release(registers_, {false, was_changed_, 0});
}

absl::StatusOr<StoppedThread> StoppedThread::Stop(pid_t tid) {
  if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
    return absl::AbortedError("it has ended, is traced by another process, or may not be traced");
  }
  std::string call;
  std::ifstream file(Cat("/proc/", tid, "/syscall"));
  std::getline(file, call);
  ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr);
  const auto end = Clock::now() + std::chrono::seconds(2);
  int status = 0;
  pid_t waited = 0;
  while ((waited = waitpid(tid, &status, __WALL | WNOHANG)) == 0) {
    // A thread that does not stop cannot be released either, except by the end of this process.
    if (Clock::now() > end) return absl::UnavailableError(Cat("the thread ", tid, " does not stop"));
    usleep(50);
  }
  if (waited < 0 || HasEnded(status)) return absl::AbortedError("it has ended");
  if (status >> 16 != PTRACE_EVENT_STOP || WSTOPSIG(status) != SIGTRAP) {
    const long signal = status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
    Trace(PTRACE_DETACH, tid, reinterpret_cast<void*>(signal));
    return absl::AbortedError("it gets a signal");
  }
  StoppedThread stopped(tid);
  iovec part = {&stopped.registers_, sizeof(stopped.registers_)};
  ptrace(PTRACE_GETREGSET, tid, reinterpret_cast<void*>(NT_PRSTATUS), &part);
  stopped.was_changed_ = FindInterruptedCall(call, stopped.registers_);
  return stopped;
}

void StoppedThread::Release(user_regs_struct registers, const GoingOn& how) {
  if (PrepareToGoOn(tid_, how, registers)) SetRegisters(tid_, registers);
  Trace(PTRACE_DETACH, tid_, nullptr);
  tid_ = 0;
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
  Release(registers, {true, false, restarting});
}

absl::StatusOr<LoaderFunctions> FindLoader(const Target& target) {
  LoaderFunctions loader;
  const auto is_libc = [](std::string_view name) { return name == "libc.so.6" || name.rfind("libc-2.", 0) == 0; };
  const auto is_libdl = [](std::string_view name) { return name == "libdl.so.2" || name.rfind("libdl-2.", 0) == 0; };
  const MappedFile* const libc = target.Find(is_libc);
  if (libc == nullptr) {
    return absl::FailedPreconditionError(
        "the program is linked statically, so it can load no library; link libhbmprof into it (docs/cuda_cpp.md)");
  }
  loader.errno_location = target.Symbol(*libc, "__errno_location");
  loader.mode = RTLD_NOW;
  for (const MappedFile* const file : {libc, target.Find(is_libdl)}) {
    if (file == nullptr || loader.open != 0) continue;
    loader.open = target.Symbol(*file, "dlopen");
    loader.symbol = target.Symbol(*file, "dlsym");
    loader.error = target.Symbol(*file, "dlerror");
  }
  if (loader.open != 0 && loader.symbol != 0 && loader.errno_location != 0) return loader;
  return absl::FailedPreconditionError(
      Cat("its C library, ", libc->path, ", has no dlopen that hbmprof knows; start the program with `hbmprof run`"));
}

namespace {

// Writes the texts, and the library into its memory file, into the memory that the stub has made.
absl::Status WriteTexts(const Target& target, const StubData& data, const Loading& loading) {
  std::string path = loading.path;
  if (path.empty()) {
    if (data.memory_file < 0) {
      return absl::FailedPreconditionError(
          Cat("the process does not see the library's file and can make no file in memory: ",
              std::strerror(-data.memory_file), "; copy the library to where the process sees it: --library"));
    }
    path = Cat("/proc/self/fd/", data.memory_file);
    const internal::FileDescriptor file(
        open(target.ProcPath(Cat("fd/", data.memory_file)).c_str(), O_RDWR | O_CLOEXEC));
    for (size_t done = 0; done < loading.contents.size();) {
      const ssize_t count = write(file.get(), loading.contents.data() + done, loading.contents.size() - done);
      if (count <= 0) return absl::UnavailableError("the process's file in memory cannot be written");
      done += static_cast<size_t>(count);
    }
  }
  if (path.size() >= kFunctionAt - kPathAt || loading.options.size() >= kTextsEnd - kOptionsAt) {
    return absl::InvalidArgumentError("the options are too long");
  }
  const bool is_written = target.Write(data.scratch + kPathAt, path.c_str(), path.size() + 1) &&
                          target.Write(data.scratch + kFunctionAt, kFunction, sizeof(kFunction)) &&
                          target.Write(data.scratch + kOptionsAt, loading.options.c_str(), loading.options.size() + 1);
  return is_written ? absl::OkStatus() : absl::UnavailableError("the process has ended");
}

absl::StatusOr<int> ResultOf(const Target& target, const StubData& data) {
  if (data.state < 0) {
    return absl::FailedPreconditionError(
        Cat("the process gets no memory for the stack of the call: ", std::strerror(-data.state)));
  }
  if (data.is_done == 0) return absl::DeadlineExceededError("the process was not ready in time; try again");
  if (data.handle == 0) {
    std::string text = data.error_text != 0
                           ? target.Text(data.error_text)
                           : "the library is no longer loaded, or another command loads it now; try again";
    if (text.find("static TLS") != std::string::npos) {
      text += "; other libraries have taken this memory: start the program with `hbmprof run`";
    }
    return absl::FailedPreconditionError(Cat("the process cannot load the library: ", text));
  }
  if (data.function == 0) {
    return absl::FailedPreconditionError(
        Cat("the library has no ", kFunction, ": it is of an earlier version of hbmprof"));
  }
  return data.result;
}

}  // namespace

absl::StatusOr<Attached> LoadInThread(const Target& target, StoppedThread stopped, const LoaderFunctions& loader,
                                      const Loading& loading) {
  const auto start = Clock::now();
  const user_regs_struct before = stopped.registers();
  const std::string_view stub(__start_hbmprof_stub, static_cast<size_t>(__stop_hbmprof_stub - __start_hbmprof_stub));
  const uint64_t place = target.PlaceFor(stub);
  if (place == 0 || !stopped.WriteCode(place, stub)) {
    return absl::FailedPreconditionError("no place was found in its memory for hbmprof's code");
  }
  const uint32_t xsave_bytes = XsaveBytes();
  if (xsave_bytes > kVectorBytes) return absl::UnimplementedError("this processor has larger registers than expected");

  StubData data;
  data.registers = ToWaitAgain(before);
  data.mode = loader.mode | (loading.is_loaded ? RTLD_NOLOAD : 0);
  data.open = loader.open, data.error = loader.error, data.symbol = loader.symbol;
  data.errno_location = loader.errno_location;
  data.has_xsave = xsave_bytes != 0 ? 1 : 0;
  data.blocked = BlockedSignals();
  if (loading.path.empty()) std::strcpy(data.memory_name, "libhbmprof_cuda.so");

  const uint64_t at = (StackPointer(before) - kRedZone - sizeof(data)) & ~uint64_t{63};
  const pid_t tid = stopped.tid();
  if (!stopped.ReadMask(&data.mask) || !target.Write(at, &data, sizeof(data))) {
    return absl::UnavailableError("the thread's stack cannot be written");
  }
  stopped.StartAt(ToRunStub(before, place + static_cast<uint64_t>(hbmprof_stub_entry - __start_hbmprof_stub), at));

  // From here on the thread goes on by itself, whatever happens.
  const auto read_until = [&](auto is_reached, std::chrono::seconds limit) -> absl::Status {
    const auto end = Clock::now() + limit;
    for (;;) {
      if (!target.Read(at, &data, sizeof(data))) return absl::UnavailableError("the process has ended meanwhile");
      if (is_reached()) return absl::OkStatus();
      if (const std::string state = StatusOf(tid, "State"); state.empty() || state[0] == 'Z' || state[0] == 'X') {
        return absl::UnavailableError(
            "the thread that was to load the library has ended meanwhile: probably a seccomp filter of the process "
            "forbids a system call");
      }
      if (Clock::now() > end) return absl::DeadlineExceededError("");
      usleep(100);
    }
  };
  absl::Status status = read_until([&] { return data.state != StubData::kStarted; }, std::chrono::seconds(10));
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError("the process does not run now (is it stopped or frozen?); try again");
  }
  if (!status.ok()) return status;
  absl::Status written;
  if (data.state == StubData::kReady) {
    written = WriteTexts(target, data, loading);
    const uint32_t go = written.ok() ? 1 : 2;
    target.Write(at + offsetof(StubData, go), &go, sizeof(go));
    status = read_until([&] { return data.state != StubData::kReady; }, std::chrono::seconds(60));
    if (absl::IsDeadlineExceeded(status)) {
      return absl::DeadlineExceededError(
          "the library is not loaded after 60 s: another thread of the process probably holds the dynamic linker's "
          "lock; the thread goes on when it is free");
    }
    if (!status.ok()) return status;
  }
  if (absl::StatusOr<StoppedThread> last = StoppedThread::Stop(tid); last.ok()) {
    const uint64_t pc = ProgramCounter(last->registers());
    // Else it has gone on by itself, and can serve another command: this process was stopped for seconds.
    const bool is_ours = target.Read(at, &data, sizeof(data)) && data.owner == getpid();
    if (is_ours && pc >= place && pc < place + stub.size() && data.state != StubData::kLeft) {
      last->GoOnAfterLoan(before, data.mask, data.restarting);
    }
  }
  const double millis = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  if (!written.ok()) return written;
  const absl::StatusOr<int> code = ResultOf(target, data);
  if (!code.ok()) return code.status();
  return Attached{*code, millis};
}

}  // namespace hbmprof::tool
