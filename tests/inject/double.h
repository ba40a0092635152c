// Doubles of the frameworks' libraries, which make the reports that a test needs: libc10_cuda.so (and libc10.so, which
// receives the reports) for PyTorch, libtensorflow_framework.so.2 for TensorFlow. Each exports these two functions.
#ifndef HBMPROF_TESTS_INJECT_DOUBLE_H_
#define HBMPROF_TESTS_INJECT_DOUBLE_H_

#include <cstddef>
#include <cstdint>

#include "tests/inject/driver_calls.h"

extern "C" {
// Returns the number of reports that the framework's own function has received with the right arguments.
int double_reports();
// Allocates a segment of 20 MiB on devices 0 and 1. Reports three blocks of 1 MiB in the segment of device 0, and then
// makes the wrong report that `scenario` names; "silence" makes no report at all, and "sleep" makes only right reports,
// of other memory (PyTorch only). Returns the number of its reports.
int double_allocate(const char* scenario);
}

constexpr size_t kMiB = 1 << 20;

// Allocates a segment on the device. Ignores errors of the driver: the test finds them in the profile.
inline hbmprof::internal::cuda_driver::CUdeviceptr DoubleSegment(int device) {
  namespace driver = hbmprof::internal::cuda_driver;
  driver::Handle context = nullptr;
  driver::cuInit(0);
  driver::cuDevicePrimaryCtxRetain(&context, device);
  driver::cuCtxSetCurrent(context);
  driver::CUdeviceptr segment = 0;
  driver::cuMemAlloc_v2(&segment, 20 * kMiB);
  return segment;
}

#endif  // HBMPROF_TESTS_INJECT_DOUBLE_H_
