// The default functions of DeviceAllocator. See hbmprof/device_allocator.h.
#include "hbmprof/device_allocator.h"

namespace hbmprof {

absl::StatusOr<void*> DeviceAllocator::AllocateAsync(size_t bytes, StreamId /*stream*/) { return Allocate(bytes); }
absl::Status DeviceAllocator::FreeAsync(void* ptr, StreamId /*stream*/) { return Free(ptr); }

}  // namespace hbmprof
