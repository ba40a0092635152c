#include "src/api/output/file_work.h"

#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "src/api/output/exit_writer.h"
#include "src/base/background_thread.h"
#include "src/base/lazy.h"
#include "src/base/monotonic_clock.h"
#include "src/base/mutex.h"
#include "src/base/no_cancellation.h"
#include "src/base/thread_state.h"
#include "src/base/try_run.h"
#include "src/core/device_driver.h"
#include "src/core/probes.h"

namespace hbmprof::internal {
namespace {

constexpr int64_t kMostWaitAtEnd = 5 * kNanosPerSecond;
constexpr size_t kMostJobs = 16;

enum class Result : int { kNone, kDone, kRefused };

struct Job {
  explicit Job(std::function<void()> with) : work(std::move(with)) {
    if (const DeviceDriver* const driver = device_driver.load(); driver != nullptr) context = driver->context();
    sem_init(&done, 0, 0);
  }
  void End(Result with) {
    result.store(with, std::memory_order_release);
    sem_post(&done);
  }
  const std::function<void()> work;
  void* context = nullptr;  // the driver's context of the calling thread
  std::atomic<Result> result{Result::kNone};
  sem_t done;
};

using Jobs = std::deque<std::shared_ptr<Job>>;

struct Queue {
  Mutex mutex;
  // The process of the jobs. A forked child neither does nor destroys those of its parent.
  pid_t process ABSL_GUARDED_BY(mutex) = getpid();
  Jobs jobs ABSL_GUARDED_BY(mutex);             // the first one is in progress. If there is any, there is a thread
  bool is_late ABSL_GUARDED_BY(mutex) = false;  // a call has stopped waiting for the job in progress
};
Lazy<Queue> queue;

// Returns the job that is to be done next, after the first one has been done; null if there is none, and the thread
// ends.
std::shared_ptr<Job> Next(const std::shared_ptr<Job>& done) {
  Queue& own = queue.Get();
  MutexLock hold(own.mutex);
  if (done != nullptr) own.jobs.pop_front();
  own.is_late = false;
  return own.jobs.empty() ? nullptr : own.jobs.front();
}

void* DoJobs(void*) {
  std::shared_ptr<Job> next;
  for (std::shared_ptr<Job> job = Next(nullptr); job != nullptr; job = next) {
    {
      const ProbeLimit limit(job->context);
      job->work();
    }
    // Before the call that waits returns: FinishFileWork then finds no job.
    next = Next(job);
    job->End(Result::kDone);
  }
  return nullptr;
}

absl::Status Refused(const char* why) { return absl::ResourceExhaustedError(why); }

// Starts the thread. If that fails, no job is done.
void StartThread() {
  if (StartBackgroundThread(&DoJobs, nullptr)) return;
  Queue& own = queue.Get();
  Jobs refused;
  {
    MutexLock hold(own.mutex);
    own.jobs.swap(refused);
  }
  for (const std::shared_ptr<Job>& job : refused) job->End(Result::kRefused);
}

}  // namespace

absl::Status DoFileWork(std::function<void()> work, int64_t most_wait) {
  const NoCancellation no_cancellation;
  const auto job = std::make_shared<Job>(std::move(work));
  Queue& own = queue.Get();
  bool has_thread = false;
  bool waits = false;
  {
    MutexLock hold(own.mutex);
    if (own.process != getpid()) {
      new (&own.jobs) Jobs;
      own.process = getpid();
      own.is_late = false;
    }
    if (own.jobs.size() >= kMostJobs) return Refused("too many files wait for the disk");
    has_thread = !own.jobs.empty();
    own.jobs.push_back(job);
    waits = !own.is_late;
  }
  if (!has_thread) StartThread();
  const int64_t until = MonotonicNanos() + most_wait;
  const timespec deadline = {until / kNanosPerSecond, until % kNanosPerSecond};
  while (waits && sem_clockwait(&job->done, CLOCK_MONOTONIC, &deadline) != 0 && errno == EINTR) {
  }
  // The thread sanitizer knows the atomic, not sem_clockwait.
  const Result result = job->result.load(std::memory_order_acquire);
  if (result == Result::kDone) return absl::OkStatus();
  if (result == Result::kRefused) return Refused("no thread can be started to write it");
  {
    MutexLock hold(own.mutex);
    own.is_late = !own.jobs.empty();
  }
  static_cast<void>(TryRun([] { WriteAtEveryEnd(); }));
  return absl::DeadlineExceededError("the disk has not answered yet");
}

void FinishFileWork() {
  Queue* const own = queue.IfMade();
  if (own == nullptr) return;
  const auto is_done = [own] {
    MutexLock hold(own->mutex);
    return own->process != getpid() || own->jobs.empty();
  };
  const timespec pause = {0, 1'000'000};
  const int64_t until = MonotonicNanos() + kMostWaitAtEnd;
  while (!is_done() && MonotonicNanos() < until) nanosleep(&pause, nullptr);
}

}  // namespace hbmprof::internal
