// The OpenCL layer: functions between the loader, through which all calls of a process go, and the drivers. layer.cc
// has the functions of CL/cl_layer.h, by which the loader gets them.
//
// A device is named OpenCL:P:D, by its places in clGetPlatformIDs and clGetDeviceIDs. Memory of a context with several
// devices can move between them; it is recorded as that of the first one.
#ifndef HBMPROF_SRC_BACKENDS_OPENCL_LAYER_H_
#define HBMPROF_SRC_BACKENDS_OPENCL_LAYER_H_

#include "hbmprof/profiler.h"

namespace hbmprof::internal {

// Defined by what contains the layer; each wrapped call calls it. Returns null if nothing is to be recorded.
Profiler* OpenclProfiler();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_OPENCL_LAYER_H_
