// What the library asks of the driver of a backend's devices, beyond the devices' probes.
#ifndef HBMPROF_SRC_CORE_DEVICE_DRIVER_H_
#define HBMPROF_SRC_CORE_DEVICE_DRIVER_H_

#include <atomic>
#include <string_view>

namespace hbmprof::internal {

struct DeviceDriver {
  // The context that is current in the calling thread. What the driver reports depends on it, so a thread that asks the
  // driver for another thread takes over that thread's context.
  void* (*context)();
  void (*set_context)(void* context);
  // Whether the device with this name has no memory of its own (an integrated device). It asks the driver, so call it
  // as a device probe is called. Throws only std::bad_alloc.
  bool (*uses_host_memory)(std::string_view device);
};
// Set by the backend that has such a driver; null: there is none, as in a forked child, which cannot use it.
inline std::atomic<const DeviceDriver*> device_driver{nullptr};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_DEVICE_DRIVER_H_
