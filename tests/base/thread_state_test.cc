// What the tracker keeps per thread.

#include "src/base/thread_state.h"

#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

TEST(ThreadState, EachThreadHasANumberOfItsOwnAndKeepsIt) {
  constexpr int kThreads = 32;
  std::mutex mutex;
  std::set<uint32_t> numbers = {ThreadIndex()};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const uint32_t first = ThreadIndex();
      EXPECT_EQ(ThreadIndex(), first);
      std::lock_guard<std::mutex> hold(mutex);
      numbers.insert(first);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(numbers.size(), kThreads + 1u);
  EXPECT_LE(*numbers.rbegin() - *numbers.begin(), static_cast<uint32_t>(kThreads));
}

TEST(ReentryGuard, OnlyTheOutermostOneEnters) {
  {
    ReentryGuard outer;
    EXPECT_TRUE(outer.entered());
    {
      ReentryGuard inner;
      EXPECT_FALSE(inner.entered());
    }
    ReentryGuard later;
    EXPECT_FALSE(later.entered()) << "an inner guard's end must not end the outer one";
  }
  ReentryGuard next;
  EXPECT_TRUE(next.entered());
}

TEST(ReentryGuard, IsOfItsThreadAlone) {
  ReentryGuard guard;
  std::thread([] {
    ReentryGuard other;
    EXPECT_TRUE(other.entered());
  }).join();
}

}  // namespace
}  // namespace hbmprof::internal
