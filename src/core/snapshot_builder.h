// Makes snapshots, and the numbers of a device, from what a profiler has recorded: ProfilerImpl::TakeSnapshot and
// Stats, which snapshot_builder.cc defines, and their parts.
#ifndef HBMPROF_SRC_CORE_SNAPSHOT_BUILDER_H_
#define HBMPROF_SRC_CORE_SNAPSHOT_BUILDER_H_

#include "hbmprof/profiler.h"
#include "src/core/ledger/ledger.h"
#include "src/core/profiler_impl.h"

namespace hbmprof::internal {

// Returns those parts of a snapshot of `profiler`; of one that uses the injected library, all.
hbmprof::Snapshot SnapshotOf(Profiler& profiler, SnapshotParts parts);
// Returns whether the profiler has a call site: of an allocation, of a failed one, or one that was kept (KeepSite).
inline bool HasRecorded(const Profiler& profiler) { return profiler.GetTrackerStats().sites != 0; }
// Sets process, host, environment and tracker of a snapshot, but not the number of live records.
void DescribeProcess(const ProfilerImpl& profiler, hbmprof::Snapshot* snapshot);
// Adds what is known about the Python interpreter, and the named frames that exist now and that the snapshot does not
// have. Must be called after the stacks were added, so that every named frame in them is among these.
void AddPython(const ProfilerImpl& profiler, hbmprof::Snapshot* snapshot);
// Returns the totals of one memory space of a device. `probe`: the answer of the device for this space.
DeviceStats StatsOf(const AccountTotals& totals, MemorySpace space, const DeviceProbe& probe);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SNAPSHOT_BUILDER_H_
