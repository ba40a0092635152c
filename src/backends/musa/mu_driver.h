// The driver of Moore Threads' MUSA. CMakeLists.txt makes its table, and the files of the runtime. Not yet tried on a
// device.
#ifndef HBMPROF_SRC_BACKENDS_MUSA_MU_DRIVER_H_
#define HBMPROF_SRC_BACKENDS_MUSA_MU_DRIVER_H_

#include "src/backends/calls/driver.h"
#include "src/backends/cuda/driver/driver_structs.h"
#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal::mu_driver {

// Its structs, constants and errors have the layouts and values of CUDA's.
using namespace cuda_driver;  // NOLINT

#define CALLS "src/backends/musa/mu_calls.inc"
#include "src/backends/calls/entries.inc"
#undef CALLS

}  // namespace hbmprof::internal::mu_driver

#endif  // HBMPROF_SRC_BACKENDS_MUSA_MU_DRIVER_H_
