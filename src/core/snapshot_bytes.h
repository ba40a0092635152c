// Snapshots and their parts as bytes, for the way from the injected library's profiler to a copy of this library that
// has joined it (injected.h). The two are of one version, and one process reads what it wrote: numbers are in its own
// byte order.
#ifndef HBMPROF_SRC_CORE_SNAPSHOT_BYTES_H_
#define HBMPROF_SRC_CORE_SNAPSHOT_BYTES_H_

#include <string>
#include <string_view>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

std::string ToBytes(const Snapshot& snapshot);
std::string ToBytes(const DeviceStats& stats);
std::string ToBytes(const TrackerStats& stats);

// What ToBytes made. Returns false, with anything in the result, if these are other bytes.
bool FromBytes(std::string_view bytes, Snapshot* snapshot);
bool FromBytes(std::string_view bytes, DeviceStats* stats);
bool FromBytes(std::string_view bytes, TrackerStats* stats);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SNAPSHOT_BYTES_H_
