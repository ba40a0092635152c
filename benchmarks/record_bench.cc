// What does recording cost? Compares one allocation and one free with a full stack with the same work untracked, in one
// run.
//
//   CASE/{untracked,off,tracked,recorded}
//                                  each iteration descends a call chain (call_chain.h), frees a random buffer of a live
//                                  set and allocates it again. `recorded`: also writes the events to the ring of a
//                                  flight recorder. Counter `frames`: mean depth of the recorded stacks. `*_block`: the
//                                  buffers are blocks of a pool with one segment; `*_64segments`: with 64 segments.
//   TagScope                       the construction and the destruction of one ScopedTag.
//   Memory/1M_live                 counters: resident bytes per live record with 1M records, and the bytes that remain
//                                  when 10k records are left.
//   FirstCapture/{untracked,tracked}   a thread's first allocation. Counter `bytes_per_thread`: resident memory that
//                                  each thread then has. The difference of the two is the tracker's part.
//   StartUp                        in a new process: the construction of a Profiler and its first allocation. Counter:
//                                  `bytes`.
// benchmarks/report.py turns the output into the table of goals.

#include <benchmark/benchmark.h>

#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/call_chain.h"
#include "benchmarks/workload.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/core/generations.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"

namespace hbmprof::benchmarks {
namespace {

struct Case {
  const char* name;
  void (*descend)(int, uint64_t, Leaf, void*);
  Unwinder unwinder;
  int frames;  // of each stack, including the callers of the benchmark's function
  int stacks;
  int64_t live;
  uint64_t segments = 0;  // if not 0: the buffers are blocks of a pool with this number of segments
};

enum class Tracking { kNone, kOff, kOn, kRecorded };

// Returns the depth with which the calling function must call Descend, so that the stacks have `the_case.frames`
// frames.
[[gnu::always_inline]] inline int DepthFor(const Case& the_case) {
  Profiler profiler;
  Worker worker(&profiler, 0);
  the_case.descend(1, 0, &Worker::Replace, &worker);
  return 1 + the_case.frames - static_cast<int>(profiler.TakeSnapshot().stacks.at(0).return_addresses.size());
}

std::unique_ptr<Profiler> profiler;

void RunPairs(benchmark::State& state, const Case& the_case) {
  const int depth = DepthFor(the_case);
  const auto thread = static_cast<uint64_t>(state.thread_index());
  const auto slots = static_cast<uint64_t>(the_case.live / state.threads());
  const auto stacks = static_cast<uint64_t>(the_case.stacks);
  const Leaf leaf = the_case.segments > 0 ? &Worker::ReplaceBlock : &Worker::Replace;
  std::vector<uint64_t> paths;
  for (uint64_t i = 0; i < stacks; ++i) paths.push_back(PathOf(thread * stacks + i));
  Random random(thread + 1);
  Worker worker(nullptr, state.thread_index());
  for (auto _ : state) {
    if (worker.filling) {  // all threads have started, so the profiler exists
      state.PauseTiming();
      worker.profiler = profiler.get();
      for (uint64_t i = 0; i < the_case.segments && worker.profiler != nullptr; ++i) {
        worker.slot = slots * i / the_case.segments;
        worker.profiler->RecordSegment({}, worker.id(), (slots * (i + 1) / the_case.segments - worker.slot) * 256);
      }
      for (worker.slot = 0; worker.slot < slots && worker.profiler != nullptr; ++worker.slot) {
        the_case.descend(depth, paths[random.Next() % paths.size()], leaf, &worker);
      }
      worker.filling = false;
      state.ResumeTiming();
    }
    const uint64_t draw = random.Next();
    worker.slot = (draw >> 32) % slots;
    the_case.descend(depth, paths[draw % paths.size()], leaf, &worker);
  }
  asm volatile("");
}

// Records the events of `profiler` into a ring of 16 MiB, as the flight recorder does.
void StartRing() {
  constexpr size_t kBuffers = 256;
  internal::Ledger& ledger = internal::ProfilerAccess::ImplOf(*profiler).ledger();
  if (!ledger.log().Allocate(kBuffers)) std::abort();
  const internal::EventLog::Mode mode = internal::EventLog::Mode::kRing;
  int64_t instant;
  ledger.Snapshot(&instant, &mode);
}

void Pair(benchmark::State& state, const Case& the_case, Tracking tracking) {
  if (state.thread_index() == 0) {
    Options options;
    options.unwinder = the_case.unwinder;
    options.enabled = tracking != Tracking::kOff;
    profiler = tracking == Tracking::kNone ? nullptr : std::make_unique<Profiler>(options);
    if (tracking == Tracking::kRecorded) StartRing();
  }
  // Runs in a new thread, so that the stacks have the frames of the chain and not those of the benchmark library.
  std::thread([&] { RunPairs(state, the_case); }).join();
  if ((tracking == Tracking::kOn || tracking == Tracking::kRecorded) && state.thread_index() == 0) {
    const Snapshot snapshot = profiler->TakeSnapshot();
    size_t frames = 0;
    for (const Snapshot::Stack& stack : snapshot.stacks) frames += stack.return_addresses.size();
    state.counters["frames"] = static_cast<double>(frames) / static_cast<double>(snapshot.stacks.size());
    state.counters["stacks"] = static_cast<double>(snapshot.stacks.size());
  }
}

void TagScope(benchmark::State& state) {
  for (auto _ : state) {
    ScopedTag tag("phase", "decode");
    benchmark::ClobberMemory();
  }
}
BENCHMARK(TagScope);

using Clock = std::chrono::steady_clock;
double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

void MemoryOfLiveRecords(benchmark::State& state) {
  constexpr uint64_t kLive = 1000000;
  constexpr uint64_t kLeft = 10000;
  for (auto _ : state) {
    Profiler profiler;
    Worker worker(&profiler, 0);
    Random random(1);
    without_frame_pointers::Descend(17, 0, &Worker::Replace, &worker);
    profiler.RecordFree(worker.id());
    const int64_t before = ResidentBytes();
    for (worker.slot = 0; worker.slot < kLive; ++worker.slot) {
      without_frame_pointers::Descend(17, random.Next() % 256, &Worker::Replace, &worker);
    }
    const int64_t full = ResidentBytes();
    for (worker.slot = kLeft; worker.slot < kLive; ++worker.slot) profiler.RecordFree(worker.id());
    const int64_t emptied = ResidentBytes();
    state.counters["bytes_per_live"] = static_cast<double>(full - before) / kLive;
    state.counters["MiB_at_1M"] = static_cast<double>(full - before) / (1 << 20);
    state.counters["MiB_at_10k_after"] = static_cast<double>(emptied - before) / (1 << 20);
  }
}
BENCHMARK(MemoryOfLiveRecords)->Name("Memory/1M_live")->Iterations(1)->Unit(benchmark::kMillisecond);

// The threads make their first allocations one after the other. Then all of them wait until the memory is measured.
void FirstCapture(benchmark::State& state, Tracking tracking) {
  constexpr int kThreads = 64;
  Profiler profiler;
  std::mutex mutex;
  std::condition_variable changed;
  int done = 0;
  bool measured = true;
  double seconds = 0;
  const auto body = [&](int number, bool wait) {
    Worker worker(tracking == Tracking::kOn ? &profiler : nullptr, number);
    const Clock::time_point start = Clock::now();
    without_frame_pointers::Descend(17, 5, &Worker::Replace, &worker);
    const Clock::time_point end = Clock::now();
    std::unique_lock<std::mutex> lock(mutex);
    if (wait) seconds += Seconds(end - start);
    ++done;
    changed.notify_all();
    if (wait) changed.wait(lock, [&] { return measured; });
  };
  // This thread does the work that a process does only once, so that it does not count as the cost of a thread.
  std::thread(body, kThreads, false).join();
  double bytes = 0;
  for (auto _ : state) {
    done = 0;
    measured = false;
    seconds = 0;
    const int64_t before = ResidentBytes();
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; ++number) {
      threads.emplace_back(body, number, true);
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return done == number + 1; });
    }
    bytes = static_cast<double>(ResidentBytes() - before) / kThreads;
    {
      std::lock_guard<std::mutex> lock(mutex);
      measured = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
    state.SetIterationTime(seconds / kThreads);
  }
  state.counters["bytes_per_thread"] = bytes;
}
BENCHMARK_CAPTURE(FirstCapture, untracked, Tracking::kNone)->Iterations(4)->UseManualTime();
BENCHMARK_CAPTURE(FirstCapture, tracked, Tracking::kOn)->Iterations(4)->UseManualTime();

