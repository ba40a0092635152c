#include "src/capture/stack_memory.h"

#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/kept_errno.h"

// The stack pointer at the main thread's entry, set by the dynamic linker.
extern "C" void* __libc_stack_end;

namespace hbmprof::internal {
namespace {

constexpr uintptr_t kPageBytes = 4096;
// The kernel leaves at least this much address space free of mappings below the main thread's stack.
constexpr uintptr_t kMainStackGap = uintptr_t{128} << 20;
// The largest distance that a walk covers on a stack of unknown size.
constexpr uintptr_t kOtherStackLimit = uintptr_t{64} << 20;
constexpr StackBounds kUnknownBounds = {1, 1};

// Returns whether the kernel can read the word at `address`. Calls rt_sigprocmask with `address` as the signal set and
// an invalid operation: the kernel reads the set before it rejects the operation. Async-signal-safe. Does not change
// errno.
bool IsReadable(uintptr_t address) {
  if (address == 0) return false;  // means "no signal set" to the kernel
  const KeptErrno kept_errno;
  return syscall(SYS_rt_sigprocmask, ~0L, address, nullptr, 8) != -1 || errno != EFAULT;
}

StackBounds MainStackBounds() {
  const auto high = reinterpret_cast<uintptr_t>(__libc_stack_end) & ~uintptr_t{7};
  // The kernel counts RLIMIT_STACK from the upper end of the stack's mapping. The program's file name (AT_EXECFN) is at
  // that end, above the arguments and the environment.
  constexpr uintptr_t kMaxArgumentBytes = uintptr_t{16} << 20;
  uintptr_t end = getauxval(AT_EXECFN) | (kPageBytes - 1);
  if (end - high >= kMaxArgumentBytes) end = high;
  rlimit limit;
  uintptr_t bytes = kMainStackGap;
  if (getrlimit(RLIMIT_STACK, &limit) == 0) bytes = std::min<uintptr_t>(bytes, limit.rlim_cur);
  return {std::min(high, end - std::min(bytes, end)), high};
}

// Returns the bounds of the calling thread's stack from glibc's thread descriptor, which are equal to those that
// pthread_getattr_np returns. That function cannot be called here, because it calls malloc: a signal handler may have
// interrupted malloc, or the program may have a malloc that records its calls with this library. (/proc/self/maps and
// queries of the kernel for readable pages do not distinguish a stack from an adjacent mapping.)
//
// The descriptor (nptl/descr.h) is at the upper end of the stack's block, also if the program has supplied the stack.
// It holds four words in this order: the address of the block, its size, the size of the guard in it, and the guard
// size that was requested. Their offset differs between versions, so they are found by their values: the block must be
// a possible stack, contain these words, and end shortly after them. In the main thread the block is null. If the words
// are not found, captures query the kernel for each page, as on other stacks.
StackBounds BoundsFromDescriptor() {
  constexpr uintptr_t kSmallest = 0x4000;  // PTHREAD_STACK_MIN
  const DescriptorRange range = ThreadDescriptor();
  uintptr_t readable = 0;
  for (uintptr_t at = range.first; at < range.limit; at += sizeof(uintptr_t)) {
    const uintptr_t last = at + 3 * sizeof(uintptr_t);
    if (last >= readable) {
      const uintptr_t page = last & ~(kPageBytes - 1);
      if (!IsReadable(page)) break;
      readable = page + kPageBytes;
    }
    const uintptr_t block = LoadStackWord(at);
    const uintptr_t bytes = LoadStackWord(at + sizeof(uintptr_t));
    if (block >= range.self || bytes >= block || bytes < kSmallest) continue;
    const uintptr_t high = block + bytes;
    if (high <= last || high - last > range.max_behind) continue;
    const uintptr_t guard = LoadStackWord(at + 2 * sizeof(uintptr_t));
    if (guard % kPageBytes != 0 || guard >= range.self - block) continue;
    if (LoadStackWord(last) > bytes) continue;
    return {block + guard, high & ~uintptr_t{7}};
  }
  return kUnknownBounds;
}

}  // namespace

__thread StackBounds thread_stack_bounds __attribute__((tls_model("initial-exec"))) = {0, 0};

StackBounds FindThreadStackBounds() {
  const KeptErrno kept_errno;
  StackBounds bounds = BoundsFromDescriptor();
  if (bounds.low == bounds.high && getpid() == static_cast<pid_t>(syscall(SYS_gettid))) bounds = MainStackBounds();
  thread_stack_bounds = bounds;
  return bounds;
}

bool CopyReadable(uintptr_t from, void* to, size_t bytes) {
  const KeptErrno kept_errno;
  const iovec target = {to, bytes};
  const iovec source = {reinterpret_cast<void*>(from), bytes};
  const ssize_t copied = syscall(SYS_process_vm_readv, getpid(), &target, 1, &source, 1, 0);
  if (copied >= 0 || errno == EFAULT) return copied == static_cast<ssize_t>(bytes);
  // The process may not make this call.
  for (uintptr_t page = from & ~(kPageBytes - 1); page < from + bytes; page += kPageBytes) {
    if (!IsReadable(page)) return false;
  }
  std::memcpy(to, source.iov_base, bytes);
  return true;
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
