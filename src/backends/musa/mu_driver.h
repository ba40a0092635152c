// The driver of Moore Threads' MUSA: its types are CUDA's, and CMakeLists.txt makes its table. Not yet tried on a
// device.
#ifndef HBMPROF_SRC_BACKENDS_MUSA_MU_DRIVER_H_
#define HBMPROF_SRC_BACKENDS_MUSA_MU_DRIVER_H_

#include "src/backends/calls/driver.h"
#include "src/backends/cuda/driver/driver_structs.h"
#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal::mu_driver {
using namespace cuda_driver;  // NOLINT
#define CALLS "src/backends/musa/mu_calls.inc"
#include "src/backends/calls/entries.inc"
#undef CALLS
}  // namespace hbmprof::internal::mu_driver

#endif  // HBMPROF_SRC_BACKENDS_MUSA_MU_DRIVER_H_
