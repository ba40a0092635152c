// The bounds of thread stacks, reads of stack memory, and the stack that the recording of an event needs.
#include "src/capture/stack_memory.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/capture/capture.h"

namespace {

using hbmprof::BufferId;
using hbmprof::Caller;
using hbmprof::Options;
using hbmprof::Profiler;
using hbmprof::Unwinder;
using hbmprof::internal::AvailableStackBytes;
using hbmprof::internal::StackBounds;
using hbmprof::internal::StackCapture;
using hbmprof::internal::StackMemory;
using hbmprof::internal::ThreadStackBounds;

// The bounds that pthread_getattr_np returns for the calling thread.
StackBounds ExpectedBounds() {
  pthread_attr_t attributes;
  EXPECT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
  void* low = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(pthread_attr_getstack(&attributes, &low, &bytes), 0);
  pthread_attr_destroy(&attributes);
  const auto start = reinterpret_cast<uintptr_t>(low);
  return {start, (start + bytes) & ~uintptr_t{7}};
}

void CheckBounds() {
  const StackBounds expected = ExpectedBounds();
  const StackBounds found = ThreadStackBounds();
  EXPECT_EQ(found.low, expected.low);
  EXPECT_EQ(found.high, expected.high);
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  EXPECT_LE(AvailableStackBytes(), here - expected.low);
  EXPECT_GE(AvailableStackBytes() + 1024, here - expected.low);
}

void RunThread(const pthread_attr_t* attributes, const std::function<void()>& body) {
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, attributes,
                [](void* argument) -> void* {
                  (*static_cast<const std::function<void()>*>(argument))();
                  return nullptr;
                },
                const_cast<std::function<void()>*>(&body)),
            0);
  pthread_join(thread, nullptr);
}

struct Attributes {
  Attributes() { pthread_attr_init(&value); }
  ~Attributes() { pthread_attr_destroy(&value); }
  pthread_attr_t value;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kSmallest = size_t{1} << 20;  // a sanitizer's own needs
#else
const size_t kSmallest = static_cast<size_t>(PTHREAD_STACK_MIN) + 4096;
#endif

TEST(StackBoundsTest, EqualPthreadGetattrNp) {
  RunThread(nullptr, CheckBounds);
  // Small and large stacks. In the second round glibc may reuse stacks of threads that have ended.
  for (int round = 0; round < 2; ++round) {
    for (const size_t bytes : {kSmallest, 4 * kSmallest, size_t{256} << 20}) {
      for (const size_t guard : {size_t{0}, size_t{1}, size_t{4096}, size_t{65536}}) {
        SCOPED_TRACE(testing::Message() << bytes << " bytes, guard " << guard);
        Attributes attributes;
        ASSERT_EQ(pthread_attr_setstacksize(&attributes.value, bytes), 0);
        ASSERT_EQ(pthread_attr_setguardsize(&attributes.value, guard), 0);
        RunThread(&attributes.value, CheckBounds);
      }
    }
  }
}

TEST(StackBoundsTest, AreFoundForStackOfTheProgram) {
  // Not aligned to pages, and inside a larger block of memory.
  const std::unique_ptr<char[]> memory(new char[size_t{4} << 20]);
  for (const size_t at : {0, 16, 4096 + 64}) {
    for (const size_t bytes : {2 * kSmallest, 3 * kSmallest + 16}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes at " << at);
      Attributes attributes;
      ASSERT_EQ(pthread_attr_setstack(&attributes.value, memory.get() + at, bytes), 0);
      RunThread(&attributes.value, CheckBounds);
    }
  }
}

TEST(StackBoundsTest, DoNotDependOnThreadSpecificValues) {
  // These values are in the descriptor before the bounds.
  std::vector<pthread_key_t> keys(30);
  for (pthread_key_t& key : keys) ASSERT_EQ(pthread_key_create(&key, nullptr), 0);
  RunThread(nullptr, [&keys] {
    const auto self = reinterpret_cast<const char*>(pthread_self());
    char* const values[] = {const_cast<char*>(self), const_cast<char*>(self) - 64, const_cast<char*>(self) - 65536,
                            reinterpret_cast<char*>(uintptr_t{1} << 20), nullptr};
    for (size_t i = 0; i < keys.size(); ++i) pthread_setspecific(keys[i], values[i % 5]);
    CheckBounds();
    for (pthread_key_t key : keys) pthread_setspecific(key, nullptr);
  });
  for (pthread_key_t key : keys) pthread_key_delete(key);
}

TEST(StackBoundsTest, MainThreadIsInsideItsBounds) {
  const StackBounds expected = ExpectedBounds();
  const StackBounds found = ThreadStackBounds();
  EXPECT_GT(found.high, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
  EXPECT_LE(found.high, expected.high);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_STACK, &limit), 0);
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur <= size_t{128} << 20) {
    EXPECT_NEAR(static_cast<double>(found.low), static_cast<double>(expected.low), 4096);
  }
}

