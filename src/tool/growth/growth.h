// Growth at one dump or over a series of dumps: reads the ages of each call site's buffers and its course from the
// profiles, judges them (judge.h) and explains the verdicts in words.
#ifndef HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_
#define HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_

#include "src/tool/growth/judge.h"
#include "src/tool/profile/profile.h"
#include "src/tool/profile/series.h"
#include "src/tool/util/common.h"

namespace hbmprof::tool {

struct SiteGrowth {
  uint32_t stack = 0;
  std::vector<std::pair<std::string, std::string>> labels;  // those with the keys `by`
  std::vector<int64_t> values;                              // by dump

  Verdict verdict = Verdict::kFlat;
  Sure sure = Sure::kLow;
  std::string why;         // one sentence
  std::string more_dumps;  // the effect of more dumps, in one sentence
  // Since the first judged dump, or without ages since the dump that the verdict is based on; with ages and one or two
  // dumps, what was kept since the start of the process.
  int64_t growth = 0;
  double per_interval = 0;  // 0 with one dump
  double per_second = 0;    // 0 if unknown
  double per_count = 0;     // 0 if unknown
  // Of a leak that was found by the ages of its buffers; otherwise 0. Seconds before the last dump.
  double oldest = 0;
  double newest = 0;
  Ages ages;          // at the last judged dump; empty if unknown
  int64_t freed = 0;  // buffers until then
};

// Returns every call stack with its verdict, sorted by verdict (leaks first) and then by rate (the fastest first). Sums
// the samples of a stack over all labels except those with the keys `by`. Leaves out memory from before the program was
// attached to, and idle memory of pools: its stack is that of a call that made the pool grow. REQUIRES: the dumps can
// be judged.
std::vector<SiteGrowth> RankGrowth(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                                   const std::vector<std::string>& by = {});

// Returns the growth of all sites whose verdict comes after `explained` in the enum Verdict, judged as one site: many
// sites can grow together although none of them grows by itself.
SiteGrowth RestOf(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                  const std::vector<SiteGrowth>& sites, Verdict explained);

// Returns the function that a site is named by.
std::string NameOf(const ProfileSet& profiles, const SiteGrowth& site);
// Returns the device with most of the bytes of a stack.
std::string DeviceOf(const ProfileSet& profiles, const ProfileSet::File& file, size_t type, uint32_t stack);

// The sites with one verdict.
struct Sites {
  std::string names;          // of the first two functions, and the number of the others
  size_t function_count = 0;  // several sites can have one function
  int64_t growth = 0;
};
Sites SitesWith(Verdict verdict, const ProfileSet& profiles, const std::vector<SiteGrowth>& sites);

// Returns the sentence on the sites with the verdict kLeak: which functions leak, how fast, and when the first device
// reaches its limit; "" if there is none. `now` is the last dump. `type` is the sample type of `sites`.
std::string LeakSentence(const ProfileSet& profiles, const ProfileSet::File& now, size_t type,
                         const std::vector<SiteGrowth>& sites);

const char* VerdictName(Verdict verdict);
const char* SureName(Sure sure);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_
