// Allocates memory of one kind (argv[1]). The macro ROUTE selects how it finds the driver's functions: linked, dlsym,
// get_proc_address, or runtime (a runtime library above the driver). argv[2] is "hold", which ends the program while it
// holds the memory, or "free". The allocating calls are made by user_allocates.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "src/backends/cuda/shared/driver_abi.h"
#include "tests/support/check.h"
#include "tests/support/mini_runtime/mini_runtime.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

namespace {

// CALL(name in the table, the driver's symbol, its name for cuGetProcAddress, version, the runtime's name, type);
// ENTRY is the same for calls without a function of the runtime.
#define ROUTE_CALLS(CALL, ENTRY)                                                                                    \
  CALL(malloc, cuMemAlloc_v2, "cuMemAlloc", 3020, cudaMalloc, CUresult(CUdeviceptr*, size_t))                       \
  CALL(malloc_pitch, cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, cudaMallocPitch,                                  \
       CUresult(CUdeviceptr*, size_t*, size_t, size_t, unsigned))                                                   \
  CALL(malloc_managed, cuMemAllocManaged, "cuMemAllocManaged", 6000, cudaMallocManaged,                             \
       CUresult(CUdeviceptr*, size_t, unsigned))                                                                    \
  CALL(free, cuMemFree_v2, "cuMemFree", 3020, cudaFree, CUresult(CUdeviceptr))                                      \
  CALL(malloc_host, cuMemAllocHost_v2, "cuMemAllocHost", 3020, cudaMallocHost, CUresult(void**, size_t))            \
  CALL(free_host, cuMemFreeHost, "cuMemFreeHost", 2000, cudaFreeHost, CUresult(void*))                              \
  CALL(malloc_async, cuMemAllocAsync, "cuMemAllocAsync", 11020, cudaMallocAsync,                                    \
       CUresult(CUdeviceptr*, size_t, Handle))                                                                      \
  CALL(free_async, cuMemFreeAsync, "cuMemFreeAsync", 11020, cudaFreeAsync, CUresult(CUdeviceptr, Handle))           \
  CALL(pool_create, cuMemPoolCreate, "cuMemPoolCreate", 11020, cudaMemPoolCreate,                                   \
       CUresult(Handle*, const MemPoolProps*))                                                                      \
  CALL(pool_destroy, cuMemPoolDestroy, "cuMemPoolDestroy", 11020, cudaMemPoolDestroy, CUresult(Handle))             \
  CALL(malloc_from_pool, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, cudaMallocFromPoolAsync,        \
       CUresult(CUdeviceptr*, size_t, Handle, Handle))                                                              \
  CALL(array_create, cuArrayCreate_v2, "cuArrayCreate", 3020, cudaMallocArray,                                      \
       CUresult(Handle*, const ArrayDescriptor*))                                                                   \
  CALL(array_destroy, cuArrayDestroy, "cuArrayDestroy", 2000, cudaFreeArray, CUresult(Handle))                      \
  CALL(graph_create, cuGraphCreate, "cuGraphCreate", 10000, cudaGraphCreate, CUresult(Handle*, unsigned))           \
  CALL(graph_add_alloc, cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, cudaGraphAddMemAllocNode,          \
       CUresult(Handle*, Handle, const Handle*, size_t, MemAllocNodeParams*))                                       \
  CALL(graph_instantiate, cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, cudaGraphInstantiate,  \
       CUresult(Handle*, Handle, Flags64))                                                                          \
  CALL(graph_launch, cuGraphLaunch, "cuGraphLaunch", 10000, cudaGraphLaunch, CUresult(Handle, Handle))              \
  CALL(graph_exec_destroy, cuGraphExecDestroy, "cuGraphExecDestroy", 10000, cudaGraphExecDestroy, CUresult(Handle)) \
  CALL(graph_destroy, cuGraphDestroy, "cuGraphDestroy", 10000, cudaGraphDestroy, CUresult(Handle))                  \
  CALL(ipc_get, cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, cudaIpcGetMemHandle,                                  \
       CUresult(IpcMemHandle*, CUdeviceptr))                                                                        \
  CALL(ipc_open, cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, cudaIpcOpenMemHandle,                          \
       CUresult(CUdeviceptr*, IpcMemHandle, unsigned))                                                              \
  CALL(ipc_close, cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, cudaIpcCloseMemHandle, CUresult(CUdeviceptr))   \
  ENTRY(address_reserve, cuMemAddressReserve, "cuMemAddressReserve", 10020,                                         \
        CUresult(CUdeviceptr*, size_t, size_t, CUdeviceptr, Flags64))                                               \
  ENTRY(create, cuMemCreate, "cuMemCreate", 10020,                                                                  \
        CUresult(CUmemGenericAllocationHandle*, size_t, const MemAllocationProp*, Flags64))                         \
  ENTRY(release, cuMemRelease, "cuMemRelease", 10020, CUresult(CUmemGenericAllocationHandle))                       \
  ENTRY(map, cuMemMap, "cuMemMap", 10020,                                                                           \
        CUresult(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, Flags64))                               \
  ENTRY(unmap, cuMemUnmap, "cuMemUnmap", 10020, CUresult(CUdeviceptr, size_t))

struct Route {
#define CALL(field, symbol, name, version, runtime, ...) std::add_pointer_t<__VA_ARGS__> field = nullptr;
#define ENTRY(field, symbol, name, version, ...) std::add_pointer_t<__VA_ARGS__> field = nullptr;
  ROUTE_CALLS(CALL, ENTRY)
#undef CALL
#undef ENTRY
};

}  // namespace

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(Handle*, CUdevice);
CUresult cuCtxSetCurrent(Handle);
#define CALL(field, symbol, name, version, runtime, ...) std::remove_pointer_t<decltype(Route::field)> symbol;
#define ENTRY(field, symbol, name, version, ...) std::remove_pointer_t<decltype(Route::field)> symbol;
ROUTE_CALLS(CALL, ENTRY)
#undef CALL
#undef ENTRY
}

