// What do many threads cost? The threads of a program share up to eight shards of the ledger. Here there are as many
// threads as shards, and each thread has used every site.
//
// usage: shards_bench [SHARDS [SITES]]
//
// Prints, with one shard in use and with SHARDS:
// - the host memory of a site, including its stack of 22 calls;
// - the time of an allocation that makes a new peak, compared with one that does not;
// - the time of a snapshot, and how long it delays a thread that records: the longest pair among those during which the
//   thread kept its core, compared with an equally long time without snapshots.

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/call_chain.h"
#include "benchmarks/workload.h"
#include "hbmprof/profiler.h"

namespace hbmprof::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
double Milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// Returns the processor time of the calling thread. The time in which other programs use the core does not count.
double ProcessorNanoseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

constexpr int kDepth = 19;

// A thread that records on request. All stacks of a site are the same, whichever Recorder the thread belongs to.
class Recorder {
 public:
  // Chooses the site of the next pair and returns true. Returns false if there are no more pairs.
  using Next = std::function<bool(Worker* worker, uint64_t* site)>;

  explicit Recorder(Profiler* profiler) : profiler_(profiler), thread_([this] { Loop(); }) {}
  ~Recorder() {
    Start(nullptr);
    thread_.join();
  }

  // Replaces the thread's buffer at the sites that `next` chooses. Returns at once; `next` runs in the thread.
  void Start(Next next) {
    std::unique_lock<std::mutex> hold(mutex_);
    changed_.wait(hold, [this] { return !has_task_; });
    next_ = std::move(next);
    has_task_ = true;
    changed_.notify_all();
  }
  // Returns when the thread has ended its task.
  void Wait() {
    std::unique_lock<std::mutex> hold(mutex_);
    changed_.wait(hold, [this] { return !has_task_; });
  }

 private:
  void Loop() {
    for (;;) {
      {
        std::unique_lock<std::mutex> hold(mutex_);
        changed_.wait(hold, [this] { return has_task_; });
      }
      if (next_ == nullptr) return;
      Worker worker(profiler_, 0);
      uint64_t site = 0;
      while (next_(&worker, &site)) {
        without_frame_pointers::Descend(kDepth, PathOf(site), &Worker::Replace, &worker);
      }
      std::lock_guard<std::mutex> hold(mutex_);
      has_task_ = false;
      changed_.notify_all();
    }
  }

  Profiler* const profiler_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_task_ = false;
  Next next_;
  std::thread thread_;
};

// Allocates one buffer at each of the sites.
void UseSites(Profiler* profiler, Recorder* recorder, int sites) {
  recorder->Start([=, used = 0](Worker* worker, uint64_t* site) mutable {
    if (used > 0) profiler->RecordFree(worker->id());
    worker->filling = true;
    *site = static_cast<uint64_t>(used);
    return used++ < sites;
  });
  recorder->Wait();
}

// Returns the nanoseconds of processor time per allocation of `count` buffers. Then frees the buffers.
double AllocationNanoseconds(Profiler* profiler, Recorder* recorder, uint64_t count) {
  double nanoseconds = 0;
  recorder->Start([&, start = 0.0, made = uint64_t{0}](Worker* worker, uint64_t* site) mutable {
    if (made == 0) start = ProcessorNanoseconds();
    worker->slot = made;
    *site = made % 16;
    if (made++ < count) return true;
    nanoseconds = (ProcessorNanoseconds() - start) / static_cast<double>(count);
    for (worker->slot = 0; worker->slot < count; ++worker->slot) profiler->RecordFree(worker->id());
    return false;
  });
  recorder->Wait();
  return nanoseconds;
}

