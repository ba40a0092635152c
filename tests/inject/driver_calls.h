// The driver's functions that the programs of these tests link, as cuda.h declares them.
#ifndef HBMPROF_TESTS_INJECT_DRIVER_CALLS_H_
#define HBMPROF_TESTS_INJECT_DRIVER_CALLS_H_

#include <cstddef>

#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal::cuda_driver {

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(Handle*, CUdevice);
CUresult cuCtxSetCurrent(Handle);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
CUresult cuMemAllocPitch_v2(CUdeviceptr*, size_t*, size_t, size_t, unsigned);
CUresult cuMemAllocManaged(CUdeviceptr*, size_t, unsigned);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocHost_v2(void**, size_t);
CUresult cuMemHostAlloc(void**, size_t, unsigned);
CUresult cuMemFreeHost(void*);
CUresult cuMemHostRegister_v2(void*, size_t, unsigned);
CUresult cuMemHostUnregister(void*);
CUresult cuMemAllocAsync(CUdeviceptr*, size_t, Handle);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr*, size_t, Handle);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr*, size_t, Handle, Handle);
CUresult cuMemFreeAsync(CUdeviceptr, Handle);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, Handle);
CUresult cuMemPoolCreate(Handle*, const MemPoolProps*);
CUresult cuMemPoolDestroy(Handle);
CUresult cuMemPoolImportPointer(CUdeviceptr*, Handle, void*);
CUresult cuMemAddressReserve(CUdeviceptr*, size_t, size_t, CUdeviceptr, Flags64);
CUresult cuMemCreate(CUmemGenericAllocationHandle*, size_t, const MemAllocationProp*, Flags64);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*, int);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle*, void*);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, Flags64);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMulticastCreate(CUmemGenericAllocationHandle*, const void*);
CUresult cuArrayCreate_v2(Handle*, const ArrayDescriptor*);
CUresult cuArray3DCreate_v2(Handle*, const Array3dDescriptor*);
CUresult cuArrayDestroy(Handle);
CUresult cuMipmappedArrayCreate(Handle*, const Array3dDescriptor*, unsigned);
CUresult cuMipmappedArrayDestroy(Handle);
CUresult cuIpcGetMemHandle(IpcMemHandle*, CUdeviceptr);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr*, IpcMemHandle, unsigned);
CUresult cuIpcCloseMemHandle(CUdeviceptr);
CUresult cuImportExternalMemory(Handle*, const ExternalMemoryHandleDesc*);
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr*, Handle, const void*);
CUresult cuDestroyExternalMemory(Handle);
CUresult cuStreamBeginCapture_v2(Handle, int);
CUresult cuStreamEndCapture(Handle, Handle*);
CUresult cuGraphCreate(Handle*, unsigned);
CUresult cuGraphAddNode_v2(Handle*, Handle, const Handle*, const void*, size_t, GraphNodeParams*);
CUresult cuGraphAddNode_v3(Handle*, Handle, const Handle*, const void*, size_t, GraphNodeParams*);
CUresult cuGraphAddMemAllocNode(Handle*, Handle, const Handle*, size_t, MemAllocNodeParams*);
CUresult cuGraphAddMemFreeNode(Handle*, Handle, const Handle*, size_t, CUdeviceptr);
CUresult cuGraphInstantiateWithFlags(Handle*, Handle, Flags64);
CUresult cuGraphLaunch(Handle, Handle);
CUresult cuGraphDestroy(Handle);
CUresult cuGraphExecDestroy(Handle);
CUresult cuModuleLoadData(Handle*, const void*);
CUresult cuModuleUnload(Handle);
CUresult cuLibraryLoadData(Handle*, const void*, int*, void**, unsigned, int*, void**, unsigned);
CUresult cuLibraryUnload(Handle);
CUresult cuCtxCreate_v2(Handle*, unsigned, CUdevice);
CUresult cuGLCtxCreate_v2(Handle*, unsigned, CUdevice);
CUresult cuVDPAUCtxCreate_v2(Handle*, unsigned, CUdevice, unsigned, void*);
CUresult cuCtxDestroy_v2(Handle);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuGraphLaunch_ptsz(Handle, Handle);
CUresult cuGetProcAddress_v2(const char*, void**, int, Flags64, int*);
}

}  // namespace hbmprof::internal::cuda_driver

#endif  // HBMPROF_TESTS_INJECT_DRIVER_CALLS_H_
