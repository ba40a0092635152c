// IsUsed: whether memory was recorded in a memory space of a device.
#ifndef HBMPROF_SRC_EXPORT_DEVICE_USE_H_
#define HBMPROF_SRC_EXPORT_DEVICE_USE_H_

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Returns whether memory was ever recorded in the memory space, or its numbers are those of a difference.
inline bool IsUsed(const DeviceStats& stats) {
  return stats.num_allocs != 0 || stats.num_live != 0 || stats.bytes_in_use != 0 || stats.peak_bytes_in_use != 0;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_EXPORT_DEVICE_USE_H_