TEST(StackBoundsTest, AreKeptInForkedChild) {
  RunThread(nullptr, [] {
    const pid_t child = fork();
    if (child == 0) {
      const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
      const StackBounds found = ThreadStackBounds();
      _exit(here - found.low < found.high - found.low ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

// --- Addresses outside of any stack. ---

const uintptr_t kBadAddresses[] = {0,
                                   1,
                                   7,
                                   8,
                                   16,
                                   4088,
                                   4096,
                                   65528,
                                   uintptr_t{1} << 20,
                                   (uintptr_t{1} << 47) - 4096,
                                   (uintptr_t{1} << 47) - 8,
                                   uintptr_t{1} << 47,
                                   (uintptr_t{1} << 47) + 8,
                                   uintptr_t{1} << 63,
                                   0xffff800000000000u,
                                   0xffffffffff600000u,
                                   ~uintptr_t{0} - 4095,
                                   ~uintptr_t{0} - 15,
                                   ~uintptr_t{0} - 7,
                                   ~uintptr_t{0}};

TEST(StackMemoryTest, InvalidAddressesAreNotRead) {
  for (const uintptr_t stack : kBadAddresses) {
    StackMemory memory(stack);
    EXPECT_FALSE(memory.is_own());
    for (const uintptr_t address : kBadAddresses) {
      uintptr_t word;
      EXPECT_FALSE(memory.Load(address, &word)) << std::hex << stack << ' ' << address;
    }
  }
}

TEST(StackMemoryTest, ReadsOtherStackUpToItsEnd) {
  auto* pages = static_cast<char*>(mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + 2 * 4096, 4096, PROT_NONE), 0);
  const auto start = reinterpret_cast<uintptr_t>(pages);
  StackMemory memory(start + 64);
  uintptr_t word;
  EXPECT_FALSE(memory.Load(start + 56, &word));
  EXPECT_FALSE(memory.Load(start + 65, &word));
  EXPECT_TRUE(memory.Load(start + 2 * 4096 - 8, &word));
  EXPECT_FALSE(memory.Load(start + 2 * 4096, &word));
  munmap(pages, 3 * 4096);
}

class AnyCallerTest : public testing::TestWithParam<Unwinder> {};

TEST_P(AnyCallerTest, IsCapturedWithoutCrash) {
  const StackCapture capture(GetParam());
  const Caller here = Caller::OfThisFunction();
  uintptr_t pcs[64];
  EXPECT_EQ(capture.Capture(Caller{}, pcs, 64).depth, 0);
  for (const uintptr_t bad : kBadAddresses) {
    for (const uintptr_t pc : {bad, here.pc}) {
      for (const uintptr_t sp : {bad, here.sp, here.sp + 1}) {
        for (const uintptr_t fp : {bad, here.fp, here.fp + 4}) {
          for (int again = 0; again < 3; ++again) {
            const auto stack = capture.Capture({pc, sp, fp}, pcs, 64);
            EXPECT_LE(stack.depth, 64);
            if (pc != 0) {
              ASSERT_GE(stack.depth, 1);
              EXPECT_EQ(stack.pcs[0], pc);
            }
          }
        }
      }
    }
  }
  Options options;
  options.unwinder = GetParam();
  Profiler profiler(options);
  EXPECT_TRUE(profiler.RecordAllocFrom(Caller{}, BufferId(1), 10, {}));
  EXPECT_EQ(profiler.TakeSnapshot().samples.size(), 1u);
}
INSTANTIATE_TEST_SUITE_P(Unwinders, AnyCallerTest, testing::Values(Unwinder::kAuto, Unwinder::kFramePointer),
                         [](const auto& info) { return info.param == Unwinder::kAuto ? "Auto" : "FramePointer"; });

// --- The stack that the recording of an event needs. ---

ucontext_t outside;
ucontext_t inside;
std::function<void()> in_fiber;

void EnterFiber() { in_fiber(); }

void RunFiber(char* stack, size_t bytes, const std::function<void()>& body) {
  in_fiber = body;
  ASSERT_EQ(getcontext(&inside), 0);
  inside.uc_stack.ss_sp = stack;
  inside.uc_stack.ss_size = bytes;
  inside.uc_link = &outside;
  makecontext(&inside, &EnterFiber, 0);
  ASSERT_EQ(swapcontext(&outside, &inside), 0);
}

[[gnu::noinline]] void RecordAt(Profiler& profiler, int depth, uint64_t id) {
  if (depth > 0) {
    RecordAt(profiler, depth - 1, id);
  } else {
    profiler.RecordAlloc(BufferId(id), 64);
  }
  asm volatile("");  // no tail call
}

void RecordMany(Profiler& profiler) {
  for (uint64_t i = 1; i < 5000; ++i) {
    RecordAt(profiler, static_cast<int>(i % 8), i << 8);
    if (i % 3 == 0) profiler.RecordFree(BufferId(i << 8));
  }
}

// Records each kind of event of a pool, with few blocks and with many.
void UsePools(Profiler& profiler) {
  const auto at = [](uint64_t kib) { return BufferId((uint64_t{1} << 40) + (kib << 10)); };
  const hbmprof::Pool outer = {hbmprof::kDefaultDevice, hbmprof::AllocatorId{1}};
  const hbmprof::Pool inner = {hbmprof::kDefaultDevice, hbmprof::AllocatorId{2}};
  for (const uint64_t blocks : {4, 300}) {
    const size_t bytes = blocks << 10;
    profiler.RecordSegment(outer, at(0), bytes);
    profiler.RecordSegment(outer, at(blocks), bytes);
    for (uint64_t i = 0; i < 2 * blocks; ++i) profiler.RecordBlock(outer, at(i), 1024);
    profiler.RecordBlock(outer, at(blocks - 1), 1024);  // its free was not recorded
    profiler.RecordBlockResize(outer, at(blocks - 2), 3000);
    profiler.RecordSegment(inner, at(0), 1024);  // a block becomes a segment
    profiler.RecordBlock(inner, at(0), 512);
    profiler.RecordResize(at(blocks), bytes / 2);
    profiler.RecordBlockFree(outer, at(2));
    profiler.RecordAllocAt(profiler.KeepSite(hbmprof::Caller::OfThisFunction(), 64, {}), at(4000), 64);
    profiler.RecordFree(at(0));
    profiler.DropDevice(hbmprof::kDefaultDevice);
  }
}

class StackUseTest : public testing::TestWithParam<int> {};

// The recording of an event with few frames needs less than 4 KiB of stack, including first captures, new sites, the
// learning of paths, growing tables and pools.
TEST_P(StackUseTest, OfRecordingIsBelow4KiB) {
#ifndef LIBRARY_IS_OPTIMISED
  GTEST_SKIP() << "frames of this build are larger";
#endif
  constexpr size_t kBytes = size_t{64} << 10;
  constexpr size_t kTestBytes = 8 * 64 + 256;  // frames of RecordMany
  constexpr ptrdiff_t kMaxBytes = 4096 + kTestBytes;
  Options options;
  options.max_stack_depth = GetParam();
  // The stack of a fiber is filled with a pattern, so that the used part can be measured. The library does not know the
  // size of such a stack.
  std::vector<char> memory(kBytes, '\x5a');
  {
    Profiler profiler(options);
    RunFiber(memory.data(), kBytes, [&] {
      RecordMany(profiler);
      UsePools(profiler);
    });
    EXPECT_GT(profiler.GetTrackerStats().sites, 7);
    EXPECT_EQ(profiler.GetTrackerStats().truncated_stacks, 0);
  }
  const auto is_used = [](char byte) { return byte != '\x5a'; };
  EXPECT_LE(memory.end() - std::find_if(memory.begin(), memory.end(), is_used), kMaxBytes);

  // A thread whose stack is too small for the buffer of a deep stack.
  std::vector<char> supplied(std::max(size_t{20} << 10, static_cast<size_t>(PTHREAD_STACK_MIN)), '\x5a');
  Attributes attributes;
  ASSERT_EQ(pthread_attr_setstack(&attributes.value, supplied.data(), supplied.size()), 0);
  uintptr_t top = 0;
  Profiler profiler(options);
  RunThread(&attributes.value, [&] {
    top = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    RecordMany(profiler);
    UsePools(profiler);
  });
  const auto lowest = std::find_if(supplied.begin(), supplied.end(), is_used);
  EXPECT_LE(static_cast<ptrdiff_t>(top - reinterpret_cast<uintptr_t>(&*lowest)), kMaxBytes);
  EXPECT_EQ(profiler.GetTrackerStats().truncated_stacks, 0);
}
INSTANTIATE_TEST_SUITE_P(Depths, StackUseTest, testing::Values(64, 128, 512), testing::PrintToStringParamName());

}  // namespace
