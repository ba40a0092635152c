// The totals of a running process as JSON.
#ifndef HBMPROF_SRC_EXPORT_STATS_JSON_H_
#define HBMPROF_SRC_EXPORT_STATS_JSON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// The part of the totals that a snapshot does not have.
struct ProcessState {
  std::string name;
  int64_t seconds = 0;  // since the control channel was started
  bool tracking = true;
  std::vector<std::pair<std::string, std::string>> tags;  // of the process
};

// Returns one JSON object in one line, without a line feed at the end. Sizes are in bytes. Values that are not known
// are left out. Text is UTF-8. Throws std::bad_alloc. Members:
//   pid, name, host, version, seconds, time_unix_nanos, tracking (true or false)
//   tags          object: value by key
//   counters      object: value by name (Profiler::SetCounter)
//   devices       array of objects: name, uuid; spaces, an array of objects with the member space ("device", "managed",
//                 "pinned_host") and the fields of DeviceStats by their names (driver_scope is "process" or "device");
//                 pools, an array of objects with the fields of PoolStats by their names; processes, an array of
//                 objects with the members process_id, bytes, is_this
//   tracker       object: the fields of TrackerStats by their names
//   warnings      array of strings
// `spaces` has the memory spaces that were used or whose limit is known. The samples of the snapshot are not used.
std::string StatsJson(const Snapshot& snapshot, const ProcessState& process);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_STATS_JSON_H_
