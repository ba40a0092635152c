// The work that peers.sh runs with each tracker: pairs of free and malloc at the end of a call chain.
//
// usage: peer_bench none|hbmprof fp|nofp THREADS STACKS LIVE SECONDS
//
// Prints wall nanoseconds per pair over all threads, and processor nanoseconds per pair of the working threads.

#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "benchmarks/call_chain.h"
#include "benchmarks/workload.h"
#include "hbmprof/profiler.h"

namespace hbmprof::benchmarks {
namespace {

constexpr size_t kBytes = 256;

struct Block {
  Profiler* profiler;  // null: no tracker, or a preloaded one that wraps malloc and free
  void** slot;

  static void Replace(void* argument) {
    auto* self = static_cast<Block*>(argument);
    if (self->profiler != nullptr) self->profiler->RecordFree(*self->slot);
    std::free(*self->slot);
    *self->slot = std::malloc(kBytes);
    if (self->profiler != nullptr) self->profiler->RecordAlloc(*self->slot, kBytes);
  }
};

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

int Main(char** argv) {
  const bool own = std::strcmp(argv[1], "hbmprof") == 0;
  const auto descend = std::strcmp(argv[2], "fp") == 0 ? with_frame_pointers::Descend : without_frame_pointers::Descend;
  const int threads = std::atoi(argv[3]);
  const int stacks = std::atoi(argv[4]);
  const int live = std::atoi(argv[5]) / threads;
  const double seconds = std::atof(argv[6]);

  std::unique_ptr<Profiler> profiler = own ? std::make_unique<Profiler>() : nullptr;
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::atomic<bool> stop{false};
  std::atomic<int64_t> all_pairs{0};
  std::vector<double> processor_seconds(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (int number = 0; number < threads; ++number) {
    running.emplace_back([&, number] {
      Random random(static_cast<uint64_t>(number) + 1);
      std::vector<uint64_t> paths;
      for (int i = 0; i < stacks; ++i) paths.push_back(PathOf(static_cast<uint64_t>(number * stacks + i)));
      std::vector<void*> blocks(static_cast<size_t>(live));
      Block block{profiler.get(), nullptr};
      for (void*& slot : blocks) {
        block.slot = &slot;
        descend(17, paths[random.Next() % paths.size()], &Block::Replace, &block);
      }
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      int64_t pairs = 0;
      const double start = ThreadSeconds();
      while (!stop.load(std::memory_order_relaxed)) {
        for (int i = 0; i < 20; ++i) {
          const uint64_t draw = random.Next();
          block.slot = &blocks[(draw >> 32) % blocks.size()];
          descend(17, paths[draw % paths.size()], &Block::Replace, &block);
        }
        pairs += 20;
      }
      processor_seconds[static_cast<size_t>(number)] = ThreadSeconds() - start;
      all_pairs.fetch_add(pairs);
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go.store(true, std::memory_order_release);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop.store(true, std::memory_order_relaxed);
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  double processor = 0;
  for (std::thread& thread : running) thread.join();
  for (const double value : processor_seconds) processor += value;
  const auto pairs = static_cast<double>(all_pairs.load());
  std::printf("%.1f %.1f\n", elapsed * 1e9 / pairs, processor * 1e9 / pairs);
  return 0;
}

}  // namespace
}  // namespace hbmprof::benchmarks

int main(int argc, char** argv) {
  if (argc != 7 || std::atoi(argv[3]) < 1 || std::atoi(argv[4]) < 1 || std::atoi(argv[5]) < std::atoi(argv[3])) {
    std::fputs("usage: peer_bench none|hbmprof fp|nofp THREADS STACKS LIVE SECONDS\n", stderr);
    return 2;
  }
  return hbmprof::benchmarks::Main(argv);
}
