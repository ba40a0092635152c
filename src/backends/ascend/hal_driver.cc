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
