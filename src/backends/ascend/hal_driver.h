// Ascend's driver (HAL): its types, and what its flags say. Not yet tried on a device.
#ifndef HBMPROF_SRC_BACKENDS_ASCEND_HAL_DRIVER_H_
#define HBMPROF_SRC_BACKENDS_ASCEND_HAL_DRIVER_H_

#include "src/backends/calls/adapter.h"
#include "src/backends/calls/driver.h"

namespace hbmprof::internal {
namespace ascend_driver {

inline constexpr int kErrorOutOfMemory = 6;    // DRV_ERROR_OUT_OF_MEMORY
inline constexpr int kErrorNotFound = 0xfffe;  // DRV_ERROR_NOT_SUPPORT

using Address = DriverAdapter::Address;
using Handle = DriverAdapter::Handle;
using Flags = unsigned long long;

// The first members of drv_mem_prop.
struct MemProperties {
  uint32_t side;  // 1: on the device
  uint32_t device;
  uint32_t module;
};

// The first members are those of MemInfo for the types of memory 1 (DDR) and 2 (HBM). The driver may write more.
struct MemInfo {
  unsigned long total, free;  // in pages of the usual size
  unsigned long huge_total, huge_free;
  unsigned long others[60];
};

inline constexpr Flags kPageFlags = Flags{1} << 17 | Flags{1} << 31;  // huge pages, pages of 1 GiB

// The flags of halMemAlloc: bits 0 to 9 are the device, 10 to 13 the kind, 56 to 63 the module.
inline Place PlaceOf(Flags flags) {
  // Shared by host and device, device, host, DVPP, host agent, addresses only, host, managed.
  constexpr MemoryKind kKinds[] = {MemoryKind::kManaged,    MemoryKind::kDevice,     MemoryKind::kPinnedHost,
                                   MemoryKind::kDevice,     MemoryKind::kPinnedHost, MemoryKind::kAlias,
                                   MemoryKind::kPinnedHost, MemoryKind::kManaged};
  const Flags kind = flags >> 10 & 15;
  return {static_cast<int>(flags & 1023), kind < std::size(kKinds) ? kKinds[kind] : MemoryKind::kDevice};
}
inline Place PlaceOf(const MemProperties& properties) {
  if (properties.side != 1) return {0, MemoryKind::kPinnedHost};
  return {static_cast<int>(properties.device), MemoryKind::kVmm};
}

// Registered memory can be the driver's own, which has a record already: then the type in the flags is 1, 2 or 4.
inline BufferId RegisteredId(const void* ptr) { return HandleId(NameSpace::kAscendRegistered, ptr); }
inline Place RegisteredPlace(unsigned device, unsigned flags) {
  const unsigned type = flags & 0xffff;
  const bool is_known = type == 1 || type == 2 || type == 4;
  return {static_cast<int>(device), is_known ? MemoryKind::kAlias : MemoryKind::kPinnedHost};
}

inline constexpr uint32_t kCloseHostUser = 2;  // before a snapshot of the process: the device keeps its memory
inline bool StaysAtClose(MemoryKind kind) { return kind == MemoryKind::kPinnedHost || kind == MemoryKind::kManaged; }

// Reserved addresses, and registered memory that has a record already, are no memory.
inline size_t RecordedBytes(Flags bytes, const Place& place) { return place.kind == MemoryKind::kAlias ? 0 : bytes; }

// The component of CANN that asks for memory, by its module id.
std::string Component(uint64_t module);
inline std::string Component(const MemProperties* properties) {
  return properties == nullptr ? std::string() : Component(properties->module & 255);
}

#define CALLS "src/backends/ascend/hal_calls.inc"
#include "src/backends/calls/entries.inc"
#undef CALLS

}  // namespace ascend_driver

class AscendDriverInProcess : public DriverQueries {
 public:
  AscendDriverInProcess() : DriverQueries(&ascend_driver::driver) {}
  int CurrentDevice() override { return -1; }  // each call names its device
  DeviceProbe Probe(int ordinal, DeviceId id) override;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_ASCEND_HAL_DRIVER_H_