namespace {

#if defined(ROUTE_linked)
template <typename Function>
void Find(Function*& function, Function* symbol, const char*, const char*, int) {
  function = symbol;
}
#define FIND(field, symbol, name, version) Find(route.field, &symbol, #symbol, name, version);
#elif defined(ROUTE_runtime)
template <typename Function>
void Find(Function*& function, const char* name, int version) {
  void* found = nullptr;
  Check(mini_runtime::cudaGetDriverEntryPointByVersion(name, &found, version) == kSuccess, name);
  function = reinterpret_cast<Function*>(found);
}
#define FIND(field, symbol, name, version) Find(route.field, name, version);
#else
void* Library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  Check(library != nullptr, "libcuda.so.1 is there");
  return library;
}
template <typename Function>
void Find(Function*& function, const char* symbol, [[maybe_unused]] const char* name, [[maybe_unused]] int version) {
#if defined(ROUTE_dlsym)
  function = reinterpret_cast<Function*>(dlsym(Library(), symbol));
#else
  using GetProcAddress = CUresult(const char*, void**, int, Flags64, int*);
  static auto* const get = reinterpret_cast<GetProcAddress*>(dlsym(Library(), "cuGetProcAddress_v2"));
  void* found = nullptr;
  Check(get(name, &found, version, 0, nullptr) == kSuccess, name);
  function = reinterpret_cast<Function*>(found);
#endif
  Check(function != nullptr, symbol);
}
#define FIND(field, symbol, name, version) Find(route.field, #symbol, name, version);
#endif

Route MakeRoute() {
  Route route;
#if defined(ROUTE_runtime)
#define CALL(field, symbol, name, version, runtime, ...) route.field = &mini_runtime::runtime;
#else
#define CALL(field, symbol, name, version, runtime, ...) FIND(field, symbol, name, version)
#endif
#define ENTRY(field, symbol, name, version, ...) FIND(field, symbol, name, version)
  ROUTE_CALLS(CALL, ENTRY)
#undef CALL
#undef ENTRY
  return route;
}

void UseDevice(int device) {
#if defined(ROUTE_runtime)
  Check(mini_runtime::cudaSetDevice(device) == kSuccess, "cudaSetDevice");
#else
#if defined(ROUTE_linked)
  auto* init = &cuInit;
  auto* retain = &cuDevicePrimaryCtxRetain;
  auto* set = &cuCtxSetCurrent;
#else
  auto* init = reinterpret_cast<decltype(&cuInit)>(dlsym(Library(), "cuInit"));
  auto* retain = reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(dlsym(Library(), "cuDevicePrimaryCtxRetain"));
  auto* set = reinterpret_cast<decltype(&cuCtxSetCurrent)>(dlsym(Library(), "cuCtxSetCurrent"));
#endif
  Handle context = nullptr;
  Check(init(0) == kSuccess, "cuInit");
  Check(retain(&context, device) == kSuccess, "cuDevicePrimaryCtxRetain");
  Check(set(context) == kSuccess, "cuCtxSetCurrent");
#endif
}

