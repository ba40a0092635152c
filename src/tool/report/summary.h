// The sentences at the top of the report, on the state of the memory.
#ifndef HBMPROF_SRC_TOOL_REPORT_SUMMARY_H_
#define HBMPROF_SRC_TOOL_REPORT_SUMMARY_H_

#include "src/tool/growth/growth.h"
#include "src/tool/profile/profile.h"

namespace hbmprof::tool {

// Returns the sentences: the change since `base` (may be null); leaks with their rate and the time until the limit of
// the device is reached, or why the dumps are too few to decide; the headroom of the fullest device, idle pools,
// fragmentation. `sites` are the results of RankGrowth, empty if `series` cannot be judged. `type` is the sample
// type of `sites`.
std::vector<std::string> Summary(const ProfileSet& profiles, const ProfileSet::File& now, const ProfileSet::File* base,
                                 size_t type, const std::vector<SiteGrowth>& sites, const DumpSeries& series);

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_REPORT_SUMMARY_H_
