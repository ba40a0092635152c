#include "src/tool/attach/borrowed_thread.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/base/descriptor.h"
#include "src/tool/util/text.h"

// The stub: position-independent code that is copied into the process. rbx has the address of StubData, on the thread's
// own stack. It changes no memory of the program's, and no register that it has not saved there.
//
// It waits by select only: the kernel continues a futex, poll or nanosleep with a timeout from data of the thread,
// which the wait that was interrupted still needs.
asm(R"(
    .pushsection .rodata
    .globl hbmprof_attach_stub, hbmprof_attach_stub_end
    .hidden hbmprof_attach_stub, hbmprof_attach_stub_end
    .macro hbmprof_wait_a_millisecond
    movq    $0, 104(%rbx)
    movq    $1000, 112(%rbx)
    movl    $23, %eax                /* select(0, 0, 0, 0, &time) */
    xorl    %edi, %edi
    xorl    %esi, %esi
    xorl    %edx, %edx
    xorl    %r10d, %r10d
    leaq    104(%rbx), %r8
    syscall
    .endm
hbmprof_attach_stub:
    endbr64
    movl    $14, %eax                /* rt_sigprocmask(SIG_SETMASK, &blocked, 0, 8) */
    movl    $2, %edi
    leaq    120(%rbx), %rsi
    xorl    %edx, %edx
    movl    $8, %r10d
    syscall
    movl    $4500, %r15d             /* how long it waits at the end */
    movl    $9, %eax                 /* mmap(0, bytes, READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE, -1, 0) */
    xorl    %edi, %edi
    movq    16(%rbx), %rsi
    movl    $3, %edx
    movl    $0x4022, %r10d
    movq    $-1, %r8
    xorl    %r9d, %r9d
    syscall
    testq   %rax, %rax
    jns     1f
    movl    %eax, (%rbx)
    jmp     7f
1:  movq    %rax, 8(%rbx)
    movq    %rax, %rdi
    addq    16(%rbx), %rax
    leaq    -64(%rax), %rsp
    movl    $-1, %eax
    movl    $-1, %edx
    cmpl    $0, 36(%rbx)
    je      2f
    xsave64 (%rdi)
    jmp     3f
2:  fxsave64 (%rdi)
3:  cmpb    $0, 264(%rbx)
    je      4f
    movl    $319, %eax               /* memfd_create(name, MFD_CLOEXEC) */
    leaq    264(%rbx), %rdi
    movl    $1, %esi
    syscall
    movl    %eax, 32(%rbx)
4:  movl    $1, (%rbx)
    movl    $4500, %r14d
5:  cmpl    $0, 4(%rbx)
    jne     6f
    hbmprof_wait_a_millisecond
    decl    %r14d
    jnz     5b
    movl    $1, %r15d                /* the command has died */
6:  cmpl    $1, 4(%rbx)
    jne     8f
    call    *64(%rbx)                /* __errno_location */
    movq    %rax, %r12
    movl    (%rax), %r13d
    movq    8(%rbx), %rdi
    addq    $0x8000, %rdi
    movl    24(%rbx), %esi
    call    *40(%rbx)                /* dlopen */
    movq    %rax, 72(%rbx)
    testq   %rax, %rax
    jnz     9f
    cmpq    $0, 48(%rbx)
    je      10f
    call    *48(%rbx)                /* dlerror */
    movq    %rax, 80(%rbx)
    jmp     10f
9:  movq    %rax, %rdi
    movq    8(%rbx), %rsi
    addq    $0x9000, %rsi
    call    *56(%rbx)                /* dlsym */
    movq    %rax, 88(%rbx)
    testq   %rax, %rax
    jz      10f
    movq    8(%rbx), %rdi
    addq    $0xa000, %rdi
    call    *%rax
    movl    %eax, 96(%rbx)
10: movl    %r13d, (%r12)
    movl    $1, 100(%rbx)
8:  movl    32(%rbx), %edi
    testl   %edi, %edi
    js      11f
    movl    $3, %eax                 /* close */
    syscall
11: movq    8(%rbx), %rdi
    movl    $-1, %eax
    movl    $-1, %edx
    cmpl    $0, 36(%rbx)
    je      12f
    xrstor64 (%rdi)
    jmp     13f
12: fxrstor64 (%rdi)
13: leaq    -64(%rbx), %rsp
    movl    $11, %eax                /* munmap */
    movq    8(%rbx), %rdi
    movq    16(%rbx), %rsi
    syscall
    movl    $2, (%rbx)
7:  leaq    -64(%rbx), %rsp
14: hbmprof_wait_a_millisecond
    decl    %r15d
    jnz     14b
    /* The command has died: the thread restores itself. */
    movl    $3, (%rbx)
    movl    $14, %eax
    movl    $2, %edi
    leaq    128(%rbx), %rsi
    xorl    %edx, %edx
    movl    $8, %r10d
    syscall
    pushq   248(%rbx)
    popfq
    movq    136(%rbx), %r8
    movq    144(%rbx), %r9
    movq    152(%rbx), %r10
    movq    160(%rbx), %r12
    movq    168(%rbx), %r13
    movq    176(%rbx), %r14
    movq    184(%rbx), %r15
    movq    192(%rbx), %rdi
    movq    200(%rbx), %rsi
    movq    208(%rbx), %rdx
    movq    216(%rbx), %rbp
    movq    224(%rbx), %rax
    movq    232(%rbx), %rsp
    movq    240(%rbx), %rcx
    movq    256(%rbx), %rbx
    jmp     *%rcx                    /* rcx and r11: a system call changes them anyway */
hbmprof_attach_stub_end:
    .purgem hbmprof_wait_a_millisecond
    .popsection
)");
extern "C" const char hbmprof_attach_stub[];
extern "C" const char hbmprof_attach_stub_end[];

