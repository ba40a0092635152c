// Generations: numbers of 16 bits for the times of events, in intervals since the start. An interval has one second, or
// between 0.05 % and 0.1 % of the time since the start if that is more: about 17,000 numbers in a year.
//
// The present generation is one word of the process, which events read. It advances when somebody looks at the clock
// (LookAtClock): the ledger does so every so many events.
#ifndef HBMPROF_SRC_CORE_GENERATIONS_H_
#define HBMPROF_SRC_CORE_GENERATIONS_H_

#include <atomic>
#include <cstdint>

namespace hbmprof::internal {

using Generation = uint16_t;

// The first 2^11 intervals have one second. Then each doubling of the time has 2^10 intervals. So the length of an
// interval is a power of two, and its begin is a multiple of its length.
constexpr int kGenerationBits = 10;
constexpr int64_t kMaxGenerationSeconds = int64_t{1} << 40;

// Returns the generation of the time `seconds` since the start, which is at most kMaxGenerationSeconds.
constexpr Generation GenerationAt(int64_t seconds) {
  if (seconds < int64_t{2} << kGenerationBits) return static_cast<Generation>(seconds < 0 ? 0 : seconds);
  const int shift = 63 - kGenerationBits - __builtin_clzll(static_cast<uint64_t>(seconds));
  return static_cast<Generation>((int64_t{shift} << kGenerationBits) + (seconds >> shift));
}

// Returns the time at which a generation begins, in seconds since the start.
constexpr int64_t StartOfGeneration(Generation generation) {
  const int shift = (generation >> kGenerationBits) - 1;
  if (shift <= 0) return generation;
  return (generation - (int64_t{shift} << kGenerationBits)) << shift;
}

// The number of octaves of age that are counted. Octave i has the ages from 2^i to 2^(i+1) seconds; the last one has
// all higher ages, too.
constexpr int kAgeOctaves = 24;

// Returns the octave of the age of a buffer that was born and freed in these generations; -1 if they are the same.
constexpr int OctaveOfAge(Generation birth, Generation end) {
  const int64_t age = StartOfGeneration(end) - StartOfGeneration(birth);
  if (end <= birth) return -1;
  const int octave = 63 - __builtin_clzll(static_cast<uint64_t>(age));
  return octave < kAgeOctaves ? octave : kAgeOctaves - 1;
}

// Classes of birth times: class i has the times from i << log2 to (i + 1) << log2 seconds since the start. Returns the
// smallest log2 with which the times up to `uptime_seconds` have at most 64 classes. Since there are more than 32
// unless a class has one second, every generation lies in one class.
constexpr int BirthClassLog2(int64_t uptime_seconds) {
  int log2 = 0;
  while (uptime_seconds >> log2 >= 64) ++log2;
  return log2;
}

extern std::atomic<Generation> present_generation __attribute__((visibility("hidden")));
inline Generation PresentGeneration() { return present_generation.load(std::memory_order_relaxed); }

// Reads the coarse clock, without a system call, and advances the present generation. Returns the nanoseconds since the
// start, which is the first call in this process or in the one that it was forked from. Any thread may call it.
int64_t LookAtClock();

// The clock of LookAtClock, in nanoseconds, which only tests replace.
extern std::atomic<int64_t (*)()> generation_clock __attribute__((visibility("hidden")));

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_GENERATIONS_H_
