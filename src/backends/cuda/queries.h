// Questions to CUDA that leave no trace: the last-error state, the current device and the set of initialised devices
// are the same afterwards.
// Not here: allocation calls (runtime.cc, runtime_stream.cc), what is recorded (adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "hbmprof/allocation.h"
#include "hbmprof/profiler.h"

namespace hbmprof::internal {

// Calls `query`; returns whether it succeeded. An error it leaves is cleared, so that the program does not find it.
template <typename Query>
bool AskCuda(const Query& query) {
  const cudaError_t before = cudaPeekAtLastError();
  if (query() == cudaSuccess) return true;
  if (before == cudaSuccess) static_cast<void>(cudaGetLastError());
  return false;
}

// The thread's current device; -1 if CUDA does not say.
int CurrentCudaDevice();

// "GPU:<ordinal>".
std::string CudaDeviceName(int ordinal);

// The id of a device of Profiler::Default(), with ProbeCudaDevice as its probe. Call it only when the device is in use:
// after an allocation succeeded. -1 gives the default device.
DeviceId CudaDeviceId(int ordinal);

// The allocator of Profiler::Default() that stream-ordered memory is labelled with.
AllocatorId CudaStreamOrderedAllocator();

// Total memory and bytes in use as the driver tells them; empty while the device's primary context is not active.
DeviceProbe ProbeCudaDevice(int ordinal);

// The size of the driver's allocation that `ptr` lies in; 0 if the driver does not say.
size_t CudaAddressRangeBytes(const void* ptr);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_QUERIES_H_