namespace hbmprof::tool {
namespace {

using Clock = std::chrono::steady_clock;

// The stub uses these offsets.
struct StubData {
  enum State : int32_t { kStarted = 0, kReady = 1, kCalled = 2, kLeft = 3 };  // negative: errno of mmap
  int32_t state = kStarted;
  uint32_t go = 0;  // set to 1 when the texts have been written
  uint64_t scratch = 0;
  uint64_t scratch_bytes = 0;
  uint64_t mode = 0;
  int32_t memory_file = -1;
  uint32_t has_xsave = 0;
  uint64_t open = 0, error = 0, symbol = 0, errno_location = 0;
  uint64_t handle = 0, error_text = 0, function = 0;
  int32_t result = 0;
  uint32_t is_done = 0;
  uint64_t time[2] = {};
  uint64_t blocked = 0, mask = 0;
  uint64_t r8, r9, r10, r12, r13, r14, r15, rdi, rsi, rdx, rbp, rax, rsp, rip, eflags, rbx;
  char memory_name[24] = {};
  pid_t owner = getpid();
};
static_assert(offsetof(StubData, memory_file) == 32 && offsetof(StubData, open) == 40 &&
              offsetof(StubData, errno_location) == 64 && offsetof(StubData, result) == 96 &&
              offsetof(StubData, time) == 104 && offsetof(StubData, blocked) == 120 && offsetof(StubData, r8) == 136 &&
              offsetof(StubData, rdi) == 192 && offsetof(StubData, rip) == 240 && offsetof(StubData, rbx) == 256 &&
              offsetof(StubData, memory_name) == 264);
// Of the scratch memory: the vector registers, the texts, and the stack from its end downwards.
constexpr uint64_t kXsaveBytes = 0x8000;
constexpr uint64_t kPathAt = 0x8000;
constexpr uint64_t kFunctionAt = 0x9000;
constexpr uint64_t kOptionsAt = 0xa000;
constexpr uint64_t kTextsEnd = 0x10000;
constexpr uint64_t kScratchBytes = 0x70000;
constexpr char kFunction[] = "hbmprof_attach";
constexpr uint64_t kRedZone = 128;
constexpr uint64_t kNoSystemCall = ~uint64_t{0};

// Results of a system call that was interrupted, of the kernel's own (include/linux/errno.h).
constexpr int64_t kRestartSystemCall = -512;
constexpr int64_t kRestartNoInterrupt = -513;
constexpr int64_t kRestartNoHandler = -514;
constexpr int64_t kRestartBlock = -516;

bool IsInterrupted(int64_t result) {
  return result == -EINTR || result == kRestartSystemCall || result == kRestartNoInterrupt ||
         result == kRestartNoHandler || result == kRestartBlock;
}

uint32_t XsaveBytes() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsUsesXsave = 1u << 27;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsUsesXsave) == 0) return 0;
  return __get_cpuid_count(0xd, 0, &a, &b, &c, &d) != 0 ? b : 0;
}

