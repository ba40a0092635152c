// Snapshots and their parts as bytes. The injected library's profiler passes them to a copy of this library that has
// joined it (injected.h). Both have the same version and are in one process: numbers are in its own byte order.
#ifndef HBMPROF_SRC_CORE_SNAPSHOT_BYTES_H_
#define HBMPROF_SRC_CORE_SNAPSHOT_BYTES_H_

#include <string>
#include <string_view>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

std::string ToBytes(const Snapshot& snapshot);
std::string ToBytes(const DeviceStats& stats);
std::string ToBytes(const TrackerStats& stats);

// Reads the bytes that ToBytes made. Returns false, and leaves any values in the result, if the bytes are damaged.
bool FromBytes(std::string_view bytes, Snapshot* snapshot);
bool FromBytes(std::string_view bytes, DeviceStats* stats);
bool FromBytes(std::string_view bytes, TrackerStats* stats);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SNAPSHOT_BYTES_H_
