// The verdict at the top of the report: one or two sentences on the state of the memory.
#ifndef HBMPROF_SRC_TOOL_GROWTH_VERDICT_H_
#define HBMPROF_SRC_TOOL_GROWTH_VERDICT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/tool/growth/growth.h"
#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

// Returns the function that a site is named by.
std::string NameOf(const ProfileSet& profiles, const SiteGrowth& site);
// Returns the device with most of the bytes of a stack.
std::string DeviceOf(const ProfileSet& profiles, const ProfileSet::File& file, size_t type, uint32_t stack);

// Returns the sentence on the sites with the verdict kLeak: which functions leak, how fast, and when the first device
// reaches its limit; "" if there is none. `now` is the last dump. `type` is the sample type of `sites`.
std::string LeakSentence(const ProfileSet& profiles, const ProfileSet::File& now, size_t type,
                         const std::vector<SiteGrowth>& sites);

// Returns the sentences: the change since `base` (may be null); leaks with their rate and the time until the limit of
// the device is reached, or why the dumps are too few to decide; the headroom of the fullest device, idle pools,
// fragmentation. `sites` are the results of RankGrowth, empty if `series` cannot be judged. `type` is the sample
// type of `sites`.
std::vector<std::string> ReportVerdict(const ProfileSet& profiles, const ProfileSet::File& now,
                                       const ProfileSet::File* base, size_t type, const std::vector<SiteGrowth>& sites,
                                       const DumpSeries& series);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_VERDICT_H_