// `record_bench --start-up` prints the nanoseconds and the resident bytes of a new process's first allocation.
constexpr char kStartUp[] = "--start-up";
int PrintStartUp() {
  with_frame_pointers::Descend(17, 5, &Worker::Replace, &*std::make_unique<Worker>());
  const int64_t before = ResidentBytes();
  const Clock::time_point start = Clock::now();
  Profiler profiler;
  Worker worker(&profiler, 0);
  with_frame_pointers::Descend(17, 5, &Worker::Replace, &worker);
  const double seconds = Seconds(Clock::now() - start);
  std::printf("%.0f %" PRId64 "\n", seconds * 1e9, ResidentBytes() - before);
  return 0;
}

void StartUp(benchmark::State& state, const std::string& program) {
  for (auto _ : state) {
    double nanoseconds = 0;
    double bytes = 0;
    std::FILE* output = popen(("'" + program + "' " + kStartUp).c_str(), "r");
    const int read = output == nullptr ? 0 : std::fscanf(output, "%lf %lf", &nanoseconds, &bytes);
    if (output != nullptr) pclose(output);
    if (read != 2) return state.SkipWithError("the new process did not answer");
    state.SetIterationTime(nanoseconds * 1e-9);
    state.counters["bytes"] = bytes;
  }
}

