// The sentence on leaks, and what it is made of.
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

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_GROWTH_VERDICT_H_
