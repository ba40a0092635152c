// Compares captured stacks with those of glibc and of libunwind, frame by frame.
#include "src/capture/capture.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "src/capture/paths/paths.h"
#include "src/capture/walk.h"
#include "tests/capture/oracles.h"
#include "tests/capture/scenarios.h"
#include "tests/support/made_code.h"
#include "tests/support/sanitized.h"

namespace capture_test {

// ctest shows it beside the test's name.
void PrintTo(const ScenarioSet& set, std::ostream* out) { *out << set.name; }

namespace {

using hbmprof::Caller;
using hbmprof::Unwinder;
using hbmprof::internal::CapturedStack;
using hbmprof::internal::kMaxStackDepth;
using hbmprof::internal::PathCache;
using hbmprof::internal::StackCapture;
using hbmprof::internal::WalkByRules;
using hbmprof::internal::WalkEnd;
using hbmprof::internal::WalkResult;

const StackCapture& Auto() {
  static const StackCapture capture(Unwinder::kAuto);
  return capture;
}
const StackCapture& FramePointers() {
  static const StackCapture capture(Unwinder::kFramePointer);
  return capture;
}
const bool has_libunwind = HasLibunwind();

// The results of probes. Probes may run in signal handlers, so this needs no memory from malloc.
struct Found {
  std::atomic<int> probes;
  std::atomic<int> differences;
  Stack expected;
  Stack actual;
  const char* expected_by;
  const char* actual_by;
};
Found found;

void Compare(const Stack& expected, const char* expected_by, const Stack& actual, const char* actual_by) {
  if (expected == actual) return;
  if (found.differences.fetch_add(1) != 0) return;
  found.expected = expected;
  found.actual = actual;
  found.expected_by = expected_by;
  found.actual_by = actual_by;
}

[[gnu::noinline]] void ProbeAll() {
  const Caller caller = Caller::OfThisFunction();
  found.probes.fetch_add(1);
  const Stack rules = Capture(Auto(), caller);
  Compare(GlibcStack(caller), "glibc", rules, "rules");
  // By rules only.
  Stack alone;
  const WalkResult walk = WalkByRules(caller, alone.pcs, kMaxStackDepth);
  EXPECT_NE(walk.end, WalkEnd::kUnknown);
  EXPECT_FALSE(walk.is_guessed);
  alone.depth = walk.depth;
  Compare(rules, "auto", alone, "rules alone");
  if (has_libunwind) Compare(LibunwindStack(caller), "libunwind", rules, "rules");
}

[[gnu::noinline]] void ProbeRulesRepeatedly() {
  const Caller caller = Caller::OfThisFunction();
  found.probes.fetch_add(1);
  const Stack expected = GlibcStack(caller);
  // Often enough for the stack to be cached.
  for (int i = 0; i < 4; ++i) Compare(expected, "glibc", Capture(Auto(), caller), "rules");
}

// The stack of the constructor of start_library.cc, found in each way.
struct StartStacks {
  Stack rules;
  Stack glibc;
  Stack libunwind;
};
StartStacks* at_start = nullptr;  // set before the constructors of this program run

[[gnu::noinline]] void CaptureOnly() {
  uintptr_t pcs[kMaxStackDepth];
  EXPECT_GT(Auto().Capture(Caller::OfThisFunction(), pcs, kMaxStackDepth).depth, 2);
}

extern "C" int capture_start_library();

// Runs before the constructors of this program.
extern "C" [[gnu::visibility("default"), gnu::noinline]] void capture_at_start() {
  if (hbmprof_test::kSanitized) return;  // the sanitizer may not be initialized yet
  const Caller caller = Caller::OfThisFunction();
  at_start = new StartStacks;  // never deleted
  at_start->rules = Capture(Auto(), caller);
  at_start->glibc = GlibcStack(caller);
  if (HasLibunwind()) at_start->libunwind = LibunwindStack(caller);
}

TEST(CaptureTest, StackOfAConstructorAtProgramStartIsComplete) {
  ASSERT_EQ(capture_start_library(), 1);
  if (hbmprof_test::kSanitized) GTEST_SKIP() << "the sanitizer is not initialized when the constructor runs";
  const Stack& rules = at_start->rules;
  EXPECT_GT(rules.depth, 3) << Describe(rules);
  EXPECT_FALSE(rules.truncated) << Describe(rules);
  EXPECT_TRUE(rules == at_start->glibc) << Describe(rules) << "glibc:\n" << Describe(at_start->glibc);
  if (!has_libunwind) return;
  EXPECT_TRUE(rules == at_start->libunwind) << Describe(rules) << "libunwind:\n" << Describe(at_start->libunwind);
}

// Success if there was at least one probe since the last call and none found a difference.
testing::AssertionResult NoDifference() {
  const int probes = found.probes.exchange(0);
  const int differences = found.differences.exchange(0);
  if (probes == 0) return testing::AssertionFailure() << "the probe was never called";
  if (differences == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << differences << " differences in " << probes << " probes, the first:\n"
                                     << found.expected_by << ":\n"
                                     << Describe(found.expected) << found.actual_by << ":\n"
                                     << Describe(found.actual);
}

void RunAllScenarios(Probe probe) {
  for (const ScenarioSet& set : ScenarioSets()) {
    for (size_t i = 0; i < set.scenarios.size(); ++i) set.run(static_cast<int>(i), probe);
  }
}

class ScenarioTest : public testing::TestWithParam<ScenarioSet> {};
TEST_P(ScenarioTest, AllUnwindersFindTheSameFrames) {
  for (size_t i = 0; i < GetParam().scenarios.size(); ++i) {
    SCOPED_TRACE(GetParam().scenarios[i]);
    GetParam().run(static_cast<int>(i), ProbeAll);
    EXPECT_TRUE(NoDifference());
    // Again, with all rules known.
    GetParam().run(static_cast<int>(i), ProbeAll);
    EXPECT_TRUE(NoDifference());
  }
}
INSTANTIATE_TEST_SUITE_P(Code, ScenarioTest, testing::ValuesIn(ScenarioSets()),
                         [](const auto& info) { return info.param.name; });

TEST(CaptureTest, RandomStacksEqualGlibcStacks) {
  // The paths of these stacks fill about half of the process's table of paths. The rest is for the other tests.
  constexpr int kStacks = 2000;
  uint64_t seed = 1;
  for (const ScenarioSet& set : ScenarioSets()) {
    for (int i = 0; i < kStacks; ++i) {
      ++seed;
      set.random_chain(seed, static_cast<int>(seed % 41), ProbeRulesRepeatedly);
    }
    EXPECT_TRUE(NoDifference()) << set.name;
  }
}

TEST(CaptureTest, RandomStacksEqualGlibcStacksInManyThreads) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      // One set per thread, because a set has one probe.
      const std::vector<ScenarioSet> sets = ScenarioSets();
      for (uint64_t i = 0; i < 2000; ++i) sets[t % sets.size()].random_chain(i % 200 + t, 20, ProbeRulesRepeatedly);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(NoDifference());
}

// The paths that one thread was given, with their frames.
struct ThreadPaths {
  std::map<const hbmprof::internal::Path*, std::vector<uintptr_t>> frames;
  int64_t captures = 0;
  int64_t with_path = 0;
  int64_t wrong = 0;
};
thread_local ThreadPaths thread_paths;

[[gnu::noinline]] void ProbePath() {
  const Caller caller = Caller::OfThisFunction();
  uintptr_t buffer[kMaxStackDepth];
  const auto stack = Auto().Capture(caller, buffer, kMaxStackDepth);
  ++thread_paths.captures;
  if (stack.path == nullptr) return;
  ++thread_paths.with_path;
  uintptr_t walked[kMaxStackDepth];
  const WalkResult walk = WalkByRules(caller, walked, kMaxStackDepth);
  const std::vector<uintptr_t> now(walked, walked + walk.depth);
  const bool is_present = std::equal(now.begin(), now.end(), stack.pcs, stack.pcs + stack.depth);
  const bool is_same = thread_paths.frames.try_emplace(stack.path, now).first->second == now;
  if (!is_present || !is_same) ++thread_paths.wrong;
}

TEST(PathCacheTest, HoldsStacksOfAnyDepth) {
  for (const int depth : {100, 300, 2 * kMaxStackDepth}) {
    thread_paths = {};
    for (int i = 0; i < 8; ++i) ScenarioSets()[0].random_chain(3, depth, ProbePath);
    EXPECT_GE(thread_paths.with_path, 4) << depth << " frames";
    EXPECT_EQ(thread_paths.wrong, 0) << depth << " frames";
  }
}

// HBMPROF_TEST_ROUNDS is the number of rounds, 4 by default. A round has 40,000 captures.
TEST(PathCacheTest, DistinguishesHundredsOfStacksOfOneCaller) {
  const char* given = std::getenv("HBMPROF_TEST_ROUNDS");
  const int rounds = given != nullptr ? std::atoi(given) : 4;
  const std::vector<ScenarioSet> sets = ScenarioSets();
  std::vector<std::thread> threads;
  std::atomic<int64_t> captures{0};
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int round = 0; round < rounds; ++round) {
        const ScenarioSet& set = sets[(t + static_cast<size_t>(round)) % sets.size()];
        // A path is learned after a few captures of its stack, and not while another thread is adding one. So a busy
        // machine may need several attempts.
        for (int attempt = 0; attempt < 50; ++attempt) {
          thread_paths = {};
          for (int i = 0; i < 10000; ++i) set.random_chain(random() % 300, 17, ProbePath);
          EXPECT_EQ(thread_paths.wrong, 0) << set.name;
          captures += thread_paths.captures;
          if (thread_paths.with_path > thread_paths.captures / 4 && thread_paths.frames.size() >= 200) break;
        }
        EXPECT_GT(thread_paths.with_path, thread_paths.captures / 4) << set.name;
        EXPECT_GE(thread_paths.frames.size(), 200u) << set.name;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(captures.load(), rounds * 40000);
}

#if defined(__x86_64__)
// Calls function() with a frame pointer register that holds the address of a false frame record: two words that look
// like a saved frame pointer and a return address, and are not those of a frame.
asm(R"(
  .text
  .type capture_test_call_with_false_record, @function
capture_test_call_with_false_record:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  subq $32, %rsp
  .cfi_def_cfa_offset 48
  leaq 1f(%rip), %rax
  movq %rsp, (%rsp)
  movq %rax, 8(%rsp)
  movq %rsp, %rbp
  call *%rdi
1:
  addq $32, %rsp
  .cfi_def_cfa_offset 16
  popq %rbp
  .cfi_def_cfa_offset 8
  ret
  .cfi_endproc
  .size capture_test_call_with_false_record, . - capture_test_call_with_false_record
)");
extern "C" void capture_test_call_with_false_record(Probe function);
#endif

// A chain of calls through code of different kinds. Each hop is a call through a set or through hand-written code. A
// set occurs at most once in a chain, because it has only one probe. A signal frame also occurs at most once.
struct MixedChain {
  static constexpr size_t kMostHops = 7;
  struct Hop {
    const char* scenario;  // of `set`; null: `set->random_chain`
    void (*call)(Probe);   // hand-written code; null: `set`
    const ScenarioSet* set;
    uint64_t seed;
  };
  Hop hops[kMostHops];
  size_t count = 0;
  size_t next = 0;

