// What CUDA's structs, which HIP has, too, say about memory.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_STRUCTS_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_STRUCTS_H_

#include <cstddef>

#include "src/backends/calls/adapter.h"
#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal {

// Where physical memory is. The device is -1 also if it is on none, or if it is not known on which.
inline Place PlaceOf(const cuda_driver::MemLocation& location) {
  return {DeviceOfLocation(location), IsOnHost(location) ? MemoryKind::kPinnedHost : MemoryKind::kVmm};
}
DriverPool PoolOf(const cuda_driver::MemPoolProps& properties);
GraphNode NodeOf(const cuda_driver::MemAllocNodeParams& params);
// `has_ownership`: the params of a child graph have that member. Otherwise the graph is always copied.
GraphNode NodeOf(const cuda_driver::GraphNodeParams& params, bool has_ownership = true);

// The sizes of arrays, which CUDA does not report. They are estimates without the device's padding, and saturate at
// SIZE_MAX.

// Return the bytes of an array: 0 for sparse and deferred-mapping arrays, which own no memory, and for a format that is
// not known here.
size_t CudaArrayBytes(const cuda_driver::ArrayDescriptor& array);
size_t CudaArrayBytes(const cuda_driver::Array3dDescriptor& array);
// Returns the bytes of a mipmapped array of `levels` levels. As in CUDA, the number of levels is clamped to the range 1
// to 1 + floor(log2(largest dimension)). Layers and faces do not shrink from level to level.
size_t CudaMipmappedArrayBytes(const cuda_driver::Array3dDescriptor& array, unsigned levels);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_STRUCTS_H_
