// SpinLock: mutual exclusion, also with more threads than processors.

#include "src/base/spin_lock.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

TEST(SpinLockTest, ExcludesOtherThreads) {
  SpinLock lock;
  int64_t plain = 0;  // not atomic, so it is exact only with mutual exclusion
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

TEST(SpinLockTest, TryLockFailsOnlyWhileHeld) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  SpinLock lock;
  ASSERT_TRUE(lock.TryLock());
  std::thread([&] { EXPECT_FALSE(lock.TryLock()); }).join();
  lock.Unlock();
  std::thread([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    ASSERT_TRUE(lock.TryLock());
    lock.Unlock();
  }).join();
}

TEST(SpinLockTest, ZeroFilledMemoryIsUnlocked) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  alignas(SpinLock) unsigned char memory[sizeof(SpinLock)] = {};
  auto* lock = reinterpret_cast<SpinLock*>(memory);
  EXPECT_TRUE(lock->TryLock());
  EXPECT_FALSE(lock->TryLock());
  lock->Unlock();
  EXPECT_TRUE(lock->TryLock());
}

double ThreadCpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// How long the holder of the lock lets another thread wait. A thread that spins spends nearly all of it on a processor.
constexpr std::chrono::milliseconds kWait{500};
constexpr double kHalfOfWait = 0.25;

// Returns the CPU seconds that a thread spends while it waits for a lock that is held for kWait. The thread calls
// `prepare()` first. If that returns false, the result is negative.
template <typename Prepare>
double SecondsSpentWaiting(const Prepare& prepare) {
  SpinLock lock;
  std::atomic<bool> waits{false};
  double spent = -1;
  lock.Lock();
  std::thread waiter([&] {
    const bool prepared = prepare();
    waits.store(true);
    if (!prepared) return;
    const double before = ThreadCpuSeconds();
    SpinLockHolder hold(lock);
    spent = ThreadCpuSeconds() - before;
  });
  while (!waits.load()) std::this_thread::yield();
  std::this_thread::sleep_for(kWait);
  lock.Unlock();
  waiter.join();
  return spent;
}

TEST(SpinLockTest, LongWaitSleeps) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const double spent = SecondsSpentWaiting([] { return true; });
  EXPECT_LT(spent, kHalfOfWait);
}

// sched_yield of a thread under SCHED_FIFO does not let threads of lower priority run. Without sleeps, such a thread
// would keep the holder off their processor, except for the share of time that the system reserves for other threads.
TEST(SpinLockTest, WaiterUnderSchedFifoLetsHolderRun) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // threads that are created later inherit it
  const double spent = SecondsSpentWaiting([] {
    sched_param parameters = {};
    parameters.sched_priority = 1;
    return pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameters) == 0;
  });
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  if (spent < 0) GTEST_SKIP() << "this process may not use SCHED_FIFO";
  EXPECT_LT(spent, kHalfOfWait);
}

}  // namespace
}  // namespace hbmprof::internal
