#include "src/tool/attach/registers.h"

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "src/tool/attach/stub.h"

namespace hbmprof::tool {
namespace {

// The signals for which a handler of the program's will run as soon as the thread goes on.
uint64_t HandledSignals(pid_t tid) {
  const auto signals = [tid](const char* key) { return std::strtoull(StatusOf(tid, key).c_str(), nullptr, 16); };
  return (signals("SigPnd") | signals("ShdPnd")) & ~signals("SigBlk") & signals("SigCgt");
}

}  // namespace

#if defined(__x86_64__)

namespace {

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

}  // namespace

uint64_t ProgramCounter(const user_regs_struct& r) { return r.rip; }
uint64_t StackPointer(const user_regs_struct& r) { return r.rsp; }

std::vector<uint64_t> DwarfRegisters(const user_regs_struct& r) {
  return {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
          r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip};
}

bool IsSamePlace(const user_regs_struct& a, const user_regs_struct& b) {
  return a.rip == b.rip && a.rsp == b.rsp && a.rbp == b.rbp && a.rbx == b.rbx && a.rax == b.rax;
}

bool IsThreadOfLibc(const Target& target, pid_t, const user_regs_struct& registers) {
  constexpr uint64_t kSelf = 0x10;  // where the data has its own address
  return target.Get<uint64_t>(registers.fs_base + kSelf) == registers.fs_base;
}

bool FindInterruptedCall(const std::string&, user_regs_struct&) { return false; }

bool IsWaiting(const Target& target, const user_regs_struct& stopped) {
  constexpr uint16_t kSystemCall = 0x050f;
  return IsInterrupted(static_cast<int64_t>(stopped.rax)) && static_cast<int64_t>(stopped.orig_rax) >= 0 &&
         target.Get<uint16_t>(stopped.rip - kSystemCallBytes) == kSystemCall;
}

user_regs_struct ToWaitAgain(user_regs_struct stopped) {
  stopped.rax = static_cast<int64_t>(stopped.rax) == kRestartBlock ? uint64_t{SYS_restart_syscall} : stopped.orig_rax;
  stopped.rip -= kSystemCallBytes;
  return stopped;
}

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

// The kernel makes the call again, or lets it return EINTR, by the registers that it has shown at the stop. It does not
// do so for calls that return EINTR at a stop.
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

namespace {

constexpr uint64_t kSystemCallBytes = 4;

// Calls that a signal handler with SA_RESTART does not end.
constexpr uint64_t kRestarted[] = {SYS_futex,  SYS_accept, SYS_accept4,  SYS_wait4,
                                   SYS_waitid, SYS_read,   SYS_recvfrom, SYS_recvmsg};

}  // namespace

uint64_t ProgramCounter(const user_regs_struct& r) { return r.pc; }
uint64_t StackPointer(const user_regs_struct& r) { return r.sp; }

std::vector<uint64_t> DwarfRegisters(const user_regs_struct& r) {
  std::vector<uint64_t> words(std::begin(r.regs), std::end(r.regs));
  words.push_back(r.sp);
  return words;
}

bool IsSamePlace(const user_regs_struct& a, const user_regs_struct& b) {
  constexpr int kFirstKept = 19;  // by a function that is called
  return a.pc == b.pc && a.sp == b.sp && a.regs[0] == b.regs[0] && a.regs[1] == b.regs[1] &&
         std::equal(a.regs + kFirstKept, std::end(a.regs), b.regs + kFirstKept);
}

bool IsThreadOfLibc(const Target& target, pid_t tid, const user_regs_struct&) {
  uint64_t data = 0;
  iovec part = {&data, sizeof(data)};
  if (ptrace(PTRACE_GETREGSET, tid, reinterpret_cast<void*>(NT_ARM_TLS), &part) != 0) return false;
  return data != 0 && target.Get<uint64_t>(data).value_or(0) != 0;  // its first word is the address of a table
}

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

bool IsWaiting(const Target& target, const user_regs_struct& stopped) {
  constexpr uint32_t kSystemCall = 0xd4000001;
  return target.Get<uint32_t>(stopped.pc) == kSystemCall;
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
  const bool is_restarted = std::find(std::begin(kRestarted), std::end(kRestarted), number) != std::end(kRestarted);
  if (signals == 0 || (is_restarted && (signals & ~how.restarting) == 0)) return true;
  registers.regs[0] = static_cast<uint64_t>(-EINTR);
  registers.pc += kSystemCallBytes;
  return true;
}

#endif

}  // namespace hbmprof::tool