// `program`: the path of this program. `pairs`: the iterations of each case, for counting instructions; if 0, the
// benchmark library chooses them by the time.
void Register(const char* program, int64_t pairs) {
  static const Case kCases[] = {
      {"fp_random256", with_frame_pointers::Descend, Unwinder::kAuto, 23, 256, 10000},
      {"nofp_random256", without_frame_pointers::Descend, Unwinder::kAuto, 23, 256, 10000},
      {"fp_repeating", with_frame_pointers::Descend, Unwinder::kAuto, 23, 1, 10000},
      {"nofp_repeating", without_frame_pointers::Descend, Unwinder::kAuto, 23, 1, 10000},
      {"nofp_64frames_repeating", without_frame_pointers::Descend, Unwinder::kAuto, 64, 1, 10000},
      {"nofp_64frames_random", without_frame_pointers::Descend, Unwinder::kAuto, 64, 256, 10000},
      {"nofp_random10000", without_frame_pointers::Descend, Unwinder::kAuto, 23, 10000, 10000},
      {"nofp_1M_live", without_frame_pointers::Descend, Unwinder::kAuto, 23, 256, 1000000},
      {"fp_chain_only", with_frame_pointers::Descend, Unwinder::kFramePointer, 23, 256, 10000},
      {"no_stack", without_frame_pointers::Descend, Unwinder::kNone, 23, 256, 10000},
      {"fp_random256_block", with_frame_pointers::Descend, Unwinder::kAuto, 23, 256, 10000, 1},
      {"fp_repeating_block", with_frame_pointers::Descend, Unwinder::kAuto, 23, 1, 10000, 1},
      {"fp_repeating_block_64segments", with_frame_pointers::Descend, Unwinder::kAuto, 23, 1, 10000, 64},
  };
  for (const Case& the_case : kCases) {
    for (const auto& [word, tracking] : {std::pair("untracked", Tracking::kNone),
                                         {"off", Tracking::kOff},
                                         {"tracked", Tracking::kOn},
                                         {"recorded", Tracking::kRecorded}}) {
      if (tracking == Tracking::kRecorded && the_case.live != 10000) continue;
      auto* run = benchmark::RegisterBenchmark(
          (std::string(the_case.name) + "/" + word).c_str(),
          [&the_case, tracking = tracking](benchmark::State& state) { Pair(state, the_case, tracking); });
      run->UseRealTime()->Threads(1);
      if (pairs > 0) run->Iterations(pairs);
      if (std::string(the_case.name).find("random256") != std::string::npos && the_case.segments == 0) {
        run->Threads(2)->Threads(8);
      }
    }
  }
  benchmark::RegisterBenchmark("StartUp",
                               [program = std::string(program)](benchmark::State& state) { StartUp(state, program); })
      ->Iterations(9)
      ->UseManualTime();
}

}  // namespace
}  // namespace hbmprof::benchmarks

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], hbmprof::benchmarks::kStartUp) == 0) return hbmprof::benchmarks::PrintStartUp();
  benchmark::Initialize(&argc, argv);
  int64_t pairs = 0;
  if (argc == 2 && std::sscanf(argv[1], "--pairs=%" SCNd64, &pairs) == 1) --argc;
  // Under valgrind, the buffers would get old while the instructions are counted.
  if (pairs > 0) hbmprof::internal::generation_clock.store([] { return int64_t{0}; });
  hbmprof::benchmarks::Register(argv[0], pairs);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
