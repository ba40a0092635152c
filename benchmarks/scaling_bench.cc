// Does recording scale with threads? The work of record_bench's nofp_random256, on 1, 2, 4 and 8 threads.
//
// usage: scaling_bench [ROUNDS [MILLISECONDS]]
//
// On a shared machine, a hypervisor can move two virtual cores to physical cores that are near to or far from each
// other. So each round also measures the latency between the two cores. By this latency, its results are counted as
// "near" or as "far". Compare only results of the same class.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "benchmarks/call_chain.h"
#include "benchmarks/workload.h"
#include "hbmprof/profiler.h"

namespace hbmprof::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kThreadCounts[] = {1, 2, 4, 8};
constexpr int kCounts = 4;
constexpr int64_t kLive = 10000;
constexpr double kFarNanoseconds = 110;

double NanosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// Returns the one-way latency of a cache line between two threads: the lowest of several short runs, because in some
// runs a thread may lose its core.
double CoreToCoreNanoseconds() {
  constexpr int kRuns = 40;
  constexpr int kTrips = 500;
  alignas(128) std::atomic<int> ball{0};
  std::thread other([&ball] {
    for (int trip = 0; trip < kRuns * kTrips; ++trip) {
      while (ball.load(std::memory_order_acquire) != 2 * trip + 1) {
      }
      ball.store(2 * trip + 2, std::memory_order_release);
    }
  });
  double lowest = 1e18;
  for (int run = 0; run < kRuns; ++run) {
    const Clock::time_point start = Clock::now();
    for (int trip = run * kTrips; trip < (run + 1) * kTrips; ++trip) {
      ball.store(2 * trip + 1, std::memory_order_release);
      while (ball.load(std::memory_order_acquire) != 2 * trip + 2) {
      }
    }
    lowest = std::min(lowest, NanosecondsSince(start) / (2 * kTrips));
  }
  other.join();
  return lowest;
}

// Returns the wall nanoseconds per pair, over all threads.
double Run(Profiler* profiler, int threads, int milliseconds) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::atomic<bool> stop{false};
  std::atomic<int64_t> pairs{0};
  std::vector<std::thread> running;
  for (int number = 0; number < threads; ++number) {
    running.emplace_back([&, number] {
      Worker worker(profiler, number);
      Random random(static_cast<uint64_t>(number) + 1);
      uint64_t paths[256];
      for (uint64_t i = 0; i < 256; ++i) paths[i] = PathOf(static_cast<uint64_t>(number) * 256 + i);
      const uint64_t slots = static_cast<uint64_t>(kLive / threads);
      for (worker.slot = 0; worker.slot < slots; ++worker.slot) {
        without_frame_pointers::Descend(17, paths[random.Next() % 256], &Worker::Replace, &worker);
      }
      worker.filling = false;
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      int64_t mine = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        for (int i = 0; i < 100; ++i) {
          const uint64_t draw = random.Next();
          worker.slot = (draw >> 32) % slots;
          without_frame_pointers::Descend(17, paths[draw % 256], &Worker::Replace, &worker);
        }
        mine += 100;
      }
      pairs.fetch_add(mine);
      for (worker.slot = 0; worker.slot < slots && profiler != nullptr; ++worker.slot) {
        profiler->RecordFree(worker.id());
      }
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  const Clock::time_point start = Clock::now();
  go.store(true, std::memory_order_release);
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  stop.store(true, std::memory_order_relaxed);
  const double elapsed = NanosecondsSince(start);
  for (std::thread& thread : running) thread.join();
  return elapsed / static_cast<double>(pairs.load());
}

struct Round {
  double latency;
  double untracked[kCounts];
  double tracked[kCounts];
};

template <typename Value>
double Median(const std::vector<Round>& rounds, const Value& value) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(value(round));
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void PrintClass(const char* name, const std::vector<Round>& rounds) {
  if (rounds.empty()) {
    std::printf("%s: no round\n", name);
    return;
  }
  std::printf("%s: %zu rounds, %.0f ns core to core; medians, wall ns per pair over all threads\n", name, rounds.size(),
              Median(rounds, [](const Round& round) { return round.latency; }));
  std::printf("  threads  untracked    tracked      added  tracked throughput / that of 1 thread\n");
  for (int i = 0; i < kCounts; ++i) {
    std::printf("  %7d %10.1f %10.1f %10.1f %10.2fx\n", kThreadCounts[i],
                Median(rounds, [i](const Round& round) { return round.untracked[i]; }),
                Median(rounds, [i](const Round& round) { return round.tracked[i]; }),
                Median(rounds, [i](const Round& round) { return round.tracked[i] - round.untracked[i]; }),
                Median(rounds, [i](const Round& round) { return round.tracked[0] / round.tracked[i]; }));
  }
  std::printf(
      "  2 threads: %.2fx of 1 (goal: at least 1.85x; untracked %.2fx). 8 threads: %.2fx the wall time of 2 "
      "(goal: at most 1.3x; untracked %.2fx).\n",
      Median(rounds, [](const Round& round) { return round.tracked[0] / round.tracked[1]; }),
      Median(rounds, [](const Round& round) { return round.untracked[0] / round.untracked[1]; }),
      Median(rounds, [](const Round& round) { return round.tracked[3] / round.tracked[1]; }),
      Median(rounds, [](const Round& round) { return round.untracked[3] / round.untracked[1]; }));
}

}  // namespace
}  // namespace hbmprof::benchmarks

int main(int argc, char** argv) {
  using namespace hbmprof::benchmarks;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  const int milliseconds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 100;
  std::vector<Round> near;
  std::vector<Round> far;
  for (int i = 0; i < rounds; ++i) {
    Round round;
    hbmprof::Profiler profiler;
    for (int count = 0; count < kCounts; ++count) {
      round.untracked[count] = Run(nullptr, kThreadCounts[count], milliseconds);
      round.tracked[count] = Run(&profiler, kThreadCounts[count], milliseconds);
    }
    // Measured after the work, because then neither core is in a sleep state.
    round.latency = CoreToCoreNanoseconds();
    (round.latency < kFarNanoseconds ? near : far).push_back(round);
  }
  PrintClass("near", near);
  PrintClass("far", far);
  return 0;
}
