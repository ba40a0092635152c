// Growth over a series of dumps: courses from profiles, judged (judge.h), with the reason in words. Printing is in
// leaks.cc and report.cc.
#ifndef HBMPROF_SRC_TOOL_GROWTH_H_
#define HBMPROF_SRC_TOOL_GROWTH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "src/tool/judge.h"
#include "src/tool/profile.h"

namespace hbmprof::tool {

// When the dumps were taken, in order.
struct DumpSeries {
  std::vector<size_t> files;    // of the ProfileSet, in the order of time
  std::vector<double> seconds;  // since the first; empty if the profiles do not tell
  std::vector<double> counts;   // of the counter; empty if none was asked for
  // The dumps that are judged, [begin, end): all, or those of the process that wrote most of them if the program was
  // restarted in between. A restart is a new process id, or an allocation total or counter that went down.
  size_t begin = 0;
  size_t end = 0;
  std::string restart;  // in words; "" if there was none

  // What growth is judged against: the counter, else seconds, else (or if the dumps are less than 0.1 s apart, where
  // time is mostly chance) the dumps' numbers. Never falls within the dumps that are judged.
  std::vector<double> Exposure() const;
};

// The files in the order of their times, or as given where a time is missing. `counter` is the name of one set by
// SetCounter, or "". Errors: kInvalidArgument if a file lacks the counter, or if of three or more dumps to be judged
// fewer than three differ in it.
absl::StatusOr<DumpSeries> OrderDumps(const ProfileSet& profiles, const std::string& counter);

struct SiteGrowth {
  uint32_t stack = 0;
  std::vector<std::pair<std::string, std::string>> labels;  // those asked for
  std::vector<int64_t> values;                              // by dump

  Verdict verdict = Verdict::kFlat;
  Sure sure = Sure::kLow;
  std::string why;         // one sentence
  std::string more_dumps;  // what more dumps would decide, in one sentence
  size_t first = 0;        // the dump from which on it is judged
  // Since `first`.
  int64_t growth = 0;
  double per_interval = 0;
  double per_second = 0;  // 0 if unknown
  double per_count = 0;   // likewise
};

// Every call stack, leaks first, the fastest first within a verdict. A stack's samples are summed over all labels but
// those with the keys `by`. At least three dumps.
std::vector<SiteGrowth> RankGrowth(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                                   const std::vector<std::string>& by = {});

// The growth of everything but the sites up to the verdict `explained`, judged as one site: what many sites together
// grew by.
SiteGrowth RestOf(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                  const std::vector<SiteGrowth>& sites, Verdict explained);

// What a counter's unit is called: "request" of "requests".
std::string OneOf(const std::string& counter);
const char* VerdictName(Verdict verdict);
const char* SureName(Sure sure);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_H_
