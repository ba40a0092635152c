// The driver's functions that the programs of these tests link: those of the table and others.
#ifndef HBMPROF_TESTS_INJECT_DRIVER_CALLS_H_
#define HBMPROF_TESTS_INJECT_DRIVER_CALLS_H_

#include <cstddef>

#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal::cuda_driver {

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(Handle*, CUdevice);
CUresult cuMemAddressReserve(CUdeviceptr*, size_t, size_t, CUdeviceptr, Flags64);
CUresult cuIpcGetMemHandle(IpcMemHandle*, CUdeviceptr);
CUresult cuStreamEndCapture(Handle, Handle*);
#define CALL(name, parameters, arguments, role) CUresult name parameters;
#define QUERY(name, parameters, arguments) CUresult name parameters;
#include "src/backends/cuda/driver/driver_calls.inc"
}

}  // namespace hbmprof::internal::cuda_driver

#endif  // HBMPROF_TESTS_INJECT_DRIVER_CALLS_H_
