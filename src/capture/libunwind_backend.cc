#include "src/capture/libunwind_backend.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <type_traits>

#include "src/base/forked_child.h"
#include "src/base/no_cancellation.h"
#include "src/capture/rules.h"

#if defined(__SANITIZE_THREAD__)
#define HBMPROF_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HBMPROF_THREAD_SANITIZER 1
#endif
#endif

namespace hbmprof::internal {

// Not used on aarch64: with libunwind 1.6.2, a test of this project crashed there inside libunwind. The cause is not
// known.
#if defined(__x86_64__)
namespace {

// libunwind's binary interface, version 8.
constexpr int kLibunwindPc = 16;
constexpr int kLibunwindSp = 7;
struct alignas(16) Context {
  unsigned char bytes[1024];  // at least a ucontext_t
};
struct alignas(16) UnwindCursor {
  uint64_t words[127];
};

struct Functions {
  int (*backtrace)(void** pcs, int size);
  int (*get_context)(Context* context);
  int (*init_local)(UnwindCursor* cursor, Context* context);
  int (*step)(UnwindCursor* cursor);
  int (*get_register)(UnwindCursor* cursor, int reg, uintptr_t* value);
  void (*flush_cache)(void* address_space, uintptr_t low, uintptr_t high);
  void** local_address_space;
};

// Why libunwind is not loaded; null if it is. Other threads see the first text until the first call of LoadLibunwind
// has returned.
std::atomic<const char*> problem{"another thread is loading it"};
Functions functions;

// unw_backtrace registers a function that runs at thread exit. The thread sanitizer crashes in that function.
#ifdef HBMPROF_THREAD_SANITIZER
constexpr bool kMayUseBacktrace = false;
#else
constexpr bool kMayUseBacktrace = true;
#endif

__thread bool in_libunwind __attribute__((tls_model("initial-exec"))) = false;

// Returns whether the program has no dynamic linker. If such a program loads a library, the library gets a second C
// library, which is not initialized.
bool IsStaticProgram() {
  const auto* headers = reinterpret_cast<const ElfW(Phdr)*>(getauxval(AT_PHDR));
  const unsigned long count = headers == nullptr ? 0 : getauxval(AT_PHNUM);
  return std::none_of(headers, headers + count, [](const ElfW(Phdr) & header) { return header.p_type == PT_INTERP; });
}

bool IsLoaded() { return problem.load(std::memory_order_acquire) == nullptr; }

// Returns the problem, or null if there is none.
const char* Load() {
  if (IsStaticProgram()) return "a static program cannot load it";
  if (IsForkedChild()) return "a forked child cannot load it";
  void* library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "libunwind.so.8 is not installed";
  const auto find = [library](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, symbol));
    return *function != nullptr;
  };
  const bool complete =
      find("unw_backtrace", &functions.backtrace) && find("_Ux86_64_getcontext", &functions.get_context) &&
      find("_ULx86_64_init_local", &functions.init_local) && find("_ULx86_64_step", &functions.step) &&
      find("_ULx86_64_get_reg", &functions.get_register) && find("_Ux86_64_flush_cache", &functions.flush_cache) &&
      find("_ULx86_64_local_addr_space", &functions.local_address_space);
  if (complete) return nullptr;
  dlclose(library);
  return "libunwind.so.8 lacks functions that are needed";
}

}  // namespace

bool LoadLibunwind() {
  static std::atomic<bool> is_tried{false};
  if (!is_tried.exchange(true)) problem.store(Load(), std::memory_order_release);
  return IsLoaded();
}

const char* LibunwindProblem() {
  const char* text = problem.load(std::memory_order_acquire);
  return text != nullptr ? text : "";
}

