// The per-thread state of the tracker.

#include "src/base/thread_state.h"

#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

TEST(ThreadStateTest, NumbersAreKeptAndEvenlyShared) {
  std::mutex mutex;
  std::map<uint32_t, int> threads_of = {{ThreadNumber(), 1}};
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < 2 * kThreadNumbers; ++i) {
    threads.emplace_back([&] {
      EXPECT_EQ(thread_state.number, 0u);
      const uint32_t number = ThreadNumber();
      EXPECT_EQ(ThreadNumber(), number);
      EXPECT_EQ(thread_state.number, number);
      std::lock_guard<std::mutex> hold(mutex);
      ++threads_of[number];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(threads_of.size(), kThreadNumbers);
  EXPECT_EQ(threads_of.begin()->first, 1u);
  for (const auto& [number, count] : threads_of) EXPECT_EQ(count, 2) << "threads with number " << number;
}

TEST(ReentryGuardTest, OnlyOutermostGuardEnters) {
  {
    ReentryGuard outer;
    EXPECT_TRUE(outer.entered());
    {
      ReentryGuard inner;
      EXPECT_FALSE(inner.entered());
    }
    ReentryGuard later;
    EXPECT_FALSE(later.entered()) << "the end of an inner guard must not end the outer guard";
  }
  ReentryGuard next;
  EXPECT_TRUE(next.entered());
}

TEST(ReentryGuardTest, HasNoEffectOnOtherThreads) {
  ReentryGuard guard;
  std::thread([] {
    ReentryGuard other;
    EXPECT_TRUE(other.entered());
  }).join();
}

}  // namespace
}  // namespace hbmprof::internal
