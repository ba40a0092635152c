// Captures do not call malloc. This is a program of its own because it replaces malloc to count its calls.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "src/capture/capture.h"
#include "tests/capture/scenarios.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER
#endif
#endif
#ifndef HAS_SANITIZER
#define COUNTS_MALLOC
// Calls by this thread during a capture.
static __thread bool is_capturing;
static __thread long mallocs;
static void Count() { mallocs += is_capturing; }
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* malloc(size_t bytes) {
  Count();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Count();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  Count();
  return __libc_realloc(memory, bytes);
}
}
#endif
#endif

namespace capture_test {
namespace {

using hbmprof::Caller;
using hbmprof::Unwinder;
using hbmprof::internal::StackCapture;

#ifdef COUNTS_MALLOC
const StackCapture* capture;
std::atomic<long> during_captures;
std::atomic<long> captures;
std::atomic<long> changed_errno;

[[gnu::noinline]] void CountingProbe() {
  const Caller caller = Caller::OfThisFunction();
  uintptr_t pcs[128];
  errno = 4711;
  mallocs = 0;
  is_capturing = true;
  capture->Capture(caller, pcs, 128);
  is_capturing = false;
  during_captures.fetch_add(mallocs);
  changed_errno.fetch_add(errno != 4711);
  captures.fetch_add(1);
}

class NoMallocTest : public testing::TestWithParam<Unwinder> {};
TEST_P(NoMallocTest, CapturesDoNotCallMalloc) {
  const StackCapture used(GetParam());
  capture = &used;
  const std::vector<ScenarioSet> sets = ScenarioSets();
  during_captures = 0;
  captures = 0;
  changed_errno = 0;
  std::thread([&sets] {
    // Includes code in which no capture was made before.
    for (uint64_t seed = 1; seed < 2000; ++seed) sets[seed % sets.size()].random_chain(seed, 30, CountingProbe);
    for (size_t i = 0; i < sets[0].scenarios.size(); ++i) {
      if (std::string(sets[0].scenarios[i]) != "threads") sets[0].run(static_cast<int>(i), CountingProbe);
    }
  }).join();
  EXPECT_GT(captures, 2000);
  EXPECT_EQ(during_captures, 0);
  EXPECT_EQ(changed_errno, 0);
}
INSTANTIATE_TEST_SUITE_P(Unwinders, NoMallocTest, testing::Values(Unwinder::kAuto, Unwinder::kFramePointer),
                         [](const auto& info) { return info.param == Unwinder::kAuto ? "Auto" : "FramePointer"; });
#else
TEST(NoMallocTest, CapturesDoNotCallMalloc) { GTEST_SKIP() << "a sanitizer replaces malloc in this build"; }
#endif

}  // namespace
}  // namespace capture_test
