#include "tests/capture/oracles.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <sstream>
#include <type_traits>

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
    if (stack.depth > 0 && IsSignalTrampoline(stack.pcs[stack.depth - 1])) break;
    stack.pcs[stack.depth++] = pc;
  }
  return stack;
}

// Not used on aarch64: with libunwind 1.6.2, a test crashed there inside libunwind. The cause is not known.
#if defined(__x86_64__)
namespace {

// libunwind's binary interface, version 8. The library is loaded into its own scope, because it exports `backtrace` and
// `_Unwind_*`, which must not replace those of glibc.
constexpr int kLibunwindPc = 16;
constexpr int kLibunwindSp = 7;
struct alignas(16) Context {
  unsigned char bytes[1024];  // at least a ucontext_t
};
struct alignas(16) UnwindCursor {
  uint64_t words[127];
};
struct Libunwind {
  int (*get_context)(Context* context);
  int (*init_local)(UnwindCursor* cursor, Context* context);
  int (*step)(UnwindCursor* cursor);
  int (*get_register)(UnwindCursor* cursor, int reg, uintptr_t* value);
  void (*flush_cache)(void* address_space, uintptr_t low, uintptr_t high);
  void** local_address_space;
};
Libunwind libunwind;
std::atomic<bool> is_libunwind_loaded{false};

bool LoadLibunwind() {
  void* library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto find = [library](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, symbol));
    return *function != nullptr;
  };
  return find("_Ux86_64_getcontext", &libunwind.get_context) && find("_ULx86_64_init_local", &libunwind.init_local) &&
         find("_ULx86_64_step", &libunwind.step) && find("_ULx86_64_get_reg", &libunwind.get_register) &&
         find("_Ux86_64_flush_cache", &libunwind.flush_cache) &&
         find("_ULx86_64_local_addr_space", &libunwind.local_address_space);
}

}  // namespace

bool HasLibunwind() {
  static const bool is_loaded = LoadLibunwind();
  if (is_loaded) is_libunwind_loaded.store(true);
  return is_loaded;
}

[[gnu::noinline]] Stack LibunwindStack(const Caller& caller) {
  Stack stack;
  if (!is_libunwind_loaded.load()) return stack;
  Context context;
  UnwindCursor cursor;
  libunwind.flush_cache(*libunwind.local_address_space, 0, 0);
  if (libunwind.get_context(&context) != 0 || libunwind.init_local(&cursor, &context) != 0) return stack;
  do {
    uintptr_t pc = 0;
    uintptr_t sp = 0;
    if (libunwind.get_register(&cursor, kLibunwindPc, &pc) != 0 || pc == 0) break;
    if (libunwind.get_register(&cursor, kLibunwindSp, &sp) != 0) break;
    if (stack.depth == 0 && (pc != caller.pc || sp != caller.sp)) continue;
    if (stack.depth == kMaxStackDepth) {
      stack.truncated = true;
      break;
    }
    if (stack.depth > 0 && IsSignalTrampoline(stack.pcs[stack.depth - 1])) break;
    stack.pcs[stack.depth++] = pc;
  } while (libunwind.step(&cursor) > 0);
  return stack;
}

#else

bool HasLibunwind() { return false; }
Stack LibunwindStack(const Caller&) { return {}; }

#endif

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
