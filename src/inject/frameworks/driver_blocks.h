// Blocks that an allocator of the program hands out of the driver's memory, for an allocator that does not call hbmprof
// itself.
#ifndef HBMPROF_SRC_INJECT_FRAMEWORKS_DRIVER_BLOCKS_H_
#define HBMPROF_SRC_INJECT_FRAMEWORKS_DRIVER_BLOCKS_H_

#include <cstdint>
#include <optional>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"

namespace hbmprof::internal {

// All functions are thread-safe, and wait for no lock that is held during a call of the driver.

enum class DriverBlock : uint8_t {
  kRecorded,
  kDropped,  // a limit was reached or the host has no memory; it is counted as dropped
  kLive,     // a block at this address is live; nothing was recorded
  kOutside,  // some byte lies outside of the device memory that the driver has given out, or on another device than
             // `*device`; nothing was recorded
};

// Records the block of `bytes` bytes at `address`, with the stack from `caller`, as a part of the memory that the
// driver has given out there. The driver's records of that memory become segments of the pool `allocator`, unless they
// are segments already, and keep their stacks. If `*device` has no value, it is set to the device of the block. If the
// memory is from before hbmprof was attached, the driver is asked for its range. REQUIRES: the profiler is enabled.
DriverBlock RecordDriverBlock(const Caller& caller, uint64_t address, uint64_t bytes, AllocatorId allocator,
                              std::optional<DeviceId>* device);

// The same for a block that lies in segments of `pool`: does not look for them.
DriverBlock RecordKnownDriverBlock(const Caller& caller, const Pool& pool, uint64_t address, uint64_t bytes);

// Returns the device of the segment that contains `address`, as RecordDriverBlock makes them; no value if there is
// none.
std::optional<DeviceId> DeviceOfDriverSegment(uint64_t address);

// Return the bytes of the pool's segments, and of its blocks. The first takes no lock, the second those of all events.
int64_t ReservedBytes(const Pool& pool);
int64_t AllocatedBytes(const Pool& pool);

// Frees all blocks of the pool. Segments stay.
void EndDriverBlocks(const Pool& pool);

// Called before recording is turned on again, when all older records have ended. From then on blocks can lie in memory
// from before, which RecordDriverBlock treats as memory from before hbmprof was attached.
void TrackingResumes();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_FRAMEWORKS_DRIVER_BLOCKS_H_
