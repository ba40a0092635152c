// In a forked child all locks are free, also those that another thread of the parent held.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "src/base/forked_child.h"
#include "src/base/mutex.h"
#include "src/base/spin_lock.h"

namespace hbmprof::internal {
namespace {

// Runs `body` in a forked child and returns its exit code. The child is killed after 10 s.
template <typename Body>
int RunInChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(ForkTest, ChildHasFreeMutexesAndConsistentData) {
  Mutex outer;
  Mutex inner;
  int first = 0;
  int second = 0;
  std::atomic<bool> held{false};
  std::thread holder([&] {
    MutexLock hold(outer);
    ++first;
    held.store(true);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    MutexLock hold_inner(inner);  // while the fork waits
    ++second;
  });
  while (!held.load()) std::this_thread::yield();
  const int result = RunInChild([&] {
    MutexLock hold(outer);
    MutexLock hold_inner(inner);
    return first == 1 && second == 1 ? 7 : 8;
  });
  holder.join();
  EXPECT_EQ(result, 7);
  MutexLock hold(outer);
  EXPECT_EQ(second, 1);
}

TEST(ForkTest, ChildHasFreeSpinLocks) {
  SpinLock lock;
  std::atomic<bool> held{false};
  std::atomic<bool> stop{false};
  std::thread holder([&] {
    SpinLockHolder hold(lock);
    held.store(true);
    while (!stop.load()) std::this_thread::yield();
  });
  while (!held.load()) std::this_thread::yield();
  const auto can_lock = [&lock]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return lock.TryLock(); };
  // The fork does not wait for the lock.
  EXPECT_EQ(RunInChild([&] {
              {
                SpinLockHolder hold(lock);
                if (RunInChild([&] { return can_lock() ? 7 : 8; }) != 7) return 9;
                if (can_lock()) return 10;
              }
              return can_lock() ? 7 : 8;
            }),
            7);
  EXPECT_FALSE(can_lock()) << "in the parent, the lock is still held";
  stop.store(true);
  holder.join();
  EXPECT_TRUE(can_lock());
}

TEST(ForkTest, ThreadsLockMutexesWhileOthersFork) {
  Mutex mutex;
  int64_t count = 0;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop.load()) {
        MutexLock hold(mutex);
        ++count;
      }
    });
  }
  std::vector<std::thread> forkers;
  std::atomic<int> failures{0};
  for (int i = 0; i < 2; ++i) {
    forkers.emplace_back([&] {
      for (int fork_number = 0; fork_number < 100; ++fork_number) {
        const int result = RunInChild([&] {
          MutexLock hold(mutex);
          return 7;
        });
        if (result != 7) failures.fetch_add(1);
      }
    });
  }
  for (std::thread& forker : forkers) forker.join();
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  MutexLock hold(mutex);
  EXPECT_GT(count, 0);
}

TEST(ForkTest, IsForkedChildOnlyIfParentHadOtherThreads) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer has a thread of its own";
#endif
  EXPECT_EQ(RunInChild([] { return IsForkedChild() ? 1 : 0; }), 0);
  std::thread([] {}).join();
  // The kernel may still list the thread for a moment after it has ended.
  const std::filesystem::path threads = "/proc/self/task";
  while (std::distance(std::filesystem::directory_iterator(threads), {}) != 1) std::this_thread::yield();
  EXPECT_EQ(RunInChild([] { return IsForkedChild() ? 1 : 0; }), 0) << "a thread that has ended holds no lock";
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(RunInChild([] {
              if (!IsForkedChild()) return 1;
              // A lock that was held during the fork is also held in the children of the child.
              return RunInChild([] { return IsForkedChild() ? 0 : 2; });
            }),
            0);
  stop.store(true);
  other.join();
  EXPECT_FALSE(IsForkedChild());
}

}  // namespace
}  // namespace hbmprof::internal