  MixedChain(const std::vector<ScenarioSet>& sets, uint64_t seed) {
    static constexpr const char* kScenarios[] = {
        "all callee-saved registers in use", "early exits before the prologue", "realigned stacks", "tail calls",
        "a fault at a function's start",  // a stack begins at its signal handler
    };
    std::mt19937_64 random(seed);
    std::vector<const ScenarioSet*> unused;
    for (const ScenarioSet& set : sets) unused.push_back(&set);
    std::shuffle(unused.begin(), unused.end(), random);
    bool has_signal = false;
    for (count = 0; count < kMostHops && !unused.empty(); ++count) {
      Hop& hop = hops[count] = {nullptr, nullptr, unused.back(), random()};
      const uint64_t kind = random() % 8;
      if (kind < std::size(kScenarios)) {
        hop.scenario = kScenarios[kind];
        const bool is_signal = kind + 1 == std::size(kScenarios);
        if (is_signal && has_signal) hop.scenario = nullptr;
        has_signal = has_signal || is_signal;
      }
#if defined(__x86_64__)
      if (kind == 5) hop.call = capture_test_call_with_false_record;
#endif
      if (hop.call == nullptr) unused.pop_back();
    }
  }
};
MixedChain* mixed;

[[gnu::noinline]] void MakeNextHop() {
  if (mixed->next == mixed->count) {
    ProbeRulesRepeatedly();
    const Caller caller = Caller::OfThisFunction();
    if (has_libunwind) Compare(LibunwindStack(caller), "libunwind", Capture(Auto(), caller), "rules");
    return;
  }
  const MixedChain::Hop& hop = mixed->hops[mixed->next++];
  if (hop.call != nullptr) {
    hop.call(MakeNextHop);
  } else if (hop.scenario == nullptr) {
    hop.set->random_chain(hop.seed, static_cast<int>(hop.seed % 9), MakeNextHop);
  } else {
    const std::vector<const char*>& scenarios = hop.set->scenarios;
    const auto found_at = std::find(scenarios.begin(), scenarios.end(), std::string_view(hop.scenario));
    hop.set->run(static_cast<int>(found_at - scenarios.begin()), MakeNextHop);
  }
  --mixed->next;
}

// In these chains, a frame pointer register often does not lead to a frame. Each chain is captured often enough for its
// path to be cached.
TEST(CaptureTest, RandomChainsOfMixedCodeAreExact) {
  ProbeAll();  // the first backtrace of glibc loads a library, which is not allowed in a handler
  const std::vector<ScenarioSet> sets = ScenarioSets();
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    MixedChain chain(sets, seed);
    mixed = &chain;
    for (int i = 0; i < 3; ++i) MakeNextHop();
    ASSERT_TRUE(NoDifference()) << "seed " << seed;
  }
}

// How many stacks each unwinder finds completely, compared with glibc.
struct Coverage {
  long stacks;
  long rules;  // without guesses
  long automatic;
  long libunwind;
};
Coverage coverage;
[[gnu::noinline]] void ProbeCoverage() {
  const Caller caller = Caller::OfThisFunction();
  const Stack expected = GlibcStack(caller);
  Stack rules;
  const WalkResult walk = WalkByRules(caller, rules.pcs, kMaxStackDepth);
  rules.depth = walk.depth;
  ++coverage.stacks;
  coverage.rules += !walk.is_guessed && rules == expected;
  coverage.automatic += Capture(Auto(), caller) == expected;
  coverage.libunwind += has_libunwind && LibunwindStack(caller) == expected;
}
Coverage PrintCoverage(const char* of) {
  std::printf("%s: %ld stacks; whole by rules alone %ld, by auto %ld, by libunwind %ld\n", of, coverage.stacks,
              coverage.rules, coverage.automatic, coverage.libunwind);
  return std::exchange(coverage, {});
}
TEST(CoverageTest, AllStacksAreComplete) {
  RunAllScenarios(ProbeCoverage);
  const Coverage scenarios = PrintCoverage("scenarios");
  EXPECT_EQ(scenarios.automatic, scenarios.stacks);
  for (const ScenarioSet& set : ScenarioSets()) {
    for (uint64_t seed = 0; seed < 500; ++seed) set.random_chain(seed, 25, ProbeCoverage);
  }
  const Coverage chains = PrintCoverage("random chains");
  EXPECT_EQ(chains.automatic, chains.stacks);
}

struct DepthProbe {
  int max_depth;
  Stack full;
  Stack cut;
};
DepthProbe depth_probe;
template <const StackCapture& (*kCapture)()>
[[gnu::noinline]] void ProbeDepth() {
  const Caller caller = Caller::OfThisFunction();
  depth_probe.full = Capture(kCapture(), caller);
  const int max_depth = depth_probe.max_depth;
  uintptr_t pcs[kMaxStackDepth + 1];
  pcs[max_depth] = 0x1234;
  const CapturedStack result = kCapture().Capture(caller, pcs, max_depth);
  EXPECT_EQ(pcs[max_depth], 0x1234u) << "written past max_depth";
  depth_probe.cut.depth = result.depth;
  depth_probe.cut.truncated = result.truncated;
  std::copy(result.pcs, result.pcs + result.depth, depth_probe.cut.pcs);
}
template <const StackCapture& (*kCapture)()>
void CheckDepths() {
  const ScenarioSet set = ScenarioSets()[0];
  depth_probe.max_depth = kMaxStackDepth;
  set.random_chain(1, 30, ProbeDepth<kCapture>);
  const int whole = depth_probe.full.depth;
  ASSERT_GT(whole, 30);
  for (const int max_depth : {0, 1, 2, whole - 1, whole, whole + 1}) {
    depth_probe.max_depth = max_depth;
    set.random_chain(1, 30, ProbeDepth<kCapture>);
    const Stack& cut = depth_probe.cut;
    EXPECT_EQ(cut.depth, std::min(max_depth, whole));
    EXPECT_EQ(cut.truncated, 0 < max_depth && max_depth < whole) << max_depth << " of " << whole;
    EXPECT_TRUE(std::equal(cut.pcs, cut.pcs + cut.depth, depth_probe.full.pcs));
  }
}
TEST(DepthTest, RulesTruncateAtMaxDepth) { CheckDepths<Auto>(); }
TEST(DepthTest, IsAtMostMaxStackDepth) {
  depth_probe.max_depth = kMaxStackDepth;
  ScenarioSets()[0].random_chain(5, 2 * kMaxStackDepth, ProbeDepth<Auto>);
  EXPECT_EQ(depth_probe.cut.depth, kMaxStackDepth);
  EXPECT_TRUE(depth_probe.cut.truncated);
}

[[gnu::noinline]] void ProbeFramePointers() {
  const Caller caller = Caller::OfThisFunction();
  found.probes.fetch_add(1);
  // The caller of main has no frame pointer, so the walk ends there.
  Stack expected = GlibcStack(caller);
  const Stack actual = Capture(FramePointers(), caller);
  EXPECT_GT(actual.depth, 20);
  EXPECT_LE(actual.depth, expected.depth);
  expected.depth = actual.depth;
  Compare(expected, "glibc", actual, "frame pointers");
}
TEST(FramePointerTest, FindsFramesOfCodeWithFramePointers) {
  for (const ScenarioSet& set : ScenarioSets()) {
    if (std::string(set.name).find("_fp") == std::string::npos) continue;
    for (uint64_t seed = 1; seed < 500; ++seed) set.random_chain(seed, 20, ProbeFramePointers);
    EXPECT_TRUE(NoDifference()) << set.name;
  }
}
[[gnu::noinline]] void ProbeFramePointersSafely() {
  const Caller caller = Caller::OfThisFunction();
  found.probes.fetch_add(1);
  const Stack actual = Capture(FramePointers(), caller);
  ASSERT_GE(actual.depth, 1);
  EXPECT_EQ(actual.pcs[0], caller.pc);
}
TEST(FramePointerTest, DoesNotCrashInCodeWithoutFramePointers) {
  RunAllScenarios(ProbeFramePointersSafely);
  EXPECT_TRUE(NoDifference());
}
TEST(FramePointerTest, InvalidFramePointerEndsTheWalk) {
  Caller caller = Caller::OfThisFunction();
  for (const uintptr_t fp : {uintptr_t{0}, uintptr_t{1}, caller.sp - 8, caller.sp + 3, ~uintptr_t{7},
                             uintptr_t{0x7fffffffeff8}, caller.sp + (uintptr_t{1} << 30)}) {
    caller.fp = fp;
    EXPECT_EQ(Capture(FramePointers(), caller).depth, 1) << fp;
  }
}

TEST(RulesTest, StackThatDoesNotFitEndsTheWalk) {
  // The rule of a frame is applied to stacks of zeros, of ones, and of addresses where nothing is mapped.
  for (const uintptr_t word : {uintptr_t{0}, uintptr_t{1}, ~uintptr_t{0}, uintptr_t{0x100000}}) {
    std::vector<uintptr_t> words(4096, word);
    Caller caller = Caller::OfThisFunction();
    caller.sp = reinterpret_cast<uintptr_t>(words.data());
    caller.fp = reinterpret_cast<uintptr_t>(words.data() + 64);
    const Stack stack = Capture(Auto(), caller);
    ASSERT_GE(stack.depth, 1);
    EXPECT_EQ(stack.pcs[0], caller.pc);
  }
}

int64_t AddressSpacePages() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages;
}
TEST(PathCacheTest, EndedThreadsLeaveTheirPagesToOthers) {
  const ScenarioSet set = ScenarioSets()[0];
  const auto run_threads = [&set](int count) {
    for (int i = 0; i < count; ++i) {
      std::thread([&set] {
        for (int j = 0; j < 40; ++j) set.random_chain(7, 20, ProbeRulesRepeatedly);
      }).join();
    }
  };
  run_threads(20);
  const int64_t before = AddressSpacePages();
  run_threads(400);
  EXPECT_LT(AddressSpacePages() - before, 400 * 8);
  EXPECT_TRUE(NoDifference());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A child of vfork has the memory of its parent, and none of its threads.
TEST(PathCacheTest, AChildOfVforkTakesNoPagesOfItsParentsThreads) {
  constexpr int kThreads = 64;  // more than there are pages of ended threads
  const ScenarioSet set = ScenarioSets()[0];
  const auto capture = [&set] {
    for (int i = 0; i < 40; ++i) set.random_chain(7, 20, CaptureOnly);
    return hbmprof::internal::active_path_cache;
  };
  std::vector<PathCache*> in_use(kThreads);
  std::atomic<int> ready{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (PathCache*& cache : in_use) {
    threads.emplace_back([&] {
      cache = capture();
      ++ready;
      while (!stop) std::this_thread::yield();
    });
  }
  while (ready < kThreads) std::this_thread::yield();
  PathCache* volatile taken = nullptr;
  std::thread([&] {
    const pid_t child = vfork();
    if (child == 0) {
      taken = capture();
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }).join();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(taken, nullptr);
  EXPECT_EQ(std::count(in_use.begin(), in_use.end(), taken), 0);
}
#endif

TEST(CaptureTest, NameIsTheMethodInUse) {
  EXPECT_STREQ(Auto().name(), "cached_rules");
  EXPECT_STREQ(FramePointers().name(), "frame_pointer");
  EXPECT_STREQ(StackCapture(Unwinder::kNone).name(), "none");
}

TEST(CaptureTest, UnwinderNoneCapturesNothing) {
  uintptr_t pcs[4];
  EXPECT_EQ(StackCapture(Unwinder::kNone).Capture(Caller::OfThisFunction(), pcs, 4).depth, 0);
}

using hbmprof_test::MadeCode;

// The stack of a function that is called by generated code, and the stack of the function that calls the generated
// code.
Stack through_generated_code;
Stack around_generated_code;
[[gnu::noinline]] void ProbeThroughGeneratedCode() {
  const Caller caller = Caller::OfThisFunction();
  // Often enough for the stack to be cached.
  for (int i = 0; i < 20; ++i) through_generated_code = Capture(Auto(), caller);
}
template <typename... Arguments>
[[gnu::noinline]] void CallGeneratedCode(const MadeCode& code, Arguments&&... arguments) {
  around_generated_code = GlibcStack(Caller::OfThisFunction());
  code.Call(std::forward<Arguments>(arguments)...);
}

// Success if the stack has `made` frames of generated code, the frame of CallGeneratedCode, and the frames of its
// callers.
testing::AssertionResult IsCompleteThroughGeneratedCode(int made) {
  const Stack& found = through_generated_code;
  const Stack& outer = around_generated_code;
  if (!found.truncated && found.depth == made + 1 + outer.depth &&
      std::equal(outer.pcs, outer.pcs + outer.depth, found.pcs + made + 1)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "truncated: " << found.truncated << "\n"
                                     << Describe(found) << "around it, by glibc:\n"
                                     << Describe(outer);
}

TEST(GeneratedCodeTest, StackIsCompleteWithFramePointers) {
  const MadeCode code(MadeCode::kWithFramePointer);
  const MadeCode inner(MadeCode::kWithFramePointer);
  CallGeneratedCode(code, ProbeThroughGeneratedCode);
  EXPECT_TRUE(IsCompleteThroughGeneratedCode(1));
  EXPECT_TRUE(code.Contains(through_generated_code.pcs[0]));
  CallGeneratedCode(code, inner, ProbeThroughGeneratedCode);
  EXPECT_TRUE(IsCompleteThroughGeneratedCode(2));
  EXPECT_TRUE(inner.Contains(through_generated_code.pcs[0]));
  EXPECT_TRUE(code.Contains(through_generated_code.pcs[1]));
}

// If the frame pointer were followed here, the caller of the generated code would be left out.
TEST(GeneratedCodeTest, StackIsTruncatedWithoutFramePointers) {
  const MadeCode code(MadeCode::kWithoutFramePointer);
  CallGeneratedCode(code, ProbeThroughGeneratedCode);
  EXPECT_EQ(through_generated_code.depth, 1);
  EXPECT_TRUE(through_generated_code.truncated);
  EXPECT_TRUE(code.Contains(through_generated_code.pcs[0]));
}

TEST(GeneratedCodeTest, StackIsTruncatedAtInvalidFramePointer) {
  const MadeCode code(MadeCode::kWithOtherFramePointer);
  static const unsigned char kData[8] = {0, 0, 0, 0, 0, 0, 0xff, 0xd0};  // data with the bytes of "call *%rax"
  void* const unmapped = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(munmap(unmapped, 4096), 0);
  const auto fp = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  // Looks like a frame record: a valid outer frame pointer, and an invalid return address.
  for (const uintptr_t stale_pc : {reinterpret_cast<uintptr_t>(unmapped) + 100, reinterpret_cast<uintptr_t>(&kData[8]),
                                   reinterpret_cast<uintptr_t>(&ProbeThroughGeneratedCode), uintptr_t{0}, uintptr_t{7},
                                   uintptr_t{4096}, ~uintptr_t{0}, uintptr_t{1} << 63, uintptr_t{0x7ffffffff008}}) {
    const uintptr_t record[2] = {fp, stale_pc};
    CallGeneratedCode(code, ProbeThroughGeneratedCode, record);
    EXPECT_EQ(through_generated_code.depth, 1) << std::hex << stale_pc;
    EXPECT_TRUE(through_generated_code.truncated);
  }
  for (const uintptr_t wild : {uintptr_t{0}, uintptr_t{1}, reinterpret_cast<uintptr_t>(unmapped), fp + 3, fp - 100000,
                               fp + (uintptr_t{1} << 30), ~uintptr_t{7}, uintptr_t{1} << 63}) {
    CallGeneratedCode(code, ProbeThroughGeneratedCode, reinterpret_cast<const void*>(wild));
    EXPECT_EQ(through_generated_code.depth, 1) << std::hex << wild;
    EXPECT_TRUE(through_generated_code.truncated);
  }
}

// Checks that a forked child captures the same stacks as its parent.
void ForkAndCapture() {
  ProbeAll();
  ASSERT_TRUE(NoDifference());
  const MadeCode code(MadeCode::kWithFramePointer);
  const MadeCode inner(MadeCode::kWithFramePointer);
  const pid_t child = fork();
  if (child == 0) {
    alarm(100);
    ScenarioSets()[0].random_chain(3, 25, ProbeRulesRepeatedly);
    RunAllScenarios(ProbeRulesRepeatedly);
    CallGeneratedCode(code, inner, ProbeThroughGeneratedCode);
    const testing::AssertionResult is_whole = IsCompleteThroughGeneratedCode(2);
    const testing::AssertionResult is_same = NoDifference();
    std::fprintf(stderr, "%s%s", is_whole.message(), is_same.message());
    _exit(is_same && is_whole ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
TEST(ForkedChildTest, CapturesAfterForkOfOneThread) { ForkAndCapture(); }
TEST(ForkedChildTest, CapturesAfterForkOfManyThreads) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer lets the child of many threads make none";
#elif defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the address sanitizer's allocator may be locked for ever in the child of many threads";
#endif
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&stop, i] {
      const ScenarioSet set = ScenarioSets()[static_cast<size_t>(i) + 1];
      for (uint64_t seed = 0; !stop; ++seed) set.random_chain(seed, 20, CaptureOnly);
    });
  }
  ForkAndCapture();
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace capture_test
