// What does recording cost? One alloc and one free with a full stack, against the same work untracked, in one run.
//
// Each iteration descends a call chain (call_chain.h), frees a random buffer of a live set and allocates it anew. The
// "device" is a table of addresses, so that what is left over the untracked run is the tracker's cost alone.
// benchmarks/report.py turns the output into a table of added nanoseconds.

#include <benchmark/benchmark.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/call_chain.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"

namespace hbmprof::benchmarks {
namespace {

struct Case {
  const char* name;
  void (*descend)(int, uint64_t, Leaf, void*);
  Unwinder unwinder;
  int depth;
  int stacks;
  int64_t live;
};

// A small generator, so that the untracked loop is short.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

 private:
  uint64_t state_;
};

// One thread's part of the work: slots of its own.
struct Worker {
  Profiler* profiler;  // null: untracked
  uint64_t first_address;
  uint64_t slot;
  int64_t allocated = 0;

  static void Replace(void* argument) {
    auto* self = static_cast<Worker*>(argument);
    const BufferId id(self->first_address + self->slot * 256);
    if (self->profiler != nullptr) {
      self->profiler->RecordFree(id);
      self->profiler->RecordAlloc(id, 256);
    }
    benchmark::DoNotOptimize(self->allocated += 256);
  }
  static void Fill(void* argument) {
    auto* self = static_cast<Worker*>(argument);
    self->profiler->RecordAlloc(BufferId(self->first_address + self->slot * 256), 256);
  }
};

enum class Tracking { kNone, kOff, kOn };

void Pair(benchmark::State& state, const Case& the_case, Tracking tracking) {
  static std::unique_ptr<Profiler> profiler;
  if (state.thread_index() == 0) {
    Options options;
    options.unwinder = the_case.unwinder;
    options.enabled = tracking != Tracking::kOff;
    profiler = tracking == Tracking::kNone ? nullptr : std::make_unique<Profiler>(options);
  }
  const int64_t slots = the_case.live / state.threads();
  std::vector<uint64_t> paths;
  Random random(static_cast<uint64_t>(state.thread_index()) + 1);
  for (int i = 0; i < the_case.stacks; ++i) paths.push_back(random.Next());
  bool filled = false;
  Worker worker{};
  for (auto _ : state) {
    if (!filled) {  // the threads have met: the profiler exists
      state.PauseTiming();
      worker = {profiler.get(), (uint64_t{1} << 40) + (static_cast<uint64_t>(state.thread_index()) << 32), 0};
      for (int64_t i = 0; i < slots && worker.profiler != nullptr; ++i) {
        worker.slot = static_cast<uint64_t>(i);
        the_case.descend(the_case.depth, paths[random.Next() % paths.size()], &Worker::Fill, &worker);
      }
      filled = true;
      state.ResumeTiming();
    }
    const uint64_t draw = random.Next();
    worker.slot = (draw >> 32) % static_cast<uint64_t>(slots);
    the_case.descend(the_case.depth, paths[draw % paths.size()], &Worker::Replace, &worker);
  }
}

void TagScope(benchmark::State& state) {
  for (auto _ : state) {
    ScopedTag tag("phase", "decode");
    benchmark::ClobberMemory();
  }
}
BENCHMARK(TagScope);

// `pairs`: iterations of every case, for counting instructions; 0: as many as the time asks for.
void Register(int64_t pairs) {
  static const Case kCases[] = {
      {"fp_random256", with_frame_pointers::Descend, Unwinder::kAuto, 17, 256, 10000},
      {"nofp_random256", without_frame_pointers::Descend, Unwinder::kAuto, 17, 256, 10000},
      {"fp_repeating", with_frame_pointers::Descend, Unwinder::kAuto, 17, 1, 10000},
      {"nofp_repeating", without_frame_pointers::Descend, Unwinder::kAuto, 17, 1, 10000},
      {"nofp_64frames_repeating", without_frame_pointers::Descend, Unwinder::kAuto, 58, 1, 10000},
      {"nofp_64frames_random", without_frame_pointers::Descend, Unwinder::kAuto, 58, 256, 10000},
      {"nofp_random10000", without_frame_pointers::Descend, Unwinder::kAuto, 17, 10000, 10000},
      {"nofp_1M_live", without_frame_pointers::Descend, Unwinder::kAuto, 17, 256, 1000000},
      {"fp_chain_only", with_frame_pointers::Descend, Unwinder::kFramePointer, 17, 256, 10000},
      {"libunwind", without_frame_pointers::Descend, Unwinder::kLibunwind, 17, 256, 10000},
      {"no_stack", without_frame_pointers::Descend, Unwinder::kNone, 17, 256, 10000},
  };
  for (const Case& the_case : kCases) {
    for (const auto& [word, tracking] :
         {std::pair("untracked", Tracking::kNone), {"off", Tracking::kOff}, {"tracked", Tracking::kOn}}) {
      auto* run = benchmark::RegisterBenchmark((std::string(the_case.name) + "/" + word).c_str(),
                                               [&the_case, tracking = tracking](benchmark::State& state) {
                                                 Pair(state, the_case, tracking);
                                               });
      run->UseRealTime()->Threads(1);
      if (pairs > 0) run->Iterations(pairs);
      if (std::string(the_case.name).find("random256") != std::string::npos) run->Threads(2)->Threads(8);
    }
  }
}

}  // namespace
}  // namespace hbmprof::benchmarks

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  int64_t pairs = 0;
  if (argc == 2 && std::sscanf(argv[1], "--pairs=%" SCNd64, &pairs) == 1) --argc;
  hbmprof::benchmarks::Register(pairs);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
