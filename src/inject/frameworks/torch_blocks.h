// PyTorch's blocks in the profile: the allocations that its caching allocator reports (report_hooks.h) become blocks of
// the driver's memory. The reports are compared with PyTorch's own total. If they do not agree for a device, only the
// driver's memory of that device is shown, and a warning in each snapshot says why.
#ifndef HBMPROF_SRC_INJECT_FRAMEWORKS_TORCH_BLOCKS_H_
#define HBMPROF_SRC_INJECT_FRAMEWORKS_TORCH_BLOCKS_H_

#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Call it before PyTorch's reports are hooked in a process that hbmprof is attached to: PyTorch can have blocks that
// were not seen. They have no records, and their frees are not errors.
void TorchMayHaveBlocks();

// Adds a warning for each device whose blocks are not shown, a warning if PyTorch allocates memory but reports nothing,
// and one for PyTorch's out-of-memory errors.
void AddTorchWarnings(Snapshot* snapshot);

// Call it after a call of the driver, made by `caller`, has failed because there was no memory. Returns true if
// PyTorch's caching allocator has made the call: then it frees its cached blocks and tries again, and the failure is
// reported (ReportOutOfMemory) only if PyTorch reports its own out-of-memory error. A later failure of the thread
// replaces the earlier one.
bool LeaveFailureToTorch(const FailedAllocation& failure, const Caller& caller);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_FRAMEWORKS_TORCH_BLOCKS_H_
