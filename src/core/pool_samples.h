// The samples of pools: from the values of sites, in which segments and blocks are counted side by side, to the samples
// of a Snapshot, which count each byte once.
#ifndef HBMPROF_SRC_CORE_POOL_SAMPLES_H_
#define HBMPROF_SRC_CORE_POOL_SAMPLES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Returns the frame of the idle memory of a pool: "[idle memory of NAME]".
std::string IdleMemoryFrame(const std::string& pool);
inline bool IsIdleMemoryFrame(std::string_view name) { return name.substr(0, 16) == "[idle memory of "; }

// `snapshot->samples` are sites: the values of a segment (kind kPool) are those of the whole segment. `from` has an
// element for each of them: 0 if the device has handed out its memory, otherwise 1 plus the index in
// `snapshot->allocators` of the pool of the same device that has done it. Afterwards:
// - All samples have reserved_objects and reserved_bytes, and segments have no other values.
// - Each pool has a sample for its idle memory. `frame_of(text)` returns the element of its stack for the frame `text`.
// - All devices have idle_bytes, pool_bytes and their pools. A pool that the device had before keeps its place and its
//   peaks. A warning names a pool whose blocks are larger than its segments.
void SeparatePools(const std::vector<uint32_t>& from, const std::function<uint64_t(const std::string&)>& frame_of,
                   Snapshot* snapshot);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_POOL_SAMPLES_H_
