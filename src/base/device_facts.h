// What a backend knows about a device and only the report of a failed allocation shows.
#ifndef HBMPROF_SRC_BASE_DEVICE_FACTS_H_
#define HBMPROF_SRC_BASE_DEVICE_FACTS_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hbmprof::internal {

struct DeviceFacts {
  bool uses_host_memory = false;  // an integrated device
  // The limit of a control group on the memory of the device, and its bytes in use. No value: there is none.
  std::optional<int64_t> group_limit;
  std::optional<int64_t> group_in_use;
};

// Set by the backend that has such devices; null: there is none, as in a forked child, which cannot use the driver. The
// function returns the facts of the device with this name. `control_group`: the directory of a group of version 2. It
// asks the driver, so call it as a device probe is called. Throws only std::bad_alloc.
extern std::atomic<DeviceFacts (*)(std::string_view device, const std::string& control_group)> device_facts;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_DEVICE_FACTS_H_
