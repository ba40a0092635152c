#include "src/core/generations.h"

#include <time.h>

#include <algorithm>

#include "src/base/monotonic_clock.h"

namespace hbmprof::internal {
namespace {

int64_t CoarseNanos() { return ClockNanos(CLOCK_MONOTONIC_COARSE); }

std::atomic<int64_t> start{INT64_MIN};  // in the clock's time; INT64_MIN: not known yet

}  // namespace

std::atomic<Generation> present_generation{0};
std::atomic<int64_t (*)()> generation_clock{&CoarseNanos};

int64_t LookAtClock() {
  const int64_t now = generation_clock.load(std::memory_order_relaxed)();
  int64_t begin = start.load(std::memory_order_relaxed);
  if (begin == INT64_MIN && start.compare_exchange_strong(begin, now, std::memory_order_relaxed)) begin = now;
  const int64_t nanos = std::max<int64_t>(now - begin, 0);
  const Generation generation = GenerationAt(std::min(nanos / kNanosPerSecond, kMaxGenerationSeconds));
  Generation present = PresentGeneration();
  while (present < generation &&
         !present_generation.compare_exchange_weak(present, generation, std::memory_order_relaxed)) {
  }
  return nanos;
}

}  // namespace hbmprof::internal
