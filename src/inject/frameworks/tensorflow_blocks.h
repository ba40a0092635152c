// TensorFlow's blocks in the profile: the allocations that its BFC allocators report (report_hooks.h) become blocks of
// the driver's memory. If the reports contradict each other, only the driver's memory is shown, and a warning in each
// snapshot says why.
#ifndef HBMPROF_SRC_INJECT_FRAMEWORKS_TENSORFLOW_BLOCKS_H_
#define HBMPROF_SRC_INJECT_FRAMEWORKS_TENSORFLOW_BLOCKS_H_

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// As TorchMayHaveBlocks.
void TensorflowMayHaveBlocks();

// Adds a warning if the blocks are not shown, or if TensorFlow allocates device memory but reports nothing.
void AddTensorflowWarnings(Snapshot* snapshot);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_FRAMEWORKS_TENSORFLOW_BLOCKS_H_
