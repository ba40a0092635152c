// PyTorch's blocks in the profile: what its caching allocator reports (torch_hook.h) becomes blocks of the driver's
// memory. PyTorch's own total checks the reports. Of a device where they do not agree, only the driver's memory is
// shown, and a warning in each snapshot says why.
#ifndef HBMPROF_SRC_INJECT_TORCH_BLOCKS_H_
#define HBMPROF_SRC_INJECT_TORCH_BLOCKS_H_

namespace hbmprof::internal {

// Reports count from now on. Before the first call of the driver that is tracked: each report follows one.
void StartTorchBlocks();

// After the profiler was made: its snapshots get a warning for each device whose blocks are not shown, and one if
// PyTorch allocates and reports nothing.
void AddTorchWarningsToSnapshots();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_TORCH_BLOCKS_H_
