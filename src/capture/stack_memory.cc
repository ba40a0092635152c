#include "src/capture/stack_memory.h"

#include <pthread.h>
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

StackBounds MainStackBounds() {
  const auto end = reinterpret_cast<uintptr_t>(__libc_stack_end) & ~uintptr_t{7};
  rlimit limit;
  uintptr_t bytes = kMainStackGap;
  if (getrlimit(RLIMIT_STACK, &limit) == 0) bytes = std::min<uintptr_t>(bytes, limit.rlim_cur);
  return {end - std::min(bytes, end), end};
}

StackBounds AskForBounds() {
  // Never pthread_getattr_np on the main thread: it parses /proc/self/maps, milliseconds in a large process.
  if (getpid() == static_cast<pid_t>(syscall(SYS_gettid))) return MainStackBounds();
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {1, 1};
  void* address = nullptr;
  size_t bytes = 0;
  const int error = pthread_attr_getstack(&attributes, &address, &bytes);
  pthread_attr_destroy(&attributes);
  if (error != 0) return {1, 1};
  const auto low = reinterpret_cast<uintptr_t>(address);
  return {low, (low + bytes) & ~uintptr_t{7}};
}

// Asks the kernel, which reads the signal set before it rejects the operation. Async-signal-safe; leaves errno alone.
bool IsReadable(uintptr_t address) {
  const int saved_errno = errno;
  const bool readable = syscall(SYS_rt_sigprocmask, ~0L, address, nullptr, 8) != -1 || errno != EFAULT;
  errno = saved_errno;
  return readable;
}

}  // namespace

__thread StackBounds thread_stack_bounds __attribute__((tls_model("initial-exec"))) = {0, 0};

StackBounds FindThreadStackBounds() {
  const int saved_errno = errno;
  const StackBounds bounds = AskForBounds();
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
