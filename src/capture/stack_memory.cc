#include "src/capture/stack_memory.h"

#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

// The stack pointer at the main thread's entry, set by the dynamic linker.
extern "C" void* __libc_stack_end;

namespace hbmprof::internal {
namespace {

constexpr uintptr_t kPageBytes = 4096;
// The kernel leaves at least this much address space free of mappings below the main thread's stack.
constexpr uintptr_t kMainStackGap = uintptr_t{128} << 20;
// Of a stack of unknown size: no walk goes further.
constexpr uintptr_t kOtherStackLimit = uintptr_t{64} << 20;
constexpr StackBounds kUnknownBounds = {1, 1};

// Asks the kernel, which reads the signal set before it rejects the operation. Async-signal-safe; leaves errno alone.
bool IsReadable(uintptr_t address) {
  if (address == 0) return false;  // would mean "no signal set" to the kernel
  const int saved_errno = errno;
  const bool readable = syscall(SYS_rt_sigprocmask, ~0L, address, nullptr, 8) != -1 || errno != EFAULT;
  errno = saved_errno;
  return readable;
}

StackBounds MainStackBounds() {
  const auto high = reinterpret_cast<uintptr_t>(__libc_stack_end) & ~uintptr_t{7};
  // The kernel's limit counts from the end of the mapping, where the program's file name lies behind arguments and
  // environment.
  constexpr uintptr_t kMostArguments = uintptr_t{16} << 20;
  uintptr_t end = getauxval(AT_EXECFN) | (kPageBytes - 1);
  if (end - high >= kMostArguments) end = high;
  rlimit limit;
  uintptr_t bytes = kMainStackGap;
  if (getrlimit(RLIMIT_STACK, &limit) == 0) bytes = std::min<uintptr_t>(bytes, limit.rlim_cur);
  return {std::min(high, end - std::min(bytes, end)), high};
}

// The bounds of the calling thread's stack as glibc's thread descriptor states them, which are those that
// pthread_getattr_np returns. That function cannot be called here: it calls malloc, which a signal handler may have
// interrupted, or which the program may have wrapped with us. The other ways that were considered:
// - /proc/self/maps: takes milliseconds in a process with many mappings, is absent in a chroot, and does not tell a
//   stack from a mapping beside it.
// - Asking the kernel which pages around the stack pointer are readable: does not tell a stack from what lies beside
//   it without a guard page, and what lies there can be unmapped while the thread runs.
//
// The descriptor (nptl/descr.h) begins at the thread pointer and lies at the upper end of the stack's block, also in a
// stack that the program has supplied. It holds four words in this order: the block, its size, how much of it is the
// guard, and the guard's size as asked for. Their place differs between versions, so they are found by what must be
// true of them: the block is a possible stack, holds these words and ends close behind them. In the main thread the
// block is null. Where they are not found, captures ask the kernel about each page, as on any other stack.
StackBounds DescribedBounds() {
#if defined(__x86_64__) && defined(__GLIBC__)
  constexpr uintptr_t kFirst = 0x200;         // before it lies what the ABI fixes
  constexpr uintptr_t kLimit = 0x1000;        // the descriptor has 0x900 bytes in glibc 2.36
  constexpr uintptr_t kMostBehind = 0x10000;  // a descriptor can be aligned to a page
  constexpr uintptr_t kSmallest = 0x4000;     // PTHREAD_STACK_MIN
  uintptr_t self;
  asm("movq %%fs:0, %0" : "=r"(self));
  uintptr_t readable = 0;
  for (uintptr_t at = self + kFirst; at < self + kLimit; at += sizeof(uintptr_t)) {
    const uintptr_t last = at + 3 * sizeof(uintptr_t);
    if (last >= readable) {
      const uintptr_t page = last & ~(kPageBytes - 1);
      if (!IsReadable(page)) break;
      readable = page + kPageBytes;
    }
    const uintptr_t block = LoadStackWord(at);
    const uintptr_t bytes = LoadStackWord(at + sizeof(uintptr_t));
    if (block >= self || bytes >= block || bytes < kSmallest) continue;
    const uintptr_t high = block + bytes;
    if (high <= last || high - last > kLimit + kMostBehind) continue;
    const uintptr_t guard = LoadStackWord(at + 2 * sizeof(uintptr_t));
    if (guard % kPageBytes != 0 || guard >= self - block) continue;
    if (LoadStackWord(last) > bytes) continue;
    return {block + guard, high & ~uintptr_t{7}};
  }
#endif
  return kUnknownBounds;
}

}  // namespace

__thread StackBounds thread_stack_bounds __attribute__((tls_model("initial-exec"))) = {0, 0};

StackBounds FindThreadStackBounds() {
  const int saved_errno = errno;
  StackBounds bounds = DescribedBounds();
  if (bounds.low == bounds.high && getpid() == static_cast<pid_t>(syscall(SYS_gettid))) bounds = MainStackBounds();
  errno = saved_errno;
  thread_stack_bounds = bounds;
  return bounds;
}

void StackMemory::EnterOther(uintptr_t sp) {
  is_own_ = false;
  low_ = sp & ~uintptr_t{7};
  high_ = low_;
}

bool StackMemory::ExtendTo(uintptr_t address) {
  if (is_own_ || address < low_ || address - low_ >= kOtherStackLimit) return false;
  while (address >= high_) {
    if (!IsReadable(high_)) return false;
    high_ = (high_ | (kPageBytes - 1)) + 1;
  }
  return true;
}

}  // namespace hbmprof::internal
