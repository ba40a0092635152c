// Growth over a series of dumps: which sites grow without an end, how fast, and how sure that is.
// Not here: printing (leaks.cc, report.cc).
#ifndef HBMPROF_SRC_TOOL_GROWTH_H_
#define HBMPROF_SRC_TOOL_GROWTH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "src/tool/profile.h"

namespace hbmprof::tool {

// When the dumps were taken, in order.
struct DumpSeries {
  std::vector<size_t> files;    // of the ProfileSet, in the order of time
  std::vector<double> seconds;  // since the first; empty if the profiles do not tell
  std::vector<double> counts;   // of the counter; empty if none was asked for
};

// The files in the order of their times, or as given where a time is missing or two are equal. `counter` is the name of
// one set by SetCounter, or "". Errors: kInvalidArgument if a file lacks the counter, or it does not go up.
absl::StatusOr<DumpSeries> OrderDumps(const ProfileSet& profiles, const std::string& counter);

struct SiteGrowth {
  enum class Verdict {
    kLeak,       // grew all the time
    kPerhaps,    // grew, but unevenly: more dumps will tell
    kStopped,    // grew and stopped: a cache that is warm, a pool that is large enough
    kUpAndDown,  // grew and shrank
    kFlat,       // did not grow
  };
  enum class Sure { kHigh, kMedium, kLow };

  uint32_t stack = 0;
  std::vector<std::pair<std::string, std::string>> labels;  // without numbers
  std::vector<int64_t> values;                              // by dump

  Verdict verdict = Verdict::kFlat;
  Sure sure = Sure::kLow;
  std::string why;
  size_t first = 0;  // the dump from which on it is judged: what came before was warming up
  // Since `first`.
  int64_t growth = 0;
  double per_interval = 0;
  double per_second = 0;  // 0 if unknown
  double per_count = 0;   // likewise
};

// Every site, leaks first, the fastest first within a verdict. At least three dumps.
std::vector<SiteGrowth> RankGrowth(const ProfileSet& profiles, const DumpSeries& series, size_t type);

// What a counter's unit is called: "request" of "requests".
std::string OneOf(const std::string& counter);
const char* VerdictName(SiteGrowth::Verdict verdict);
const char* SureName(SiteGrowth::Sure sure);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_H_
