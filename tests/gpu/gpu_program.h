// Functions of the programs that run on a real GPU without using hbmprof. Exit code 77: not possible on this machine;
// the reason is printed.
#ifndef HBMPROF_TESTS_GPU_GPU_PROGRAM_H_
#define HBMPROF_TESTS_GPU_GPU_PROGRAM_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) Check(call, #call)

[[noreturn]] inline void NotHere(const std::string& why) {
  std::puts(why.c_str());
  std::exit(77);
}

// Returns the number of GPUs. Ends the program if there is none.
inline int UsableGpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) NotHere(std::string("no usable GPU: ") + cudaGetErrorString(error));
  return count;
}

// Returns the driver's function of that name, looked up as PyTorch does.
template <typename Function>
Function* EntryPoint(const char* name, int version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CHECK(cudaGetDriverEntryPointByVersion(name, &function, static_cast<unsigned>(version), cudaEnableDefault, &found));
  return reinterpret_cast<Function*>(function);
}

// Returns the granularity, in bytes, of the driver's allocations.
inline size_t Granularity(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  size_t granularity = 0;
  EntryPoint<decltype(cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity", 10020)(
      &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return granularity;
}

// Free bytes of the first `devices` GPUs, as the driver reports them.
inline int64_t FreeBytes(int devices) {
  int64_t sum = 0;
  for (int device = 0; device < devices; ++device) {
    size_t free = 0;
    size_t total = 0;
    CHECK(cudaSetDevice(device));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemGetInfo(&free, &total));
    sum += static_cast<int64_t>(free);
  }
  CHECK(cudaSetDevice(0));
  return sum;
}

#endif  // HBMPROF_TESTS_GPU_GPU_PROGRAM_H_