double MedianOf(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void PrintPeaks(Profiler* profiler, Recorder* recorder) {
  constexpr uint64_t kCount = 20000;
  std::vector<double> plain;
  std::vector<double> peak;
  std::vector<double> ratio;
  AllocationNanoseconds(profiler, recorder, kCount);
  for (int round = 0; round < 15; ++round) {
    // First below the peak of the previous round. Then from an empty account, so that each allocation makes a new peak.
    plain.push_back(AllocationNanoseconds(profiler, recorder, kCount));
    profiler->ResetPeak(kDefaultDevice);
    peak.push_back(AllocationNanoseconds(profiler, recorder, kCount));
    ratio.push_back(peak.back() / plain.back());
  }
  std::printf("  an allocation %.0f ns, with a new peak %.0f ns: %.2fx (medians of 15)\n", MedianOf(plain),
              MedianOf(peak), MedianOf(ratio));
}

// The pairs that a thread recorded, and the longest times of one pair.
struct Pairs {
  int64_t count = 0;
  double longest = 0;          // milliseconds
  double longest_on_core = 0;  // of those during which the thread kept its core
};
Pairs RecordWhile(Profiler* profiler, Recorder* recorder, int sites, const std::function<void()>& meanwhile) {
  const auto switches = [] {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
  };
  Pairs pairs;
  std::atomic<bool> started{false};
  std::atomic<bool> stop{false};
  Random random(3);
  int64_t switches_before = 0;
  Clock::time_point last;
  recorder->Start([&, used = 0](Worker* worker, uint64_t* site) mutable {
    if (used < sites) {
      // Before the measurement: work that the thread and the tables do once for each site.
      worker->filling = used == 0;
      *site = static_cast<uint64_t>(used++);
      return true;
    }
    const Clock::time_point now = Clock::now();
    if (used == sites) {
      ++used;
      switches_before = switches();
      started.store(true);
    } else {
      const double milliseconds = Milliseconds(now - last);
      ++pairs.count;
      pairs.longest = std::max(pairs.longest, milliseconds);
      if (milliseconds > 0.02) {
        const int64_t switches_now = switches();
        if (switches_now == switches_before) pairs.longest_on_core = std::max(pairs.longest_on_core, milliseconds);
        switches_before = switches_now;
      }
    }
    *site = random.Next() % static_cast<uint64_t>(sites);
    last = Clock::now();
    if (!stop.load(std::memory_order_relaxed)) return true;
    profiler->RecordFree(worker->id());
    return false;
  });
  while (!started.load()) std::this_thread::yield();
  meanwhile();
  stop.store(true);
  recorder->Wait();
  return pairs;
}

void PrintPairs(const char* when, const Pairs& pairs) {
  std::printf("  a thread's longest pair %-17s %8.3f ms, while it kept its core %8.3f ms (%" PRId64 " pairs)\n", when,
              pairs.longest, pairs.longest_on_core, pairs.count);
}

void Measure(int shards, int sites) {
  Options options;
  options.max_host_bytes = int64_t{16} << 30;
  Profiler profiler(options);
  const int64_t before = profiler.GetTrackerStats().host_bytes;
  // The recorders run one after the other. The library numbers threads, and threads with different numbers have
  // different shards.
  for (int other = 1; other < shards; ++other) {
    Recorder recorder(&profiler);
    UseSites(&profiler, &recorder, sites);
  }
  Recorder recorder(&profiler);
  UseSites(&profiler, &recorder, sites);
  const double bytes = static_cast<double>(profiler.GetTrackerStats().host_bytes - before) / sites;
  std::printf("%d shards in use, %d sites\n  host memory per site %.0f B\n", shards, sites, bytes);
  PrintPeaks(&profiler, &recorder);

  std::vector<double> snapshots;
  Clock::duration length{};
  const Pairs during = RecordWhile(&profiler, &recorder, sites, [&] {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < 9; ++i) {
      const Clock::time_point one = Clock::now();
      profiler.TakeSnapshot();
      snapshots.push_back(Milliseconds(Clock::now() - one));
    }
    length = Clock::now() - start;
  });
  const Pairs without = RecordWhile(&profiler, &recorder, sites, [&] { std::this_thread::sleep_for(length); });
  std::printf("  a snapshot takes %.1f ms (median of 9)\n", MedianOf(snapshots));
  PrintPairs("during snapshots", during);
  PrintPairs("without", without);
  const TrackerStats stats = profiler.GetTrackerStats();
  if (stats.sites != sites || stats.dropped_records != 0) {
    std::printf("error: %" PRId64 " sites instead of %d, %" PRId64 " dropped records\n", stats.sites, sites,
                stats.dropped_records);
    std::exit(1);
  }
}

}  // namespace
}  // namespace hbmprof::benchmarks

int main(int argc, char** argv) {
  const int shards = argc > 1 ? std::clamp(std::atoi(argv[1]), 1, 8) : 8;
  // The upper limit is the number of paths of the call chain.
  const int sites = argc > 2 ? std::clamp(std::atoi(argv[2]), 16, 1 << (hbmprof::benchmarks::kDepth - 1)) : 65536;
  hbmprof::benchmarks::Measure(1, sites);
  if (shards > 1) hbmprof::benchmarks::Measure(shards, sites);
  std::printf(
      "goals: a site <= 900 B, which has counters in all shards; a new peak <= 2.5x with one and <= 5x with 8; no "
      "pair > 1 ms on its core that the time without snapshots does not show\n");
  return 0;
}
