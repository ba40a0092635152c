#include "tests/capture/oracles.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "src/capture/libunwind_backend.h"

namespace capture_test {

using hbmprof::Caller;
using hbmprof::internal::CapturedStack;
using hbmprof::internal::kMaxStackDepth;

namespace {

// Returns whether `pc` is the return address of signal handlers: the trampoline that libc registers with the kernel, or
// on aarch64 the trampoline of the kernel.
#if defined(__aarch64__)
bool IsSignalTrampoline(uintptr_t pc) {
  constexpr uint64_t kReturnFromSignal = 0xd4000001d2801168;  // mov x8, #139; svc #0
  return pc % 4 == 0 && pc != 0 && std::memcmp(reinterpret_cast<const void*>(pc), &kReturnFromSignal, 8) == 0;
}
#else
bool IsSignalTrampoline(uintptr_t pc) {
  static const uintptr_t trampoline = [] {
    struct sigaction old;
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    sigaction(SIGWINCH, &action, &old);
    struct {
      void* handler;
      unsigned long flags;
      uintptr_t restorer;
      uint64_t mask;
    } kernel = {};
    syscall(SYS_rt_sigaction, SIGWINCH, nullptr, &kernel, sizeof(kernel.mask));
    sigaction(SIGWINCH, &old, nullptr);
    return kernel.restorer;
  }();
  return trampoline == pc;
}
#endif

}  // namespace

bool operator==(const Stack& a, const Stack& b) {
  return a.depth == b.depth && std::equal(a.pcs, a.pcs + a.depth, b.pcs);
}

Stack Capture(const hbmprof::internal::StackCapture& capture, const Caller& caller, int max_depth) {
  Stack stack;
  const CapturedStack result = capture.Capture(caller, stack.pcs, max_depth);
  stack.depth = result.depth;
  stack.truncated = result.truncated;
  if (result.pcs != stack.pcs) std::copy(result.pcs, result.pcs + result.depth, stack.pcs);
  return stack;
}

// The first call of backtrace loads a library, which is not allowed in the signal handlers of the tests.
[[maybe_unused]] const int loaded_for_backtrace = [] {
  void* pc;
  return backtrace(&pc, 1);
}();

Stack GlibcStack(const Caller& caller) {
  constexpr int kOwnFrames = 32;
  void* found[kMaxStackDepth + kOwnFrames];
  const int count = backtrace(found, kMaxStackDepth + kOwnFrames);
  Stack stack;
  for (int i = 0; i < count && stack.depth < kMaxStackDepth; ++i) {
    const auto pc = reinterpret_cast<uintptr_t>(found[i]);
    if (stack.depth == 0 && pc != caller.pc) continue;
    const bool is_interrupted = stack.depth > 0 && IsSignalTrampoline(stack.pcs[stack.depth - 1]);
    stack.pcs[stack.depth++] = is_interrupted ? pc + 1 : pc;
  }
  return stack;
}

Stack LibunwindStack(const Caller& caller) {
  Stack stack;
  const auto walk = hbmprof::internal::StepWithLibunwind(caller, stack.pcs, kMaxStackDepth);
  stack.depth = walk.depth;
  stack.truncated = walk.end == hbmprof::internal::WalkEnd::kDepth;
  return stack;
}

std::string Describe(const Stack& stack) {
  std::ostringstream out;
  for (int i = 0; i < stack.depth; ++i) {
    const uintptr_t pc = stack.pcs[i];
    Dl_info info = {};
    dladdr(reinterpret_cast<void*>(pc - 1), &info);
    out << "  " << std::hex << pc << ' ' << (info.dli_sname != nullptr ? info.dli_sname : "?") << ' '
        << (info.dli_fname != nullptr ? info.dli_fname : "?") << " +0x"
        << (info.dli_fbase != nullptr ? pc - 1 - reinterpret_cast<uintptr_t>(info.dli_fbase) : 0) << '\n';
  }
  return out.str();
}

}  // namespace capture_test
