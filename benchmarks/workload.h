// Code that several benchmarks use: a small random generator, the allocations and frees of one thread, and a function
// for resident memory. Not in this file: the call chain that ends in this work (call_chain.h).
#ifndef HBMPROF_BENCHMARKS_WORKLOAD_H_
#define HBMPROF_BENCHMARKS_WORKLOAD_H_

#include <cinttypes>
#include <cstdint>
#include <cstdio>

#include "hbmprof/profiler.h"

namespace hbmprof::benchmarks {

// A generator with few instructions, so that the untracked loop is short.
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

// The path of stack number `i` for Descend (call_chain.h): different numbers below 2^n have different paths of n bits.
inline uint64_t PathOf(uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15u; }

// One thread's part of the work: buffers of 256 bytes each, at addresses that no other thread uses. There is no real
// device: an address is computed. So the difference to the untracked run is only the tracker's cost.
struct Worker {
  Profiler* profiler = nullptr;  // null: untracked
  uint64_t first_address = 0;
  uint64_t slot = 0;  // the buffer that the next Replace frees
  bool filling = true;
  volatile int64_t allocated = 0;

  Worker() = default;
  Worker(Profiler* profiler, int thread)
      : profiler(profiler), first_address((uint64_t{1} << 40) + (static_cast<uint64_t>(thread) << 32)) {}

  BufferId id() const { return BufferId(first_address + slot * 256); }

  // The functions at the end of the call chain (call_chain.h). Each makes one pair of a free and an allocation, or only
  // an allocation if `filling` is true. `argument` is the Worker.
  static void Replace(void* argument) {
    auto* self = static_cast<Worker*>(argument);
    if (self->profiler != nullptr) {
      if (!self->filling) self->profiler->RecordFree(self->id());
      self->profiler->RecordAlloc(self->id(), 256);
    }
    self->allocated = self->allocated + 256;
  }
  // The same with a block of a pool.
  static void ReplaceBlock(void* argument) {
    auto* self = static_cast<Worker*>(argument);
    if (self->profiler != nullptr) {
      if (!self->filling) self->profiler->RecordBlockFree({}, self->id());
      self->profiler->RecordBlock({}, self->id(), 256);
    }
    self->allocated = self->allocated + 256;
  }
};

// Returns the resident memory of this process in bytes, exact to a page. Returns -1 if the system does not report it.
// Takes milliseconds.
inline int64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
  if (file == nullptr) return -1;
  char line[256];
  int64_t kilobytes = -1;
  while (kilobytes < 0 && std::fgets(line, sizeof(line), file) != nullptr) {
    std::sscanf(line, "Rss: %" SCNd64, &kilobytes);
  }
  std::fclose(file);
  return kilobytes < 0 ? -1 : kilobytes * 1024;
}

}  // namespace hbmprof::benchmarks

#endif  // HBMPROF_BENCHMARKS_WORKLOAD_H_
