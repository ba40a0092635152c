// Snapshots and their parts as bytes. The injected library's profiler passes them to a copy of this library that has
// joined it (injected.h). Both have the same version and are in one process, so numbers are in the byte order of the
// process.
#ifndef HBMPROF_SRC_CORE_JOINED_SNAPSHOT_BYTES_H_
#define HBMPROF_SRC_CORE_JOINED_SNAPSHOT_BYTES_H_

#include <string>
#include <string_view>

#include "hbmprof/profiler.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

std::string ToBytes(const Snapshot& snapshot);
std::string ToBytes(const DeviceStats& stats);
std::string ToBytes(const TrackerStats& stats);
std::string ToBytes(const FoundBuffer& buffer);

// Reads the bytes that ToBytes made. Returns false if the bytes are damaged. The values in the result are then
// unspecified.
bool FromBytes(std::string_view bytes, Snapshot* snapshot);
bool FromBytes(std::string_view bytes, DeviceStats* stats);
bool FromBytes(std::string_view bytes, TrackerStats* stats);
bool FromBytes(std::string_view bytes, FoundBuffer* buffer);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_JOINED_SNAPSHOT_BYTES_H_
