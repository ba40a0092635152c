#include "tests/support/mini_runtime/mini_runtime.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace mini_runtime {
namespace {

using GetProcAddress = CUresult(const char*, void**, int version, Flags64 flags, int* status);

GetProcAddress* FindDriver() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto* get = driver == nullptr ? nullptr : reinterpret_cast<GetProcAddress*>(dlsym(driver, "cuGetProcAddress_v2"));
  void* itself = nullptr;
  if (get == nullptr || get("cuGetProcAddress", &itself, 12000, 0, nullptr) != kSuccess) {
    std::fprintf(stderr, "mini runtime: no driver\n");
    std::abort();
  }
  return reinterpret_cast<GetProcAddress*>(itself);
}

void* Find(const char* name, int version, Flags64 flags) {
  static GetProcAddress* const get = FindDriver();
  void* function = nullptr;
  get(name, &function, version, flags, nullptr);
  return function;
}

template <typename... Arguments>
CUresult Call(const char* name, int version, Flags64 flags, Arguments... arguments) {
  using Function = CUresult(Arguments...);
  auto* function = reinterpret_cast<Function*>(Find(name, version, flags));
  return function == nullptr ? kErrorNotFound : function(arguments...);
}

}  // namespace

extern "C" {

CUresult cudaSetDevice(int device) {
  Handle context = nullptr;
  if (const CUresult error = Call("cuInit", 2000, 0, 0u)) return error;
  if (const CUresult error = Call("cuDevicePrimaryCtxRetain", 7000, 0, &context, device)) return error;
  return Call("cuCtxSetCurrent", 4000, 0, context);
}

CUresult cudaMalloc(CUdeviceptr* ptr, size_t bytes) { return Call("cuMemAlloc", 3020, 0, ptr, bytes); }
CUresult cudaMallocPitch(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height, unsigned element) {
  return Call("cuMemAllocPitch", 3020, 0, ptr, pitch, width, height, element);
}
CUresult cudaMallocManaged(CUdeviceptr* ptr, size_t bytes, unsigned flags) {
  return Call("cuMemAllocManaged", 6000, 0, ptr, bytes, flags);
}
CUresult cudaFree(CUdeviceptr ptr) { return Call("cuMemFree", 3020, 0, ptr); }
CUresult cudaMallocHost(void** ptr, size_t bytes) { return Call("cuMemAllocHost", 3020, 0, ptr, bytes); }
CUresult cudaFreeHost(void* ptr) { return Call("cuMemFreeHost", 2000, 0, ptr); }
CUresult cudaMallocAsync(CUdeviceptr* ptr, size_t bytes, Handle stream) {
  return Call("cuMemAllocAsync", 11020, 0, ptr, bytes, stream);
}
CUresult cudaMallocAsync_ptsz(CUdeviceptr* ptr, size_t bytes, Handle stream) {
  return Call("cuMemAllocAsync", 11020, kPerThreadDefaultStream, ptr, bytes, stream);
}
CUresult cudaFreeAsync(CUdeviceptr ptr, Handle stream) { return Call("cuMemFreeAsync", 11020, 0, ptr, stream); }
CUresult cudaMemPoolCreate(Handle* pool, const MemPoolProps* properties) {
  return Call("cuMemPoolCreate", 11020, 0, pool, properties);
}
CUresult cudaMemPoolDestroy(Handle pool) { return Call("cuMemPoolDestroy", 11020, 0, pool); }
CUresult cudaMallocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, Handle pool, Handle stream) {
  return Call("cuMemAllocFromPoolAsync", 11020, 0, ptr, bytes, pool, stream);
}
CUresult cudaMallocArray(Handle* array, const ArrayDescriptor* description) {
  return Call("cuArrayCreate", 3020, 0, array, description);
}
CUresult cudaFreeArray(Handle array) { return Call("cuArrayDestroy", 2000, 0, array); }
CUresult cudaGraphCreate(Handle* graph, unsigned flags) { return Call("cuGraphCreate", 10000, 0, graph, flags); }
CUresult cudaGraphAddMemAllocNode(Handle* node, Handle graph, const Handle* dependencies, size_t count,
                                  MemAllocNodeParams* params) {
  return Call("cuGraphAddMemAllocNode", 11040, 0, node, graph, dependencies, count, params);
}
CUresult cudaGraphInstantiate(Handle* executable, Handle graph, Flags64 flags) {
  return Call("cuGraphInstantiateWithFlags", 11040, 0, executable, graph, flags);
}
CUresult cudaGraphLaunch(Handle executable, Handle stream) {
  return Call("cuGraphLaunch", 10000, 0, executable, stream);
}
CUresult cudaGraphExecDestroy(Handle executable) { return Call("cuGraphExecDestroy", 10000, 0, executable); }
CUresult cudaGraphDestroy(Handle graph) { return Call("cuGraphDestroy", 10000, 0, graph); }
CUresult cudaIpcGetMemHandle(IpcMemHandle* handle, CUdeviceptr ptr) {
  return Call("cuIpcGetMemHandle", 4010, 0, handle, ptr);
}
CUresult cudaIpcOpenMemHandle(CUdeviceptr* ptr, IpcMemHandle handle, unsigned flags) {
  return Call("cuIpcOpenMemHandle", 11000, 0, ptr, handle, flags);
}
CUresult cudaIpcCloseMemHandle(CUdeviceptr ptr) { return Call("cuIpcCloseMemHandle", 4010, 0, ptr); }
CUresult cudaProfilerStart() { return Call("cuProfilerStart", 4000, 0); }
CUresult cudaProfilerStop() { return Call("cuProfilerStop", 4000, 0); }
CUresult cudaGetDriverEntryPointByVersion(const char* name, void** function, int version) {
  *function = Find(name, version, 0);
  return *function == nullptr ? kErrorNotFound : kSuccess;
}
}

}  // namespace mini_runtime
