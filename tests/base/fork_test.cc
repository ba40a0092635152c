// Which process records: each test runs in a process of its own, because the state of a process never goes back.

#include "src/base/fork.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "gtest/gtest.h"
#include "src/base/linker_section.h"
#include "src/base/mutex.h"
#include "src/base/thread_state.h"

// The thread sanitizer sees the threads of the parent in a forked child, and reports that they are not joined there.
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_options() { return "report_thread_leaks=0"; }

namespace hbmprof::internal {
namespace {

int ResultOf(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// Runs `body` in a forked child and returns its exit code. The child is killed after 10 s.
template <typename Body>
int RunInChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    _exit(body());
  }
  return ResultOf(child);
}

constexpr int kRecords = 1;
constexpr int kIsOff = 2;
constexpr int kContradicts = 3;

// What this process does with an event.
int Answer() {
  const bool was_off = IsOff();
  const bool records = BeginEvent();
  return records == was_off || records != HasRecordedHere() ? kContradicts : records ? kRecords : kIsOff;
}

int AnswerOfChild() { return RunInChild(&Answer); }

TEST(ForkTest, WaitsForLinkerSections) {
  std::atomic<bool> is_open{false};
  std::atomic<bool> is_closed{false};
  std::thread thread([&] {
    const LinkerSection section;
    EXPECT_TRUE(section.may_lock());
    is_open = true;
    usleep(20'000);
    is_closed = true;
  });
  while (!is_open) std::this_thread::yield();
  EXPECT_EQ(RunInChild([&] { return is_closed && LinkerSection().may_lock() ? 0 : 1; }), 0);
  EXPECT_TRUE(LinkerSection().may_lock());
  thread.join();
}

// A thread that holds the section for ever does not stop a fork.
TEST(ForkTest, DoesNotWaitForEverForALinkerSection) {
  const LinkerSection section;
  EXPECT_EQ(RunInChild([] { return LinkerSection().may_lock() ? 0 : 1; }), 0);
}

TEST(ForkTest, ChildOfAProcessThatHasRecordedNothingRecords) {
  EXPECT_EQ(AnswerOfChild(), kRecords);
  // And so does a child of such a child, until the child itself records.
  EXPECT_EQ(RunInChild([] {
              if (AnswerOfChild() != kRecords || Answer() != kRecords) return kContradicts;
              return AnswerOfChild();
            }),
            kIsOff);
}

TEST(ForkTest, ChildrenOfAProcessThatHasRecordedAreOff) {
  EXPECT_EQ(RunInChild([] {
              if (Answer() != kRecords) return kContradicts;
              return RunInChild([] { return Answer() == kIsOff ? AnswerOfChild() : kContradicts; });
            }),
            kIsOff);
}

// The kernel empties the page, so no handler of pthread_atfork is needed.
TEST(ForkTest, ChildWithoutForkHandlersIsOff) {
  EXPECT_EQ(RunInChild([] {
              if (Answer() != kRecords) return kContradicts;
              const auto child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
              if (child == 0) syscall(SYS_exit_group, Answer());
              return ResultOf(child);
            }),
            kIsOff);
}

TEST(ForkTest, ChildOfVforkHasTheStateOfItsParent) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer makes a fork of a vfork";
#endif
  EXPECT_EQ(RunInChild([] {
              if (Answer() != kRecords) return kContradicts;
              const pid_t child = vfork();
              if (child == 0) _exit(HasRecordedHere() && !IsOff() ? kRecords : kIsOff);
              return ResultOf(child);
            }),
            kRecords);
}

// Calls hold(wait) in another thread, and forks while that thread is in wait().
template <typename Hold>
int AnswerOfChildWhile(const Hold& hold) {
  std::atomic<bool> is_held{false};
  std::atomic<bool> stop{false};
  std::thread holder([&] {
    hold([&] {
      is_held.store(true);
      while (!stop.load()) std::this_thread::yield();
    });
  });
  while (!is_held.load()) std::this_thread::yield();
  const int answer = AnswerOfChild();
  stop.store(true);
  holder.join();
  return answer;
}

TEST(ForkTest, ChildIsOffIfAThreadHeldALock) {
  static Mutex mutex;
  EXPECT_EQ(AnswerOfChildWhile([](const auto& wait) {
              const MutexLock hold(mutex);
              wait();
            }),
            kIsOff);
  EXPECT_EQ(AnswerOfChildWhile([](const auto& wait) {
              const ReentryGuard guard;
              wait();
            }),
            kIsOff);
  EXPECT_EQ(AnswerOfChild(), kRecords) << "the locks are free again";
  EXPECT_EQ(RunInChild([] {
              const MutexLock hold(mutex);
              return AnswerOfChild();
            }),
            kIsOff)
      << "the forking thread itself";
}

TEST(ForkTest, FirstEventsOfManyThreadsAreAllRecorded) {
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(RunInChild([] {
                std::atomic<int> ready{0};
                std::atomic<int> recorded{0};
                std::thread threads[4];
                for (std::thread& thread : threads) {
                  thread = std::thread([&] {
                    ready.fetch_add(1);
                    while (ready.load() < 4) continue;
                    if (BeginEvent()) recorded.fetch_add(1);
                  });
                }
                for (std::thread& thread : threads) thread.join();
                return recorded.load();
              }),
              4);
  }
}

// A child is never one that records although its parent's event had begun.
TEST(ForkTest, ChildSeesAFirstEventThatHasBegun) {
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(RunInChild([i] {
                static std::atomic<bool> has_begun{false};
                std::thread other([] {
                  BeginEvent();
                  has_begun.store(true);
                });
                for (int spins = 0; spins < i * 20; ++spins) std::atomic_signal_fence(std::memory_order_seq_cst);
                const int result = RunInChild([] { return has_begun.load() && Answer() != kIsOff ? 7 : 0; });
                other.join();
                return result;
              }),
              0);
  }
}

}  // namespace
}  // namespace hbmprof::internal