[[gnu::noinline]] WalkResult StepWithLibunwind(const Caller& caller, uintptr_t* pcs, int max_depth) {
  if (!IsLoaded()) return {0, WalkEnd::kUnknown, {}};
  const int saved_errno = errno;
  const NoCancellation no_cancellation;  // libunwind writes to a pipe, to find out whether memory can be read
  Context context;
  UnwindCursor cursor;
  // Invalidates libunwind's cache of procedure information.
  functions.flush_cache(*functions.local_address_space, 0, 0);
  int depth = 0;
  WalkEnd end = WalkEnd::kOutermost;
  if (functions.get_context(&context) == 0 && functions.init_local(&cursor, &context) == 0) {
    ObjectCheck objects;
    bool is_interrupted = false;
    do {
      uintptr_t pc = 0;
      uintptr_t sp = 0;
      if (functions.get_register(&cursor, kLibunwindPc, &pc) != 0 || pc == 0) break;
      if (functions.get_register(&cursor, kLibunwindSp, &sp) != 0) break;
      if (depth == 0 && (pc != caller.pc || sp != caller.sp)) continue;
      if (depth == max_depth) {
        end = WalkEnd::kDepth;
        break;
      }
      const uintptr_t address = is_interrupted ? pc : pc - 1;
      pcs[depth++] = address + 1;
      is_interrupted = FindRule(address, &objects).kind() == FrameRule::kSignal;
    } while (functions.step(&cursor) > 0);
  }
  errno = saved_errno;
  return {depth, end, {}};
}

// unw_backtrace is about 100 times faster than stepping (0.4 us instead of 46 us for 23 frames), because each thread
// caches the frame layout of each code address for ever. So it would use the layout of an unloaded library for another
// library that is loaded at the same addresses. Therefore stacks are walked by stepping if a library was ever unloaded.
// A signal handler that interrupts unw_backtrace also walks by stepping, because unw_backtrace is not reentrant.
[[gnu::noinline]] WalkResult CaptureWithLibunwind(const Caller& caller, uintptr_t* pcs, int max_depth) {
  constexpr int kOwnFrames = 16;  // between here and the caller
  // libunwind lists the loaded objects under the dynamic linker's lock, which may be held for ever in a forked child.
  if (!IsLoaded() || IsForkedChild()) return {0, WalkEnd::kUnknown, {}};
  if (!kMayUseBacktrace || in_libunwind || UnloadCount() != 0) return StepWithLibunwind(caller, pcs, max_depth);
  uintptr_t found[kMaxStackDepth + kOwnFrames + 1];
  const int capacity = max_depth + kOwnFrames + 1;
  const int saved_errno = errno;
  int count;
  {
    const NoCancellation no_cancellation;
    in_libunwind = true;
    count = functions.backtrace(reinterpret_cast<void**>(found), capacity);
    in_libunwind = false;
  }
  errno = saved_errno;
  uintptr_t* end = found + std::max(count, 0);
  uintptr_t* first = std::find(found, end, caller.pc);
  if (first == end) return StepWithLibunwind(caller, pcs, max_depth);
  while (end[-1] == 0) --end;
  ObjectCheck objects;
  int depth = 0;
  bool is_interrupted = false;
  for (uintptr_t* pc = first; pc != end; ++pc) {
    if (depth == max_depth) return {depth, WalkEnd::kDepth, {}};
    const uintptr_t address = is_interrupted ? *pc : *pc - 1;
    pcs[depth++] = address + 1;
    is_interrupted = FindRule(address, &objects).kind() == FrameRule::kSignal;
  }
  return {depth, WalkEnd::kOutermost, {}};
}

#else

bool LoadLibunwind() { return false; }
const char* LibunwindProblem() { return "it is used on x86-64 only"; }
WalkResult StepWithLibunwind(const Caller&, uintptr_t*, int) { return {0, WalkEnd::kUnknown, {}}; }
WalkResult CaptureWithLibunwind(const Caller&, uintptr_t*, int) { return {0, WalkEnd::kUnknown, {}}; }

#endif

}  // namespace hbmprof::internal