void Trace(int request, pid_t tid, const void* data) {
  ptrace(static_cast<__ptrace_request>(request), tid, nullptr, const_cast<void*>(data));
}

bool HasEnded(int status) { return WIFEXITED(status) || WIFSIGNALED(status); }

// Whether a handler of the program's will run as soon as the thread goes on.
bool GetsSignal(pid_t tid) {
  const auto signals = [tid](const char* key) { return std::strtoull(StatusOf(tid, key).c_str(), nullptr, 16); };
  return ((signals("SigPnd") | signals("ShdPnd")) & ~signals("SigBlk") & signals("SigCgt")) != 0;
}

// Makes the thread repeat a wait that the kernel would not continue by itself (epoll_wait), unless a signal ends it.
void RepeatIfInterrupted(pid_t tid, user_regs_struct& registers) {
  if (static_cast<int64_t>(registers.orig_rax) < 0 || static_cast<int64_t>(registers.rax) != -EINTR) return;
  if (GetsSignal(tid)) return;
  registers.rax = registers.orig_rax;
  registers.orig_rax = kNoSystemCall;
  registers.rip -= 2;
}

// The signals that the thread does not get meanwhile: all but those of its own faults.
uint64_t BlockedSignals() {
  uint64_t mask = ~uint64_t{0};
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT}) mask &= ~(uint64_t{1} << (signal - 1));
  return mask;
}

}  // namespace

StoppedThread::StoppedThread(StoppedThread&& other) noexcept : tid_(other.tid_), registers_(other.registers_) {
  other.tid_ = 0;
}

StoppedThread::~StoppedThread() {
  if (tid_ != 0) Release(registers_, false);
}

absl::StatusOr<StoppedThread> StoppedThread::Stop(pid_t tid) {
  if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
    return absl::AbortedError("it has ended, is traced by another process, or may not be traced");
  }
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
  Trace(PTRACE_GETREGS, tid, &stopped.registers_);
  return stopped;
}

void StoppedThread::Release(user_regs_struct registers, bool are_changed) {
  const uint64_t rip = registers.rip;
  RepeatIfInterrupted(tid_, registers);
  if (are_changed || registers.rip != rip) Trace(PTRACE_SETREGS, tid_, &registers);
  Trace(PTRACE_DETACH, tid_, nullptr);
  tid_ = 0;
}

bool StoppedThread::IsWaiting(const Target& target) const {
  const auto code = target.Get<uint16_t>(registers_.rip - 2);
  constexpr uint16_t kSyscall = 0x050f;
  return IsInterrupted(static_cast<int64_t>(registers_.rax)) && static_cast<int64_t>(registers_.orig_rax) >= 0 &&
         code == kSyscall;
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
  Trace(PTRACE_SETREGS, tid_, &registers);
  uint64_t blocked = BlockedSignals();
  ptrace(PTRACE_SETSIGMASK, tid_, reinterpret_cast<void*>(sizeof(blocked)), &blocked);
  Trace(PTRACE_DETACH, tid_, nullptr);
  tid_ = 0;
}

