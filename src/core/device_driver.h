// What the library asks of the driver of a backend's devices, beyond the devices' probes.
#ifndef HBMPROF_SRC_CORE_DEVICE_DRIVER_H_
#define HBMPROF_SRC_CORE_DEVICE_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hbmprof::internal {

struct DeviceFacts {
  bool uses_host_memory = false;  // an integrated device, which has no memory of its own
  // The limit of a control group on the memory of the device, and its bytes in use. No value: there is none.
  std::optional<int64_t> group_limit;
  std::optional<int64_t> group_in_use;
};

struct DeviceDriver {
  // The context that is current in the calling thread. What the driver reports depends on it, so a thread that asks the
  // driver for another thread takes over that thread's context.
  void* (*context)();
  void (*set_context)(void* context);
  // Returns the facts of the device with this name. `control_group`: the directory of a group of version 2; "" if there
  // is none. It asks the driver, so call it as a device probe is called. Throws only std::bad_alloc.
  DeviceFacts (*facts)(std::string_view device, const std::string& control_group);
};
// Set by the backend that has such a driver, one backend at a time. Null: there is none, as in a forked child, which
// cannot use it.
inline std::atomic<const DeviceDriver*> device_driver{nullptr};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_DEVICE_DRIVER_H_
