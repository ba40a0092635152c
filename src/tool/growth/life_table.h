// Judges from one dump whether a call site leaks: from the times at which its live buffers were born, and from the ages
// that its freed buffers reached. Arithmetic only. docs/leaks.md describes the method.
#ifndef HBMPROF_SRC_TOOL_GROWTH_LIFE_TABLE_H_
#define HBMPROF_SRC_TOOL_GROWTH_LIFE_TABLE_H_

#include "src/tool/util/common.h"

namespace hbmprof::tool {

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

#endif  // HBMPROF_SRC_TOOL_GROWTH_LIFE_TABLE_H_
