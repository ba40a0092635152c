#include "src/backends/ascend/hal_driver.h"

namespace hbmprof::internal::ascend_driver {

#define CALLS "src/backends/ascend/hal_calls.inc"
#define NAMES \
  Driver::Names { {"libascend_hal.so"}, "/libascend_hal.so", "hal", "NPU:", "", nullptr }
#include "src/backends/calls/define_driver.inc"

std::string Component(uint64_t module) {
  switch (module) {
    case 3:
      return "HCCL";
    case 7:
      return "RUNTIME";
    case 33:
      return "APP";
    case 45:
      return "GE";
    default:
      return "module " + std::to_string(module);
  }
}

}  // namespace hbmprof::internal::ascend_driver

namespace hbmprof::internal {

// The sums of aclrtGetMemInfo, without pages of 1 GiB. A device without HBM has DDR.
DeviceProbe AscendDriverInProcess::Probe(int ordinal, DeviceId) {
  DeviceProbe probe;
  for (const unsigned type : {2, 1}) {
    ascend_driver::MemInfo info = {};
    if (ascend_driver::query::halMemGetInfo(static_cast<unsigned>(ordinal), type, &info) != 0) continue;
    const auto total = static_cast<int64_t>(info.total + info.huge_total);
    if (total == 0) continue;
    probe.bytes_limit = total;
    probe.bytes_free = static_cast<int64_t>(info.free + info.huge_free);
    probe.driver_bytes_in_use = total - *probe.bytes_free;
    break;
  }
  return probe;
}

}  // namespace hbmprof::internal
