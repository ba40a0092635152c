// Compiled several times, see scenarios.h. SCENARIO_SET is a different name each time.
#include "tests/capture/scenarios.h"

#include <alloca.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#define SCENARIO_STRING2(x) #x
#define SCENARIO_STRING(x) SCENARIO_STRING2(x)
#define NOINLINE __attribute__((noinline))

namespace capture_test {
namespace SCENARIO_SET {
namespace {

Probe current_probe;
volatile int sink;

// Prevents that the compiler makes a tail call of the call before it.
#define CALL_PROBE() \
  do {               \
    current_probe(); \
    sink = sink + 1; \
  } while (0)

NOINLINE void Touch(void* memory, size_t bytes) {
  memset(memory, 1, bytes);
  sink = sink + static_cast<volatile char*>(memory)[bytes / 2];
}

NOINLINE void Direct() { CALL_PROBE(); }

NOINLINE int Recurse(int depth, uint64_t seed) {
  char* block = static_cast<char*>(alloca(16 + seed % 700));
  Touch(block, 16 + seed % 700);
  if (depth == 0) {
    CALL_PROBE();
    return block[0];
  }
  return Recurse(depth - 1, seed * 6364136223846793005u + 1442695040888963407u) + block[1];
}
NOINLINE void DeepRecursion() {
  for (int depth : {1, 5, 60, 300}) sink = sink + Recurse(depth, 12345 + static_cast<uint64_t>(depth));
}

NOINLINE void HugeFrame() {
  char block[1 << 20];
  Touch(block, sizeof(block));
  CALL_PROBE();
  Touch(block, sizeof(block));
}

// Has more live values than registers, so that every callee-saved register is pushed, including rbp.
NOINLINE long ManyRegisters(long a, long b, long c, long d, long e, long f) {
  const long g = a * b, h = c * d, i = e * f, j = a ^ f, k = b + e, l = c - d, m = g * h;
  CALL_PROBE();
  const long n = a + b + c + d + e + f + g + h + i + j + k + l + m;
  CALL_PROBE();
  return n * g * h * i * j * k * l * m;
}
NOINLINE void CalleeSavedRegisters() { sink = static_cast<int>(ManyRegisters(sink, 2, 3, 4, 5, sink)); }

// With early exits, the prologue is not at the start of the function.
NOINLINE int ShrinkWrapped(int n) {
  if (n == 0) return 1;
  char block[200];
  Touch(block, sizeof(block));
  if (n % 2 == 0) {
    CALL_PROBE();
    return block[3];
  }
  CALL_PROBE();
  return ShrinkWrapped(n - 1) + block[n % 100];
}
NOINLINE void EarlyExits() { sink = ShrinkWrapped(7) + ShrinkWrapped(0); }

struct alignas(64) Line {
  char bytes[128];
};
NOINLINE int Realigned(int n) {
  Line line;
  char* block = static_cast<char*>(alloca(static_cast<size_t>(n) * 24 + 8));
  Touch(&line, sizeof(line));
  Touch(block, static_cast<size_t>(n) * 24 + 8);
  if (n > 0) {
    const int inner = Realigned(n - 1);
    return inner + line.bytes[n];
  }
  CALL_PROBE();
  return line.bytes[0] + block[0];
}
NOINLINE void RealignedStack() { sink = Realigned(9); }

struct Base {
  virtual ~Base() = default;
  virtual void Go(int depth) = 0;
};
struct Left : Base {
  std::unique_ptr<Base> next;
  void Go(int depth) override;
};
struct Right : Base {
  char padding[300];
  void Go(int depth) override;
};
NOINLINE void Left::Go(int depth) {
  if (depth == 0) {
    CALL_PROBE();
    return;
  }
  std::unique_ptr<Base> right(new Right);
  right->Go(depth - 1);
  sink = sink + 1;
}
NOINLINE void Right::Go(int depth) {
  Touch(padding, sizeof(padding));
  std::unique_ptr<Base> left(new Left);
  std::function<void(int)> hop = [&left](int d) {
    left->Go(d);
    sink = sink + 1;
  };
  hop(depth);
  sink = sink + 1;
}
NOINLINE void VirtualAndFunctionCalls() { Right().Go(8); }

NOINLINE int CompareAndProbe(const void* a, const void* b) {
  CALL_PROBE();
  return *static_cast<const int*>(a) - *static_cast<const int*>(b);
}
NOINLINE void LibraryCallbacks() {
  int values[] = {5, 3, 9, 1, 7, 2};
  qsort(values, 6, sizeof(int), CompareAndProbe);
  const int key = 7;
  sink = bsearch(&key, values, 6, sizeof(int), CompareAndProbe) != nullptr;
  std::sort(values, values + 6, [](int a, int b) {
    CALL_PROBE();
    return a > b;
  });
  std::set<int, bool (*)(const int&, const int&)> set([](const int& a, const int& b) {
    CALL_PROBE();
    return a < b;
  });
  for (int value : values) set.insert(value);
}

NOINLINE void CallOnce() {
  std::once_flag flag;
  std::call_once(flag, [] { CALL_PROBE(); });
}

// A buffer whose overflow function a stream calls from deep inside the C++ library.
struct ProbingBuffer : std::streambuf {
  int_type overflow(int_type c) override {
    CALL_PROBE();
    return c;
  }
};
NOINLINE void StreamOverflow() {
  ProbingBuffer buffer;
  std::ostream stream(&buffer);
  stream << 12345 << ' ' << 1.5 << std::endl;
}

ssize_t CookieWrite(void*, const char*, size_t bytes) {
  CALL_PROBE();
  return static_cast<ssize_t>(bytes);
}
NOINLINE void StdioCookie() {
  cookie_io_functions_t functions = {};
  functions.write = CookieWrite;
  FILE* file = fopencookie(nullptr, "w", functions);
  setvbuf(file, nullptr, _IONBF, 0);
  fprintf(file, "%d %s\n", 42, "text");
  fclose(file);
}

struct ProbeOnDestruction {
  ~ProbeOnDestruction() { CALL_PROBE(); }
};
NOINLINE void Throw(int depth) {
  ProbeOnDestruction probe;
  if (depth == 0) throw std::runtime_error("on its way");
  Throw(depth - 1);
  sink = sink + 1;
}
NOINLINE void Exceptions() {
  try {
    Throw(5);
  } catch (const std::exception& error) {
    CALL_PROBE();
    sink = sink + error.what()[0];
    try {
      Throw(2);
    } catch (...) {
      CALL_PROBE();
    }
  }
  CALL_PROBE();
}

// The return address of a call that does not return may be in the next function.
[[noreturn]] NOINLINE void ProbeAndThrow() {
  CALL_PROBE();
  throw 1;
}
NOINLINE void EndsInNoReturn() { ProbeAndThrow(); }
NOINLINE void NoReturnCall() {
  try {
    EndsInNoReturn();
  } catch (int) {
    CALL_PROBE();
  }
}

NOINLINE int TailTarget(int n) {
  CALL_PROBE();
  return n + 1;
}
NOINLINE int TailCaller(int n) {
  if (n > 5) return TailTarget(n);
  return TailCaller(n + 1);
}
NOINLINE void TailCalls() {
  sink = TailCaller(0);
  CALL_PROBE();
}

void OnSignal(int) { CALL_PROBE(); }
void OnSignalWithInfo(int, siginfo_t*, void*) { CALL_PROBE(); }
void WithHandler(int flags, int signal) {
  struct sigaction action = {};
  struct sigaction old;
  if ((flags & SA_SIGINFO) != 0) {
    action.sa_sigaction = OnSignalWithInfo;
  } else {
    action.sa_handler = OnSignal;
  }
  action.sa_flags = flags;
  sigaction(signal, &action, &old);
  raise(signal);
  sink = sink + Recurse(0, 77);
  raise(signal);
  sigaction(signal, &old, nullptr);
}
NOINLINE void SignalHandlers() {
  WithHandler(0, SIGUSR1);
  WithHandler(SA_SIGINFO | SA_NODEFER, SIGUSR2);
}
NOINLINE void AlternateSignalStack() {
  constexpr size_t kBytes = 1 << 20;
  std::unique_ptr<char[]> memory(new char[kBytes]);
  stack_t stack = {};
  stack_t old;
  stack.ss_sp = memory.get();
  stack.ss_size = kBytes;
  sigaltstack(&stack, &old);
  WithHandler(SA_ONSTACK | SA_SIGINFO, SIGUSR1);
  sigaltstack(&old, nullptr);
}

// A fault at the first instruction of a function without a frame.
void OnFault(int, siginfo_t*, void* context) {
  CALL_PROBE();
  auto* c = static_cast<ucontext_t*>(context);
#if defined(__aarch64__)
  c->uc_mcontext.pc += 4;  // past udf
#else
  c->uc_mcontext.gregs[REG_RIP] += 2;  // past ud2
#endif
}
#if defined(__aarch64__)
NOINLINE void Fault() { asm volatile("udf #0"); }
#else
NOINLINE void Fault() { asm volatile("ud2"); }
#endif
NOINLINE void Faults() {
  struct sigaction action = {};
  struct sigaction old;
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &old);
  Fault();
  sink = sink + 1;
  sigaction(SIGILL, &old, nullptr);
}

ucontext_t main_context;
ucontext_t fiber_context;
void FiberBody() {
  CALL_PROBE();
  sink = sink + Recurse(20, 99);
  swapcontext(&fiber_context, &main_context);
  CALL_PROBE();
}
NOINLINE void Fibers() {
  constexpr size_t kBytes = 1 << 18;
  std::unique_ptr<char[]> memory(new char[kBytes]);
  getcontext(&fiber_context);
  fiber_context.uc_stack.ss_sp = memory.get();
  fiber_context.uc_stack.ss_size = kBytes;
  fiber_context.uc_link = &main_context;
  makecontext(&fiber_context, FiberBody, 0);
  swapcontext(&main_context, &fiber_context);
  CALL_PROBE();
  swapcontext(&main_context, &fiber_context);
}

NOINLINE void Threads() {
  std::thread thread([] {
    CALL_PROBE();
    sink = sink + Recurse(10, 3);
  });
  thread.join();
}

struct Scenario {
  const char* name;
  void (*run)();
};
const Scenario kScenarios[] = {
    {"a direct call", Direct},
    {"deep recursion with frames of varying size", DeepRecursion},
    {"a frame of a mebibyte", HugeFrame},
    {"all callee-saved registers in use", CalleeSavedRegisters},
    {"early exits before the prologue", EarlyExits},
    {"realigned stacks", RealignedStack},
    {"virtual and std::function calls", VirtualAndFunctionCalls},
    {"callbacks from libraries", LibraryCallbacks},
    {"std::call_once", CallOnce},
    {"a stream's overflow", StreamOverflow},
    {"a stdio cookie", StdioCookie},
    {"exceptions on their way", Exceptions},
    {"a call that does not return", NoReturnCall},
    {"tail calls", TailCalls},
    {"signal handlers", SignalHandlers},
    {"an alternate signal stack", AlternateSignalStack},
    {"a fault at a function's start", Faults},
    {"fibers", Fibers},
    {"threads", Threads},
};

using Step = int (*)(uint64_t seed, int depth, void* chain);
constexpr int kFunctions = 128;
const Step* steps;

// Each instance is a function with a frame of a different size and two call sites.
template <int kNumber>
NOINLINE int Link(uint64_t seed, int depth, void* chain) {
  if (depth == 0) {
    CALL_PROBE();
    return kNumber;
  }
  char block[8 + kNumber * 24 % 400];
  block[kNumber % 8] = static_cast<char>(seed);
  const Step next = steps[seed % kFunctions];
  const bool second = (seed >> 32) % 2 != 0;
  const uint64_t next_seed = seed * 6364136223846793005u + 1442695040888963407u;
  int result;
  if constexpr (kNumber % 3 == 0) {
    // Needs another set of callee-saved registers.
    const long a = sink, b = a * 3, c = b ^ a, d = c + 7, e = d * b;
    result = second ? next(next_seed, depth - 1, block) + 1 : next(next_seed, depth - 1, chain);
    result += static_cast<int>(a + b * c - d * e);
  } else if constexpr (kNumber % 7 == 0) {
    Line line;
    Touch(&line, sizeof(line));
    result = next(next_seed, depth - 1, &line) + line.bytes[5];
  } else if constexpr (kNumber % 11 == 0) {
    char* extra = static_cast<char*>(alloca(8 + seed % 512));
    result = next(next_seed, depth - 1, extra) + (second ? 1 : 2);
  } else {
    result = second ? next(next_seed, depth - 1, block) + 1 : next(next_seed, depth - 1, chain);
  }
  sink = sink + block[kNumber % 8];
  return result;
}

template <int... kNumbers>
struct StepTable {
  Step steps[sizeof...(kNumbers)] = {Link<kNumbers>...};
};
template <int... kNumbers>
constexpr StepTable<kNumbers...> MakeSteps(std::integer_sequence<int, kNumbers...>) {
  return {};
}
const auto kStepTable = MakeSteps(std::make_integer_sequence<int, kFunctions>());

}  // namespace

NOINLINE void RandomChain(uint64_t seed, int depth, Probe probe) {
  current_probe = probe;
  steps = kStepTable.steps;
  sink = sink + steps[seed % kFunctions](seed * 0x9e3779b97f4a7c15u >> 3, depth, nullptr);
}

NOINLINE void RunScenario(int index, Probe probe) {
  current_probe = probe;
  kScenarios[index].run();
  sink = sink + 1;
}

ScenarioSet Set() {
  ScenarioSet set;
  set.name = SCENARIO_STRING(SCENARIO_SET);
  for (const Scenario& scenario : kScenarios) set.scenarios.push_back(scenario.name);
  set.run = RunScenario;
  set.random_chain = RandomChain;
  return set;
}

}  // namespace SCENARIO_SET
}  // namespace capture_test
