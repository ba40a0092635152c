// Judges one course: what a call site has in use at each of several dumps, and whether that is a leak. Arithmetic only;
// reading courses from profiles and the words of the answer are in growth.h. The method: docs/leaks.md.
#ifndef HBMPROF_SRC_TOOL_JUDGE_H_
#define HBMPROF_SRC_TOOL_JUDGE_H_

#include <cstddef>
#include <vector>

namespace hbmprof::tool {

enum class Verdict {
  kLeak,       // what it keeps grew in enough independent steps, until the end
  kPerhaps,    // grew, but the dumps do not tell whether it goes on
  kStopped,    // grew and stopped: a cache that is warm, a pool that is large enough
  kUpAndDown,  // grew and shrank
  kFlat,       // did not grow
};
enum class Sure { kHigh, kMedium, kLow };

// At least two dumps. The lists have one length; `allocated` may be empty instead.
struct Course {
  std::vector<double> at;         // when, in any unit; strictly increasing
  std::vector<double> in_use;     // at that time
  std::vector<double> allocated;  // until then, whether freed or not
};

struct Judgement {
  // What the verdict rests on.
  enum class Reason {
    kKept,            // grew in steps that were not given back
    kEven,            // grew at nearly the same rate in the last three intervals
    kKeptAfterStart,  // as kKept, once the first dumps are left out
    kTrend,           // grew below noise
    kNone,
  };

  Verdict verdict = Verdict::kFlat;
  Sure sure = Sure::kLow;  // of kLeak and kPerhaps
  Reason reason = Reason::kNone;
  size_t first = 0;  // the dump from which on it is judged

  // Figures since `first`.
  double kept = 0;        // the growth that would be left if the largest fall came again
  double fall = 0;        // the largest fall of the whole course
  size_t steps = 0;       // intervals in which it grew for good
  double late = 0;        // growth of the last third by the mean of the last two: 1 if even, 0 if it stopped
  double tail = 0;        // the part of the time after the last growth
  bool slowing = false;   // each third grew clearly less than the one before, or it approaches a limit
  bool in_jumps = false;  // as a few one-time jumps would do it
  double trend = 0;       // the slope of the least-squares line by its standard error, of a course with falls

  // Figures of the whole course.
  double taken = 0;        // the sum of all rises
  double returned = 0;     // the sum of all falls
  size_t last_growth = 0;  // the last dump that was larger than the one before
};

Judgement Judge(const Course& course);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_JUDGE_H_
