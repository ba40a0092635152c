// A minimal runtime, which finds the driver as the real one does: dlopen libcuda.so.1, one dlsym for
// cuGetProcAddress_v2, then all functions by cuGetProcAddress, including itself. Built as a static and as a shared
// library, for both ways of linking the real one. The real runtime checks its driver, and the fake driver does not pass
// that check. The names are the runtime's; the signatures are simplified to the driver's.
#ifndef HBMPROF_TESTS_SUPPORT_MINI_RUNTIME_MINI_RUNTIME_H_
#define HBMPROF_TESTS_SUPPORT_MINI_RUNTIME_MINI_RUNTIME_H_

#include "src/backends/cuda/shared/driver_abi.h"

namespace mini_runtime {
using namespace hbmprof::internal::cuda_driver;  // NOLINT

extern "C" {
// Makes the device's primary context current.
CUresult cudaSetDevice(int device);
CUresult cudaMalloc(CUdeviceptr* ptr, size_t bytes);
CUresult cudaMallocPitch(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height, unsigned element);
CUresult cudaMallocManaged(CUdeviceptr* ptr, size_t bytes, unsigned flags);
CUresult cudaFree(CUdeviceptr ptr);
CUresult cudaMallocHost(void** ptr, size_t bytes);
CUresult cudaFreeHost(void* ptr);
CUresult cudaMallocAsync(CUdeviceptr* ptr, size_t bytes, Handle stream);
// The functions for programs that are built for the per-thread default stream.
CUresult cudaMallocAsync_ptsz(CUdeviceptr* ptr, size_t bytes, Handle stream);
CUresult cudaFreeAsync(CUdeviceptr ptr, Handle stream);
CUresult cudaMemPoolCreate(Handle* pool, const MemPoolProps* properties);
CUresult cudaMemPoolDestroy(Handle pool);
CUresult cudaMallocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, Handle pool, Handle stream);
CUresult cudaMallocArray(Handle* array, const ArrayDescriptor* description);
CUresult cudaFreeArray(Handle array);
CUresult cudaGraphCreate(Handle* graph, unsigned flags);
CUresult cudaGraphAddMemAllocNode(Handle* node, Handle graph, const Handle* dependencies, size_t count,
                                  MemAllocNodeParams* params);
CUresult cudaGraphInstantiate(Handle* executable, Handle graph, Flags64 flags);
CUresult cudaGraphLaunch(Handle executable, Handle stream);
CUresult cudaGraphExecDestroy(Handle executable);
CUresult cudaGraphDestroy(Handle graph);
CUresult cudaIpcGetMemHandle(IpcMemHandle* handle, CUdeviceptr ptr);
CUresult cudaIpcOpenMemHandle(CUdeviceptr* ptr, IpcMemHandle handle, unsigned flags);
CUresult cudaIpcCloseMemHandle(CUdeviceptr ptr);
CUresult cudaProfilerStart();
CUresult cudaProfilerStop();
// As PyTorch finds the driver's calls for physical memory.
CUresult cudaGetDriverEntryPointByVersion(const char* name, void** function, int version);
}

}  // namespace mini_runtime

#endif  // HBMPROF_TESTS_SUPPORT_MINI_RUNTIME_MINI_RUNTIME_H_
