// Decides whether a call site leaks: from one course, the bytes that it has in use at each of several dumps, and from
// one dump, the times at which its live buffers were born and the ages that its freed buffers reached. Arithmetic only:
// growth.h reads profiles and explains verdicts. docs/leaks.md says how users read them.
#ifndef HBMPROF_SRC_TOOL_GROWTH_JUDGE_H_
#define HBMPROF_SRC_TOOL_GROWTH_JUDGE_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

enum class Verdict {
  kLeak,       // kept memory grew in enough independent steps, until the end
  kPerhaps,    // grew, but the dumps do not show whether growth goes on
  kStopped,    // grew and stopped: a cache that is warm, a pool that is large enough
  kUpAndDown,  // grew and shrank
  kFlat,       // did not grow
};
enum class Sure { kHigh, kMedium, kLow };

// REQUIRES: at least three dumps, lists of the same length.
struct Course {
  std::vector<double> at;      // time of the dump in any unit; strictly increasing
  std::vector<double> in_use;  // bytes in use at that time
};

struct Judgement {
  Verdict verdict = Verdict::kFlat;
  Sure sure = Sure::kLow;  // of kLeak

  double taken = 0;        // the sum of all rises
  double returned = 0;     // the sum of all falls
  double fall = 0;         // the largest fall
  size_t last_growth = 0;  // the last dump whose value is larger than that of the dump before it

  bool is_steady = false;  // the growth is even until the end: a leak, if there are enough dumps
  // Of kLeak and kPerhaps. Kept memory is, at each dump, the lowest value from this dump on.
  size_t steps = 0;  // number of intervals in which kept memory grew
  double late = 0;   // its growth in the last third / growth in the last two thirds of the time: 0.5 if even
};

// A course whose values rise until the end may be a leak. It is one only if it is also close to a line, and has
// kEnoughDumps dumps.
inline constexpr size_t kEnoughDumps = 12;
Judgement Judge(const Course& course);

// The buffers of one call site at one dump. Times are in seconds since the start of the process.
struct LifeTable {
  double now = 0;  // the time of the dump
  // The live buffers by time of birth. Class i begins at i * class_seconds. Lists of the same length.
  double class_seconds = 1;
  std::vector<double> live;
  std::vector<double> live_bytes;
  // The freed buffers by age: number 0 did not reach one second, number c lived for 2^(c-1) seconds or more, but less
  // than 2^c.
  std::vector<double> freed;
};

struct LifeJudgement {
  enum class Finding {
    kLeak,
    // It may be a leak:
    kFewTimes,  // buffers were kept, at few times; or no buffer was observed for long enough
    kSlowing,   // fewer and fewer buffers are kept
    kBatch,     // all buffers of the time before were freed: the batch that is live may be freed too
    // It is none:
    kStopped,    // buffers were kept, but not lately
    kNoneIsOld,  // buffers that were born after the start are freed sooner or later
  };
  Finding finding = Finding::kNoneIsOld;
  double settled = 0;  // the age from which on buffers are no longer freed
  double times = 0;    // the effective number of classes with births of kept buffers
  // The buffers that were kept: those older than `settled`, without those of the start.
  double kept = 0;
  double kept_bytes = 0;
  double oldest = 0;      // time of birth
  double newest = 0;      // time of birth, up to a class
  double per_second = 0;  // bytes, in the last third of their births
};

LifeJudgement JudgeLives(const LifeTable& table);

// Returns an age that most freed buffers did not reach: the end of the octave that contains their median; 0 if no
// buffer was freed.
double UsualAge(const LifeTable& table);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_JUDGE_H_
