// ScopedCaller: where the stacks of wrappers begin. Not in this file: the driver's calls under the injected library
// (tests/inject/joined_test.cc).
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <csetjmp>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/caller.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/capture/given_stack.h"

namespace hbmprof {
namespace {

// Each buffer of a test has its own size, by which its stack is found. Buffers of one stack have the size as a tag,
// too.
class ScopedCallerTest : public testing::Test {
 public:
  // Records a buffer with the stack of the caller.
  [[gnu::noinline]] void Record(size_t bytes) {
    const ScopedTag tag("size", std::to_string(bytes));
    EXPECT_TRUE(profiler_.RecordAlloc(BufferId(bytes << 20), bytes));
    asm volatile("");  // no tail call
  }

  std::vector<uint64_t> StackOf(size_t bytes, const Profiler& profiler) {
    const Snapshot snapshot = profiler.TakeSnapshot();
    for (const Snapshot::Sample& sample : snapshot.samples) {
      const bool is_same = sample.tags.empty() ? sample.alloc_bytes == static_cast<int64_t>(bytes)
                                               : sample.tags[0].second == std::to_string(bytes);
      if (is_same) return snapshot.stacks[sample.stack].return_addresses;
    }
    ADD_FAILURE() << "no buffer of " << bytes << " bytes";
    return {0, 0, 0};
  }
  // Expects that the stack of the buffer begins at the function that returns to `returns_to`.
  void ExpectBeginsIn(uintptr_t returns_to, size_t bytes, const char* what) {
    const std::vector<uint64_t> stack = StackOf(bytes, profiler_);
    ASSERT_GE(stack.size(), 2u) << what;
    EXPECT_EQ(stack[1], returns_to) << what;
  }

