// Growth at one dump or over a series of dumps: reads the ages of each call site's buffers and its course from the
// profiles, judges them (judge.h) and explains the verdicts in words.
#ifndef HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_
#define HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_

#include "src/tool/growth/judge.h"
#include "src/tool/profile/profile.h"
#include "src/tool/profile/series.h"

namespace hbmprof::tool {

// What a call stack has in one memory.
struct SiteGrowth {
  uint32_t stack = 0;
  std::string memory;                                       // ProfileSet::MemoryOf
  std::vector<std::pair<std::string, std::string>> labels;  // those with the keys `by`
  std::vector<int64_t> values;                              // by dump

  Verdict verdict = Verdict::kFlat;
  Sure sure = Sure::kLow;
  std::string why;  // one sentence
  // Since the first judged dump; with ages and one or two dumps, what was kept since the start of the process.
  int64_t growth = 0;
  std::optional<double> per_second;
  std::optional<double> per_count;
  Ages ages;          // at the last judged dump; empty if unknown
  int64_t freed = 0;  // buffers until then

  bool grows() const { return verdict == Verdict::kLeak || verdict == Verdict::kPerhaps; }
};

// Returns every call stack with its verdict, sorted by verdict (leaks first) and then by growth (the largest first).
// Sums the samples of a stack over all labels except the memory and those with the keys `by`. Leaves out memory from
// before the program was attached to, and idle memory of pools: its stack is that of a call that made the pool grow.
// REQUIRES: the dumps can be judged.
std::vector<SiteGrowth> RankGrowth(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                                   const std::vector<std::string>& by = {});

// Returns the growth of all sites that are no leaks, judged as one site: many sites can leak together although none of
// them is a leak by itself.
SiteGrowth RestOf(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                  const std::vector<SiteGrowth>& sites);

const char* VerdictName(Verdict verdict);
const char* SureName(Sure sure);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_
