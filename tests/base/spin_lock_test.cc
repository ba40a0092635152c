// SpinLock: exclusion, also with more threads than cores.

#include "src/base/spin_lock.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

TEST(SpinLock, LetsOneThreadInAtATime) {
  SpinLock lock;
  int64_t plain = 0;  // not atomic: only exclusion keeps it exact
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20000; ++round) {
        SpinLockHolder hold(lock);
        ++plain;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(plain, 16 * 20000);
}

TEST(SpinLock, TryLockFailsWhileItIsHeldAndOnlyThen) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  SpinLock lock;
  ASSERT_TRUE(lock.TryLock());
  std::thread([&] { EXPECT_FALSE(lock.TryLock()); }).join();
  lock.Unlock();
  std::thread([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    ASSERT_TRUE(lock.TryLock());
    lock.Unlock();
  }).join();
}

TEST(SpinLock, ZeroFilledMemoryIsAnUnlockedOne) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  alignas(SpinLock) unsigned char memory[sizeof(SpinLock)] = {};
  auto* lock = reinterpret_cast<SpinLock*>(memory);
  EXPECT_TRUE(lock->TryLock());
  EXPECT_FALSE(lock->TryLock());
  lock->Unlock();
  EXPECT_TRUE(lock->TryLock());
}

}  // namespace
}  // namespace hbmprof::internal
