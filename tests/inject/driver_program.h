// Functions of test programs that link the driver.
#ifndef HBMPROF_TESTS_INJECT_DRIVER_PROGRAM_H_
#define HBMPROF_TESTS_INJECT_DRIVER_PROGRAM_H_

#include <cstddef>

#include "tests/inject/driver_calls.h"
#include "tests/support/check.h"

namespace driver_program {

// Makes the device's primary context the calling thread's current one.
inline void UseDevice(int device) {
  using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
  Handle context = nullptr;
  CHECK_THAT(cuInit(0) == kSuccess);
  CHECK_THAT(cuDevicePrimaryCtxRetain(&context, device) == kSuccess);
  CHECK_THAT(cuCtxSetCurrent(context) == kSuccess);
}

// Allocates device memory. It has its own frame in call stacks.
[[gnu::noinline]] inline hbmprof::internal::cuda_driver::CUdeviceptr Allocate(size_t bytes) {
  hbmprof::internal::cuda_driver::CUdeviceptr ptr = 0;
  CHECK_THAT(hbmprof::internal::cuda_driver::cuMemAlloc_v2(&ptr, bytes) == hbmprof::internal::cuda_driver::kSuccess);
  return ptr;
}

}  // namespace driver_program

#endif  // HBMPROF_TESTS_INJECT_DRIVER_PROGRAM_H_
