// Labelled programs made of single buffers: each buffer has a birth, a death and a size. A call site of a known kind
// makes the buffers. From them follows what a dump at any time contains: totals, and the ages of the buffers.
#ifndef HBMPROF_TESTS_TOOL_LIVES_H_
#define HBMPROF_TESTS_TOOL_LIVES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hbmprof_test {

// Uniform random numbers. A seed gives the same numbers on every platform.
class Random {
 public:
  // The sequences of neighbouring seeds are independent.
  explicit Random(uint64_t seed);
  uint64_t Bits();
  double Uniform(double low, double high);
  // The logarithm is uniform. low > 0.
  double LogUniform(double low, double high);
  int Int(int low, int high);  // both included
  bool Chance(double p) { return Uniform(0, 1) < p; }
  double Normal();
  double Exponential(double mean);
  int64_t Poisson(double mean);

 private:
  uint64_t state_;
};

// Times are shares of the program's uptime, from 0 to 1. Buffers that are not freed die at kNever.
inline constexpr double kNever = 2;
struct Buffer {
  double birth = 0;
  double death = kNever;
  int64_t bytes = 0;
};

// The properties that all sites of one program share.
struct Run {
  enum class Load { kConstant, kNoisy, kDay, kRamp };
  double seconds = 0;        // the uptime
  std::vector<double> work;  // done at times 0, 1 / size, ..., 1; from 0 to 1

  static Run Make(Random& random);
  double WorkAt(double time) const;
  double TimeOf(double work_done) const;
};

enum class DumpTimes {
  kWhole,  // over the whole uptime
  kLate,   // in the last tenth of the uptime
};
// Returns increasing times; the last one is 1. The distances are even, jittered, random, or become larger.
std::vector<double> MakeDumpTimes(Random& random, size_t dumps, DumpTimes when);

struct Kind {
  const char* name;
  enum class Is {
    kLeak,
    kReplaced,  // leaks by replacement: a buffer is replaced by a larger one, so no buffer is old
    kNoLeak,
    kUndecidable,
  } is;
  // When the kind was written.
  enum class Use {
    kTuned,    // before the judge: the thresholds were chosen with it
    kSeen,     // before the judge: its figures were seen, but no threshold was chosen with it
    kLast,     // after the judge, and then evaluated
    kFresh,    // before the present judge of ages, whose rules were chosen with it and with all kinds above
    kHeldOut,  // likewise, but its figures were seen only when the judge was complete
    kBlind,    // after that; nothing was changed after the first look at its figures
  } use;
};
const std::vector<Kind>& Kinds();

// Returns the buffers of a site of this kind.
std::vector<Buffer> MakeSite(const Kind& kind, const Run& run, Random& random);

// What a dump contains for one site.
struct SiteState {
  int64_t bytes = 0;
  int64_t objects = 0;
  int64_t allocated = 0;  // bytes until now
  int64_t allocated_objects = 0;
  // The live buffers by classes of birth time. Class i contains the births from i * class_seconds on.
  int64_t class_seconds = 0;
  std::vector<int64_t> live_bytes;
  std::vector<int64_t> live_objects;
  // The freed buffers by age: number 0 is younger than a generation, number c lived for 2^(c-1) to 2^c seconds.
  std::vector<int64_t> freed;
};
SiteState StateAt(const std::vector<Buffer>& buffers, const Run& run, double time);

}  // namespace hbmprof_test

#endif  // HBMPROF_TESTS_TOOL_LIVES_H_
