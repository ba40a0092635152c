// The OpenCL layer: functions between the loader, through which all calls of a process go, and the drivers. layer.cc
// has the functions of CL/cl_layer.h, by which the loader gets them.
// A device is named OpenCL:P:D, by its places in clGetPlatformIDs and clGetDeviceIDs. Memory of a context with several
// devices can move between them; it is recorded as that of the first one.
#ifndef HBMPROF_SRC_BACKENDS_OPENCL_LAYER_H_
#define HBMPROF_SRC_BACKENDS_OPENCL_LAYER_H_

#include <atomic>

#include "hbmprof/profiler.h"

namespace hbmprof::internal {

// Set by what contains the layer; each wrapped call calls it. It returns null if nothing is to be recorded.
inline std::atomic<Profiler* (*)()> opencl_profiler{[]() -> Profiler* { return nullptr; }};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_OPENCL_LAYER_H_
