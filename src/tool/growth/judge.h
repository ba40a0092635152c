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

// REQUIRES: at least two dumps, lists of the same length.
struct Course {
  std::vector<double> at;         // time of the dump in any unit; strictly increasing
  std::vector<double> in_use;     // bytes in use at that time
  bool frees_in_batches = false;  // memory was freed before the first dump, and none since
};

struct Judgement {
  Verdict verdict = Verdict::kFlat;
  Sure sure = Sure::kLow;  // of kLeak and kPerhaps

  // Figures of the whole course.
  double taken = 0;         // the sum of all rises
  double returned = 0;      // the sum of all falls
  double fall = 0;          // the largest fall
  size_t last_growth = 0;   // the last dump whose value is larger than that of the dump before it
  bool in_jumps = false;    // looks like a few one-time jumps
  bool fluctuates = false;  // a leak only because the trend of the values rises

  // Figures of kLeak and kPerhaps, since `first`.
  size_t first = 0;      // the first dump that the verdict is based on
  size_t steps = 0;      // number of intervals with kept growth
  double late = 0;       // growth in the last third / mean growth in the last two thirds: 1 if even, 0 if it stopped
  bool slowing = false;  // in each third the growth is clearly less than in the one before, or it approaches a limit
};

Judgement Judge(const Course& course);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_JUDGE_H_
