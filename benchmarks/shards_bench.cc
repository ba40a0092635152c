// What do many processors cost? The library makes two shards a processor; here the number of processors is what the
// command line says, and as many threads as shards have each used every site.
//
// usage: shards_bench [SHARDS [SITES]]
//
// Prints, with one shard in use and with SHARDS:
// - the host memory of a site (its stack of 22 calls included);
// - an allocation that makes a new peak, over one that does not;
// - how long a snapshot takes, and how long it holds up a thread that records: the longest pair that the thread took
//   while it kept its core, beside that of as long a time without snapshots.

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "benchmarks/call_chain.h"
#include "benchmarks/workload.h"
#include "hbmprof/profiler.h"

namespace {

int processors = 0;

}  // namespace

// The library's question for the number of processors gets the command line's answer.
extern "C" long sysconf(int name) noexcept {
  if (name == _SC_NPROCESSORS_CONF) return processors;
  if (name == _SC_PAGESIZE) return 4096;
  return -1;
}

namespace hbmprof::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
double Milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// Of the calling thread: time that other programs take from the core does not count.
double ProcessorNanoseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

constexpr int kDepth = 19;

// Thread `number` has a buffer at each of the sites once.
void UseSites(Profiler* profiler, int number, int sites) {
  Worker worker(profiler, number);
  for (int site = 0; site < sites; ++site) {
    worker.filling = true;
    without_frame_pointers::Descend(kDepth, PathOf(static_cast<uint64_t>(site)), &Worker::Replace, &worker);
    profiler->RecordFree(worker.id());
  }
}

// Nanoseconds of processor time per allocation of `count` buffers; then they are freed.
double AllocationNanoseconds(Profiler* profiler, int64_t count) {
  Worker worker(profiler, 1000);
  const double start = ProcessorNanoseconds();
  for (worker.slot = 0; worker.slot < static_cast<uint64_t>(count); ++worker.slot) {
    without_frame_pointers::Descend(kDepth, PathOf(worker.slot % 16), &Worker::Replace, &worker);
  }
  const double nanoseconds = (ProcessorNanoseconds() - start) / static_cast<double>(count);
  for (worker.slot = 0; worker.slot < static_cast<uint64_t>(count); ++worker.slot) profiler->RecordFree(worker.id());
  return nanoseconds;
}

double MedianOf(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void PrintPeaks(Profiler* profiler) {
  constexpr int64_t kCount = 20000;
  std::vector<double> plain;
  std::vector<double> peak;
  std::vector<double> ratio;
  AllocationNanoseconds(profiler, kCount);
  for (int round = 0; round < 15; ++round) {
    // Below the peak of the round before, and from an empty account on.
    plain.push_back(AllocationNanoseconds(profiler, kCount));
    profiler->ResetPeak(kDefaultDevice);
    peak.push_back(AllocationNanoseconds(profiler, kCount));
    ratio.push_back(peak.back() / plain.back());
  }
  std::printf("  an allocation %.0f ns, with a new peak %.0f ns: %.2fx (medians of 15)\n", MedianOf(plain),
              MedianOf(peak), MedianOf(ratio));
}

// Pairs that a thread records, each timed.
struct Pairs {
  int64_t count = 0;
  double longest = 0;          // milliseconds
  double longest_on_core = 0;  // of those during which the thread kept its core
};
Pairs RecordWhile(Profiler* profiler, int sites, const std::function<void()>& meanwhile) {
  Pairs pairs;
  std::atomic<bool> started{false};
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    const auto switches = [] {
      rusage usage;
      getrusage(RUSAGE_THREAD, &usage);
      return usage.ru_nvcsw + usage.ru_nivcsw;
    };
    Worker worker(profiler, 1001);
    Random random(3);
    // Before the clock runs: what the thread and the tables do once for each site.
    for (int site = 0; site < sites; ++site) {
      without_frame_pointers::Descend(kDepth, PathOf(static_cast<uint64_t>(site)), &Worker::Replace, &worker);
      worker.filling = false;
    }
    started.store(true);
    int64_t switches_before = switches();
    Clock::time_point last = Clock::now();
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t site = random.Next() % static_cast<uint64_t>(sites);
      without_frame_pointers::Descend(kDepth, PathOf(site), &Worker::Replace, &worker);
      const Clock::time_point now = Clock::now();
      const double milliseconds = Milliseconds(now - last);
      last = now;
      ++pairs.count;
      pairs.longest = std::max(pairs.longest, milliseconds);
      if (milliseconds > 0.02) {
        const int64_t switches_now = switches();
        if (switches_now == switches_before) pairs.longest_on_core = std::max(pairs.longest_on_core, milliseconds);
        switches_before = switches_now;
        last = Clock::now();
      }
    }
    profiler->RecordFree(worker.id());
  });
  while (!started.load()) std::this_thread::yield();
  meanwhile();
  stop.store(true);
  thread.join();
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
  for (int number = 0; number < shards; ++number) {
    // One after the other: the library numbers threads, and threads with different numbers have different shards.
    std::thread([&] { UseSites(&profiler, number, sites); }).join();
  }
  const double bytes = static_cast<double>(profiler.GetTrackerStats().host_bytes - before) / sites;
  std::printf("%d shards in use, %d sites\n  host memory per site %.0f B\n", shards, sites, bytes);
  PrintPeaks(&profiler);

  std::vector<double> snapshots;
  Clock::duration length{};
  const Pairs during = RecordWhile(&profiler, sites, [&] {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < 9; ++i) {
      const Clock::time_point one = Clock::now();
      profiler.TakeSnapshot();
      snapshots.push_back(Milliseconds(Clock::now() - one));
    }
    length = Clock::now() - start;
  });
  const Pairs without = RecordWhile(&profiler, sites, [&] { std::this_thread::sleep_for(length); });
  std::printf("  a snapshot takes %.1f ms (median of 9)\n", MedianOf(snapshots));
  PrintPairs("during snapshots", during);
  PrintPairs("without", without);
}

}  // namespace
}  // namespace hbmprof::benchmarks

int main(int argc, char** argv) {
  const int shards = argc > 1 ? std::clamp(std::atoi(argv[1]), 1, 64) : 64;
  // The call chain has no more paths.
  const int sites = argc > 2 ? std::clamp(std::atoi(argv[2]), 16, 1 << (hbmprof::benchmarks::kDepth - 1)) : 65536;
  processors = (shards + 1) / 2;
  hbmprof::benchmarks::Measure(1, sites);
  if (shards > 1) hbmprof::benchmarks::Measure(shards, sites);
  std::printf(
      "goals: a site <= 200 B with one shard and <= 512 B with 64; a new peak <= 2x with one and <= 4x with 64; no "
      "pair > 1 ms on its core that the time without snapshots does not show\n");
  return 0;
}
