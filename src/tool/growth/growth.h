// Growth at one dump or over a series of dumps: reads the ages of each call site's buffers and its course from the
// profiles, judges them (life_table.h, judge.h) and explains the verdict in words.
#ifndef HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_
#define HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "src/tool/growth/judge.h"
#include "src/tool/profile/ages.h"
#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

// The dumps in order of time.
struct DumpSeries {
  std::vector<size_t> files;    // of the ProfileSet, in the order of time
  std::vector<double> seconds;  // since the first dump; empty if unknown
  std::vector<double> counts;   // of the counter; empty without a counter
  // The dumps that are judged, [begin, end). These are all dumps, or if there was a restart, the dumps of the process
  // that wrote most of them. A restart is detected by a new process id, or by a decrease of the allocation total or of
  // the counter.
  size_t begin = 0;
  size_t end = 0;
  std::string restart;  // in words; "" if there was none

  // Whether the last judged dump has the ages of buffers, those of one process that has run for 16 seconds.
  bool has_ages = false;

  // Returns whether the dumps can be judged: one with ages, or three.
  bool CanBeJudged() const { return has_ages || end - begin >= 3; }

  // Returns the quantity against which growth is judged: the counter, else seconds, else the dumps' numbers. If the
  // dumps are less than 0.1 s apart, it returns the numbers instead of seconds, because such short times are mostly
  // random. The quantity does not decrease within the judged dumps.
  std::vector<double> Exposure() const;
};

// Returns the files from `first` on in the order of their times, or in the given order if a time is missing. `counter`
// is the name of a counter that SetCounter set, or "". REQUIRES: first < profiles.files().size(). Errors:
// kInvalidArgument if a file lacks the counter, or if three or more dumps are judged and the counter has fewer than
// three different values.
absl::StatusOr<DumpSeries> OrderDumps(const ProfileSet& profiles, const std::string& counter, size_t first = 0);

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
// attached to. REQUIRES: the dumps can be judged.
std::vector<SiteGrowth> RankGrowth(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                                   const std::vector<std::string>& by = {});

// Returns the growth of all sites whose verdict comes after `explained` in the enum Verdict, judged as one site: many
// sites can grow together although none of them grows by itself.
SiteGrowth RestOf(const ProfileSet& profiles, const DumpSeries& series, size_t type,
                  const std::vector<SiteGrowth>& sites, Verdict explained);

// Returns the sum of the samples of a file, or of those with this stack.
int64_t SumOf(const ProfileSet& profiles, const ProfileSet::File& file, size_t type,
              std::optional<uint32_t> stack = std::nullopt);
// Returns the singular of a counter's name: "request" for "requests".
std::string OneOf(const std::string& counter);
const char* VerdictName(Verdict verdict);
const char* SureName(Sure sure);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_GROWTH_H_
