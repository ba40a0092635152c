// What does the capture of a stack cost? Time per capture, by unwinder:
//   Same/UNWINDER/DEPTH       the same stack again and again
//   Varied/UNWINDER/STACKS    each time one of STACKS stacks, chosen at random: 24 frames and their callers. The time
//                             includes the calls themselves; subtract Varied/none.
//   NewThread/UNWINDER        the first capture of a thread. The time includes the creation of the thread; subtract
//                             NewThread/none.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <thread>
#include <utility>

#include "src/capture/capture.h"

namespace {

using hbmprof::Caller;
using hbmprof::Unwinder;
using hbmprof::internal::StackCapture;

constexpr int kDepth = 128;

const StackCapture& CaptureOf(Unwinder unwinder) {
  static const StackCapture by_rules(Unwinder::kAuto);
  static const StackCapture by_frame_pointers(Unwinder::kFramePointer);
  static const StackCapture none(Unwinder::kNone);
  return unwinder == Unwinder::kAuto ? by_rules : unwinder == Unwinder::kFramePointer ? by_frame_pointers : none;
}

[[gnu::noinline]] int CaptureHere(const StackCapture& capture) {
  const Caller caller = Caller::OfThisFunction();
  uintptr_t pcs[kDepth];
  const int depth = capture.Capture(caller, pcs, kDepth).depth;
  benchmark::DoNotOptimize(pcs);
  return depth;
}

// The argument of a chain of calls, which ends in captures.
struct Work {
  const StackCapture* capture;
  benchmark::State* state;  // null: one capture only
  int frames;
};

using Step = int (*)(uint64_t seed, int depth, Work* work);
constexpr int kFunctions = 256;
extern const Step* const steps;

// Each kNumber makes a different function with a frame of a different size.
template <int kNumber>
[[gnu::noinline]] int Link(uint64_t seed, int depth, Work* work) {
  volatile char block[8 + kNumber * 40 % 600];
  block[0] = 1;
  int result = 0;
  if (depth > 0) {
    const uint64_t next = seed * 6364136223846793005u + 1442695040888963407u;
    result = steps[(seed >> 40) % kFunctions](next, depth - 1, work);
  } else if (work->state == nullptr) {
    result = CaptureHere(*work->capture);
  } else {
    for (auto _ : *work->state) work->frames = CaptureHere(*work->capture);
  }
  return result + block[0];
}

template <int... kNumbers>
struct Steps {
  static constexpr Step table[] = {Link<kNumbers>...};
};
template <int... kNumbers>
constexpr const Step* TableOf(std::integer_sequence<int, kNumbers...>) {
  return Steps<kNumbers...>::table;
}
const Step* const steps = TableOf(std::make_integer_sequence<int, kFunctions>());

void Same(benchmark::State& state, Unwinder unwinder) {
  Work work = {&CaptureOf(unwinder), &state, 0};
  steps[0](7, static_cast<int>(state.range(0)) - 1, &work);
  state.counters["frames"] = work.frames;
}

void Varied(benchmark::State& state, Unwinder unwinder) {
  Work work = {&CaptureOf(unwinder), nullptr, 0};
  uint64_t random = 1;
  for (auto _ : state) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const uint64_t stack = (random >> 33) % static_cast<uint64_t>(state.range(0));
    benchmark::DoNotOptimize(steps[0](stack * 0x9e3779b97f4a7c15u, 23, &work));
  }
}

void NewThread(benchmark::State& state, Unwinder unwinder) {
  for (auto _ : state) {
    std::thread([unwinder] { CaptureHere(CaptureOf(unwinder)); }).join();
  }
}

#define CAPTURE_BENCHMARKS(name, unwinder)                                             \
  BENCHMARK_CAPTURE(Same, name, unwinder)->Arg(8)->Arg(16)->Arg(24)->Arg(32)->Arg(64); \
  BENCHMARK_CAPTURE(Varied, name, unwinder)->Arg(1)->Arg(16)->Arg(256)->Arg(10000);    \
  BENCHMARK_CAPTURE(NewThread, name, unwinder)

CAPTURE_BENCHMARKS(auto, Unwinder::kAuto);
CAPTURE_BENCHMARKS(frame_pointer, Unwinder::kFramePointer);
CAPTURE_BENCHMARKS(none, Unwinder::kNone);

}  // namespace

BENCHMARK_MAIN();
