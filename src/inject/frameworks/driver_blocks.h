// Blocks that an allocator of the program hands out of the driver's memory, for an allocator that does not call hbmprof
// itself.
#ifndef HBMPROF_SRC_INJECT_FRAMEWORKS_DRIVER_BLOCKS_H_
#define HBMPROF_SRC_INJECT_FRAMEWORKS_DRIVER_BLOCKS_H_

#include <cstdint>
#include <optional>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"

namespace hbmprof::internal {

enum class DriverBlock : uint8_t {
  kRecorded,
  kDropped,      // a limit was reached or the host has no memory; it is counted as dropped
  kLive,         // a block at this address is live; nothing was recorded
  kOutside,      // some byte lies outside of the memory that the driver has given out; nothing was recorded
  kOtherDevice,  // some byte lies on another device than `*device`; nothing was recorded
};

// Records the block of `bytes` bytes at `address`, with the stack from `caller`, as a part of the memory that the
// driver has given out there. The driver's records of that memory become segments of `allocator` and keep their stacks.
// If `*device` has no value, it is set to the device of the block. REQUIRES: the profiler is enabled. Calls no function
// of the driver, and waits for no lock that is held during a call of the driver. Thread-safe.
DriverBlock RecordDriverBlock(const Caller& caller, uint64_t address, uint64_t bytes, AllocatorId allocator,
                              std::optional<DeviceId>* device);

// Returns whether `address` lies in a segment of the driver's memory, as RecordDriverBlock makes them. Thread-safe.
bool IsDriverSegment(uint64_t address);

// Returns the bytes of the live blocks of `allocator` on `device`. Returns nullopt if they are not known, because the
// host has no memory. Takes a time that grows with the number of live records. Calls no function of the driver, and
// waits for no lock that is held during a call of the driver. Thread-safe.
std::optional<int64_t> DriverBlockBytes(DeviceId device, AllocatorId allocator);

// Frees all blocks of `allocator` on `device`. Segments stay. Thread-safe.
void EndDriverBlocks(DeviceId device, AllocatorId allocator);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_FRAMEWORKS_DRIVER_BLOCKS_H_