// An allocation to free later.
struct Held {
  CUdeviceptr ptr = 0;
  CUdeviceptr exported = 0;
  void* host = nullptr;
  Handle array = nullptr;
  Handle pool = nullptr;
  Handle graph = nullptr;
  Handle executable = nullptr;
  CUmemGenericAllocationHandle physical = 0;
};

constexpr size_t kPhysicalBytes = size_t{2} << 20;
const MemLocation kDevice1{kLocationDevice, 1};

}  // namespace

// The user's function that every profile must name.
extern "C" [[gnu::noinline]] void user_allocates(const Route& route, const std::string& kind, Held& held) {
  CUresult result = kErrorNotFound;
  if (kind == "linear") result = route.malloc(&held.ptr, 12345);
  if (kind == "pitch") {
    size_t pitch = 0;
    result = route.malloc_pitch(&held.ptr, &pitch, 1000, 3, 4);
  }
  if (kind == "managed") result = route.malloc_managed(&held.ptr, 2222, 1);
  if (kind == "pinned") result = route.malloc_host(&held.host, 3333);
  if (kind == "async") result = route.malloc_async(&held.ptr, 4444, nullptr);
  if (kind == "pool") result = route.malloc_from_pool(&held.ptr, 5555, held.pool, nullptr);
  if (kind == "vmm") {
    const MemAllocationProp properties{1, 0, kDevice1};
    result = route.create(&held.physical, kPhysicalBytes, &properties, 0);
  }
  if (kind == "array") {
    const ArrayDescriptor float4_image{64, 4, 0x20, 4};
    result = route.array_create(&held.array, &float4_image);
  }
  if (kind == "graph") {
    MemAllocNodeParams params = {};
    params.pool.location = kDevice1;
    params.bytes = 7777;
    Handle node = nullptr;
    result = route.graph_add_alloc(&node, held.graph, nullptr, 0, &params);
    held.ptr = params.address;
  }
  if (kind == "ipc") {
    IpcMemHandle handle = {};
    route.ipc_get(&handle, held.exported);
    result = route.ipc_open(&held.ptr, handle, 1);
  }
  Check(result == kSuccess, kind.c_str());
}

int main(int, char** argv) {
  const std::string kind = argv[1];
  const bool frees = std::string(argv[2]) == "free";
  UseDevice(1);
  const Route route = MakeRoute();
  Held held;
  if (kind == "pool") {
    const MemPoolProps properties{1, 0, kDevice1, nullptr, 0, {}};
    Check(route.pool_create(&held.pool, &properties) == kSuccess, "a pool");
  }
  if (kind == "graph") Check(route.graph_create(&held.graph, 0) == kSuccess, "a graph");
  if (kind == "ipc") Check(route.malloc(&held.exported, 8192) == kSuccess, "what is exported");

  user_allocates(route, kind, held);
  if (kind == "vmm") {
    // Like ggml: mapped, then released.
    Check(route.address_reserve(&held.ptr, kPhysicalBytes, 0, 0, 0) == kSuccess, "addresses");
    Check(route.map(held.ptr, kPhysicalBytes, 0, held.physical, 0) == kSuccess, "a mapping");
    Check(route.release(held.physical) == kSuccess, "a release");
  }
  if (kind == "graph") {
    Check(route.graph_instantiate(&held.executable, held.graph, 0) == kSuccess, "an executable graph");
    Check(route.graph_launch(held.executable, nullptr) == kSuccess, "a launch");
  }
  if (frees) {
    CUresult result = kSuccess;
    if (kind == "pinned") {
      result = route.free_host(held.host);
    } else if (kind == "pool") {
      result = route.free_async(held.ptr, nullptr);
    } else if (kind == "vmm") {
      result = route.unmap(held.ptr, kPhysicalBytes);
    } else if (kind == "array") {
      result = route.array_destroy(held.array);
    } else if (kind == "ipc") {
      result = route.ipc_close(held.ptr);
    } else {
      result = route.free(held.ptr);  // of stream-ordered memory too
    }
    Check(result == kSuccess, "freeing");
    if (kind == "graph") {
      Check(route.graph_exec_destroy(held.executable) == kSuccess, "destroying the executable");
      Check(route.graph_destroy(held.graph) == kSuccess, "destroying the graph");
    }
    if (kind == "ipc") Check(route.free(held.exported) == kSuccess, "freeing what was exported");
    if (kind == "pool") Check(route.pool_destroy(held.pool) == kSuccess, "destroying the pool");
  }
  std::printf("done\n");
  return 0;
}