void StoppedThread::ContinueAt(const user_regs_struct& registers, uint64_t mask) {
  // In this order: a thread with the old registers restores its mask by itself.
  ptrace(PTRACE_SETSIGMASK, tid_, reinterpret_cast<void*>(sizeof(mask)), &mask);
  Release(registers, true);
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
  if (loader.open == 0) {
    // Before glibc 2.34, a program without libdl.
    loader.open = target.Symbol(*libc, "__libc_dlopen_mode");
    loader.symbol = target.Symbol(*libc, "__libc_dlsym");
    loader.error = 0;
    constexpr uint64_t kFromDlopen = 0x80000000;
    loader.mode |= kFromDlopen;
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
  const std::string_view stub(hbmprof_attach_stub, static_cast<size_t>(hbmprof_attach_stub_end - hbmprof_attach_stub));
  const uint64_t place = target.PlaceFor(stub);
  if (place == 0 || !stopped.WriteCode(place, stub)) {
    return absl::FailedPreconditionError("no place was found in its memory for hbmprof's code");
  }
  const uint32_t xsave_bytes = XsaveBytes();
  if (xsave_bytes > kXsaveBytes) return absl::UnimplementedError("this processor has larger registers than expected");

  StubData data;
  data.scratch_bytes = kScratchBytes;
  data.mode = loader.mode | (loading.is_loaded ? RTLD_NOLOAD : 0);
  data.has_xsave = xsave_bytes != 0 ? 1 : 0;
  data.open = loader.open, data.error = loader.error, data.symbol = loader.symbol;
  data.errno_location = loader.errno_location;
  data.blocked = BlockedSignals();
  data.r8 = before.r8, data.r9 = before.r9, data.r10 = before.r10, data.r12 = before.r12, data.r13 = before.r13;
  data.r14 = before.r14, data.r15 = before.r15, data.rdi = before.rdi, data.rsi = before.rsi, data.rdx = before.rdx;
  data.rbp = before.rbp, data.rbx = before.rbx, data.rsp = before.rsp, data.eflags = before.eflags;
  // The thread makes its system call again, or lets the kernel continue it.
  data.rax = static_cast<int64_t>(before.rax) == kRestartBlock ? uint64_t{SYS_restart_syscall} : before.orig_rax;
  data.rip = before.rip - 2;
  if (loading.path.empty()) std::strcpy(data.memory_name, "libhbmprof_cuda.so");

  const uint64_t at = (before.rsp - kRedZone - sizeof(data)) & ~uint64_t{63};
  const pid_t tid = stopped.tid();
  if (!stopped.ReadMask(&data.mask) || !target.Write(at, &data, sizeof(data))) {
    return absl::UnavailableError("the thread's stack cannot be written");
  }
  user_regs_struct registers = before;
  registers.rip = place;
  registers.rbx = at;
  registers.rsp = at - 64;
  registers.rbp = 0;
  registers.orig_rax = kNoSystemCall;
  constexpr uint64_t kTrap = 0x100, kBackwards = 0x400, kAlignmentCheck = 0x40000;
  registers.eflags &= ~(kTrap | kBackwards | kAlignmentCheck);
  stopped.StartAt(registers);

  // From here on the thread goes on by itself, whatever happens.
  const auto read_until = [&](auto is_reached, std::chrono::seconds limit) -> absl::Status {
    const auto end = Clock::now() + limit;
    for (;;) {
      if (!target.Read(at, &data, sizeof(data))) return absl::UnavailableError("the process has ended meanwhile");
      if (is_reached()) return absl::OkStatus();
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
    const uint64_t rip = last->registers().rip;
    // Else it has gone on by itself, and can serve another command: this process was stopped for seconds.
    const bool is_ours = target.Read(at, &data, sizeof(data)) && data.owner == getpid();
    if (is_ours && rip >= place && rip < place + stub.size() && data.state != StubData::kLeft) {
      last->ContinueAt(before, data.mask);
    }
  }
  const double millis = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  if (!written.ok()) return written;
  const absl::StatusOr<int> code = ResultOf(target, data);
  if (!code.ok()) return code.status();
  return Attached{*code, millis};
}

}  // namespace hbmprof::tool

#endif
