// The largest values of the numbers in Options. The smallest is 1 for all of them.
#ifndef HBMPROF_SRC_CORE_OPTION_LIMITS_H_
#define HBMPROF_SRC_CORE_OPTION_LIMITS_H_

#include <cstdint>

#include "src/capture/walk.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

// The other two limits are kMaxStackDepth (walk.h) and kMaxSites (site_table.h).
inline constexpr int64_t kMaxLiveBuffersLimit = int64_t{1} << 32;
inline constexpr int64_t kMaxHostBytesLimit = int64_t{1} << 50;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_OPTION_LIMITS_H_