  Profiler profiler_;
};

#define RETURNS_TO reinterpret_cast<uintptr_t>(__builtin_return_address(0))

[[gnu::noinline]] void Wrapper(ScopedCallerTest& test, size_t bytes) {
  const ScopedCaller scope;
  test.Record(bytes);
}
[[gnu::noinline]] void OuterWrapper(ScopedCallerTest& test, size_t bytes) {
  const ScopedCaller scope;
  Wrapper(test, bytes);
  test.Record(bytes + 1);  // after the inner scope has ended
}
[[gnu::noinline]] void Recursive(ScopedCallerTest& test, size_t bytes, int depth) {
  const ScopedCaller scope;
  if (depth > 0) Recursive(test, bytes + 1, depth - 1);
  test.Record(bytes);
}
[[gnu::noinline]] void Throwing(ScopedCallerTest& test, size_t bytes) {
  const ScopedCaller scope;
  test.Record(bytes);
  throw std::runtime_error("no memory");
}
[[gnu::always_inline]] inline void InlinedWrapper(ScopedCallerTest& test, size_t bytes) {
  const ScopedCaller scope;
  test.Record(bytes);
}

// A user's function: calls `wrapper` and returns where it returns to itself.
template <typename Wrapper>
[[gnu::noinline]] uintptr_t User(const Wrapper& wrapper) {
  wrapper();
  asm volatile("");
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserOfWrapper(ScopedCallerTest& test, size_t bytes) {
  Wrapper(test, bytes);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserOfOuterWrapper(ScopedCallerTest& test, size_t bytes) {
  OuterWrapper(test, bytes);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserOfRecursive(ScopedCallerTest& test, size_t bytes, int depth) {
  Recursive(test, bytes, depth);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserOfThrowing(ScopedCallerTest& test, size_t bytes) {
  EXPECT_THROW(Throwing(test, bytes), std::runtime_error);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserOfInlined(ScopedCallerTest& test, size_t bytes) {
  InlinedWrapper(test, bytes);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserWithoutWrapper(ScopedCallerTest& test, size_t bytes) {
  test.Record(bytes);
  return RETURNS_TO;
}

TEST_F(ScopedCallerTest, StackBeginsAtTheCallerOfTheWrapper) {
  ExpectBeginsIn(UserOfWrapper(*this, 100), 100, "in the scope");
  const uintptr_t direct = UserWithoutWrapper(*this, 200);
  const std::vector<uint64_t> stack = StackOf(200, profiler_);
  ASSERT_GE(stack.size(), 3u);
  EXPECT_EQ(stack[2], direct) << "after the scope, the stack has the function that records";
}

TEST_F(ScopedCallerTest, NestedWrappersUseTheOutermost) {
  const uintptr_t user = UserOfOuterWrapper(*this, 100);
  ExpectBeginsIn(user, 100, "recorded by the inner wrapper");
  ExpectBeginsIn(user, 101, "recorded by the outer wrapper, after the inner one");
}

TEST_F(ScopedCallerTest, RecursionUsesTheFirstCall) {
  const uintptr_t user = UserOfRecursive(*this, 100, 3);
  for (size_t bytes = 100; bytes <= 103; ++bytes) ExpectBeginsIn(user, bytes, "each depth");
}

// A signal handler on an alternate stack begins a scope of its own. The alternate stack is above the thread's stack, or
// below it.
ScopedCallerTest* handling_test;
[[gnu::noinline]] void InterruptedWrapper(ScopedCallerTest& test, size_t bytes) {
  const ScopedCaller scope;
  raise(SIGUSR1);
  test.Record(bytes);
}
[[gnu::noinline]] uintptr_t UserOfInterrupted(ScopedCallerTest& test, size_t bytes) {
  InterruptedWrapper(test, bytes);
  return RETURNS_TO;
}
TEST_F(ScopedCallerTest, HandlerOnAnotherStackHasItsOwnScope) {
  handling_test = this;
  static size_t bytes_in_handler;
  struct sigaction action = {};
  struct sigaction before;
  action.sa_handler = [](int) { Wrapper(*handling_test, bytes_in_handler); };
  action.sa_flags = SA_ONSTACK;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  constexpr size_t kStackBytes = size_t{1} << 20;
  auto* const stacks =
      static_cast<char*>(mmap(nullptr, 3 * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(stacks, MAP_FAILED);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stacks + kStackBytes, kStackBytes);
  for (char* const alternate : {stacks, stacks + 2 * kStackBytes}) {
    static uintptr_t user;
    static size_t bytes;
    bytes = alternate == stacks ? 100 : 200;
    bytes_in_handler = bytes + 1;
    stack_t stack = {};
    stack.ss_sp = alternate;
    stack.ss_size = kStackBytes;
    pthread_t thread;
    const auto run = [](void* alternate_stack) -> void* {
      sigaltstack(static_cast<stack_t*>(alternate_stack), nullptr);
      user = UserOfInterrupted(*handling_test, bytes);
      return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, &attributes, run, &stack), 0);
    pthread_join(thread, nullptr);
    ExpectBeginsIn(user, bytes, "after the handler's scope");
    EXPECT_NE(StackOf(bytes_in_handler, profiler_)[1], user) << "in the handler's scope";
  }
  pthread_attr_destroy(&attributes);
  munmap(stacks, 3 * kStackBytes);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(ScopedCallerTest, ExceptionEndsTheScope) {
  ExpectBeginsIn(UserOfThrowing(*this, 100), 100, "before the exception");
  const uintptr_t direct = UserWithoutWrapper(*this, 200);
  EXPECT_EQ(StackOf(200, profiler_)[2], direct);
}

TEST_F(ScopedCallerTest, InlinedWrapperBeginsOneFunctionFurtherOut) {
  uintptr_t user = 0;
  const uintptr_t outer = User([&] { user = UserOfInlined(*this, 100); });
  const std::vector<uint64_t> stack = StackOf(100, profiler_);
  ASSERT_GE(stack.size(), 3u);
  EXPECT_EQ(stack[0], user) << "the documented limit: the user's function is missing";
  EXPECT_NE(outer, 0u);
}

// A wrapper that passes a Caller of its own, of each sort of record.
[[gnu::noinline]] void RecordsFrom(Profiler& profiler) {
  const Caller caller = Caller::OfThisFunction();
  std::optional<ScopedTag> tag;
  tag.emplace("size", "100");
  EXPECT_TRUE(profiler.RecordAllocFrom(caller, BufferId(0x1000), 100, {}));
  tag.emplace("size", "4096");
  EXPECT_TRUE(profiler.RecordSegmentFrom(caller, {}, BufferId(0x100000), 4096));
  tag.emplace("size", "200");
  EXPECT_TRUE(profiler.RecordBlockFrom(caller, {}, BufferId(0x100000), 200));
  tag.emplace("size", "300");
  EXPECT_TRUE(profiler.RecordAllocAt(profiler.KeepSite(caller, 300, {}), BufferId(0x2000), 300));
}
[[gnu::noinline]] void WrapperOfRecords(Profiler& profiler) {
  const ScopedCaller scope;
  RecordsFrom(profiler);
}
[[gnu::noinline]] uintptr_t UserOfRecords(Profiler& profiler) {
  WrapperOfRecords(profiler);
  return RETURNS_TO;
}

TEST_F(ScopedCallerTest, CallersOfInnerWrappersAreReplaced) {
  Profiler other;
  for (Profiler* profiler : {&profiler_, &other}) {
    const uintptr_t user = UserOfRecords(*profiler);
    for (const size_t bytes : {size_t{100}, size_t{200}, size_t{300}, size_t{4096}}) {
      EXPECT_EQ(StackOf(bytes, *profiler)[1], user) << bytes;
    }
  }
}

// TrackingAllocator over TrackingAllocator: both record, into their own profilers.
class Memory : public DeviceAllocator {
 public:
  absl::StatusOr<void*> Allocate(size_t) override { return reinterpret_cast<void*>(0x5000); }
  absl::Status Free(void*) override { return absl::OkStatus(); }
  std::string device_name() const override { return "memory:0"; }
};
[[gnu::noinline]] uintptr_t UserOfAllocator(DeviceAllocator& allocator) {
  EXPECT_TRUE(allocator.Allocate(100).ok());
  EXPECT_TRUE(allocator.AllocateAsync(100, 1).ok());
  return RETURNS_TO;
}

TEST_F(ScopedCallerTest, AllocatorUnderTrackingAllocatorHasTheUsersStack) {
  Memory memory;
  Profiler inner_profiler;
  TrackingAllocator inner(memory, {}, inner_profiler);
  TrackingAllocator outer(inner, {}, profiler_);
  const uintptr_t user = UserOfAllocator(outer);
  EXPECT_EQ(StackOf(100, inner_profiler)[1], user);
  EXPECT_EQ(StackOf(100, profiler_)[1], user);
}

TEST_F(ScopedCallerTest, OtherThreadsAreNotInTheScope) {
  const ScopedCaller scope;
  uintptr_t direct = 0;
  std::thread([&] { direct = UserWithoutWrapper(*this, 100); }).join();
  EXPECT_EQ(StackOf(100, profiler_)[2], direct);
}

TEST_F(ScopedCallerTest, StackOfAnotherUnwinderIsKept) {
  const uintptr_t given[] = {0x1111, 0x2222, 0x3333};
  const ScopedCaller scope;
  EXPECT_TRUE(profiler_.RecordAllocFrom(internal::CallerOfStack(given, 3), BufferId(0x1000), 100, {}));
  EXPECT_EQ(StackOf(100, profiler_), std::vector<uint64_t>(given, given + 3));
}

std::jmp_buf way_out;
[[gnu::noinline]] void LeavesByJump(ScopedCallerTest& test) {
  const ScopedCaller scope;
  test.Record(100);
  std::longjmp(way_out, 1);
}
[[gnu::noinline]] void CallsAndLands(ScopedCallerTest& test) {
  if (setjmp(way_out) == 0) LeavesByJump(test);
}

TEST_F(ScopedCallerTest, ScopeLeftByJumpEndsFurtherOut) {
  CallsAndLands(*this);
  const Caller here = Caller::OfThisFunction();
  ASSERT_TRUE(profiler_.RecordAllocFrom(here, BufferId(0x1000), 200, {}));
  EXPECT_EQ(StackOf(200, profiler_)[0], here.pc);
  Wrapper(*this, 300);
  EXPECT_EQ(StackOf(300, profiler_)[1], here.pc) << "a scope of a function further out";
  ExpectBeginsIn(UserOfWrapper(*this, 400), 400, "and all later ones");
}

}  // namespace
}  // namespace hbmprof
