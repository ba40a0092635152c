// Judges one course: the bytes that a call site has in use at each of several dumps. Decides whether it is a leak.
// Arithmetic only: growth.h reads courses from profiles and explains verdicts. docs/leaks.md describes the method.
#ifndef HBMPROF_SRC_TOOL_GROWTH_JUDGE_H_
#define HBMPROF_SRC_TOOL_GROWTH_JUDGE_H_

#include <cstddef>
#include <vector>

namespace hbmprof::tool {

enum class Verdict {
  kLeak,       // kept memory grew in enough independent steps, until the end
  kPerhaps,    // grew, but the dumps do not show whether growth goes on
  kStopped,    // grew and stopped: a cache that is warm, a pool that is large enough
  kUpAndDown,  // grew and shrank
  kFlat,       // did not grow
};
enum class Sure { kHigh, kMedium, kLow };

// REQUIRES: at least two dumps, lists of the same length; `allocated` may be empty.
struct Course {
  std::vector<double> at;         // time of the dump in any unit; strictly increasing
  std::vector<double> in_use;     // bytes in use at that time
  std::vector<double> allocated;  // bytes allocated until then, freed or not
};

struct Judgement {
  // The rule that led to the verdict.
  enum class Reason {
    kKept,            // grew in steps that later falls did not undo
    kEven,            // grew at nearly the same rate in the last three intervals
    kKeptAfterStart,  // the same as kKept, if the first dumps are left out
    kTrend,           // the values fluctuate, and their trend rises
    kNone,
  };

  Verdict verdict = Verdict::kFlat;
  Sure sure = Sure::kLow;  // of kLeak and kPerhaps
  Reason reason = Reason::kNone;
  size_t first = 0;  // the first dump that the verdict is based on

  // Figures since `first`.
  double kept = 0;        // the growth that remains if the largest fall happens again
  double fall = 0;        // the largest fall of the whole course
  size_t steps = 0;       // number of intervals with kept growth
  double late = 0;        // growth in the last third / mean growth in the last two thirds: 1 if even, 0 if it stopped
  double tail = 0;        // the time after the last growth, as a share of the whole time
  bool slowing = false;   // in each third the growth is clearly less than in the one before, or it approaches a limit
  bool in_jumps = false;  // looks like a few one-time jumps
  double trend = 0;       // slope of the least-squares line / its standard error, for a course with falls

  // Figures of the whole course.
  double taken = 0;        // the sum of all rises
  double returned = 0;     // the sum of all falls
  size_t last_growth = 0;  // the last dump whose value is larger than that of the dump before it
};

Judgement Judge(const Course& course);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_JUDGE_H_
