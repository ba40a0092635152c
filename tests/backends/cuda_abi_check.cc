// Compares the declarations of driver_abi.h and driver_calls.inc with cuda.h at compile time. Compiled only if a
// toolkit is found.

// Declares all versions of all functions.
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "src/backends/cuda/shared/driver_abi.h"

// Functions that were added between 13.0 and 13.4.
#if CUDA_VERSION >= 13000 && CUDA_VERSION < 13030
extern "C" CUresult cuStreamBeginRecaptureToGraph(CUstream, CUstreamCaptureMode, CUgraph, void*, void*);
extern "C" CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream, CUstreamCaptureMode, CUgraph, void*, void*);
#endif
#if CUDA_VERSION >= 13000 && CUDA_VERSION < 13040
extern "C" decltype(cuGraphAddNode_v2) cuGraphAddNode_v3;
#endif
// Functions of cudaGL.h and cudaVDPAU.h, which include headers of OpenGL and VDPAU.
extern "C" CUresult cuGLCtxCreate_v2(CUcontext*, unsigned, CUdevice);
extern "C" CUresult cuVDPAUCtxCreate_v2(CUcontext*, unsigned, CUdevice, uint32_t, void*);
// Functions of cudaProfiler.h, which PyPI's package of headers lacks.
extern "C" CUresult cuProfilerStart(void);
extern "C" CUresult cuProfilerStop(void);

namespace hbmprof::internal::cuda_driver {
namespace {

#if CUDA_VERSION >= 13000  // older headers lack some of the functions
// --- Functions: the same number of parameters, each passed in the same way. ---

template <typename Ours, typename Theirs>
constexpr bool PassedAlike() {
  if (std::is_class_v<Ours> || std::is_class_v<Theirs>) {
    return std::is_class_v<Ours> && std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  }
  if (std::is_pointer_v<Ours> != std::is_pointer_v<Theirs>) return false;
  return sizeof(Ours) == sizeof(Theirs);
}

template <typename Ours, typename Theirs>
struct Alike : std::false_type {};
template <typename R1, typename... Ours, typename R2, typename... Theirs>
struct Alike<R1(Ours...), R2(Theirs...)> {
  static constexpr bool Value() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return sizeof(R1) == sizeof(R2) && (PassedAlike<Ours, Theirs>() && ...);
    }
  }
};

#define CALL(name, parameters, arguments, role) \
  using Ours_##name = CUresult parameters;      \
  static_assert(Alike<Ours_##name, std::remove_pointer_t<decltype(&::name)>>::Value(), #name);
#define QUERY(name, parameters, arguments) CALL(name, parameters, arguments, )
#include "src/backends/cuda/driver/driver_calls.inc"
#endif

// --- Structs: all members that are declared. ---

static_assert(kSuccess == CUDA_SUCCESS && kErrorNotFound == CUDA_ERROR_NOT_FOUND);
static_assert(kPerThreadDefaultStream == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
static_assert(kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE && kLocationHost == CU_MEM_LOCATION_TYPE_HOST);
static_assert(kLocationHostNumaCurrent == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);

static_assert(kAllocationManaged == CU_MEM_ALLOCATION_TYPE_MANAGED);
#if CUDA_VERSION >= 13040
static_assert(kLocationDeviceLocalityDomain == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN);
static_assert(offsetof(MemLocation, id) == offsetof(CUmemLocation, localized.deviceId));
static_assert(sizeof(CUmemLocation::localized.deviceId) == 1);
#endif

static_assert(sizeof(MemLocation) == sizeof(CUmemLocation) && offsetof(MemLocation, id) == offsetof(CUmemLocation, id));
static_assert(offsetof(MemAllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(sizeof(MemPoolProps) == sizeof(CUmemPoolProps));
static_assert(offsetof(MemPoolProps, location) == offsetof(CUmemPoolProps, location));
static_assert(offsetof(MemPoolProps, max_size) == offsetof(CUmemPoolProps, maxSize));

static_assert(sizeof(ArrayDescriptor) == sizeof(CUDA_ARRAY_DESCRIPTOR));
static_assert(offsetof(ArrayDescriptor, format) == offsetof(CUDA_ARRAY_DESCRIPTOR, Format));
static_assert(offsetof(ArrayDescriptor, channels) == offsetof(CUDA_ARRAY_DESCRIPTOR, NumChannels));
static_assert(sizeof(Array3dDescriptor) == sizeof(CUDA_ARRAY3D_DESCRIPTOR));
static_assert(offsetof(Array3dDescriptor, depth) == offsetof(CUDA_ARRAY3D_DESCRIPTOR, Depth));
static_assert(offsetof(Array3dDescriptor, format) == offsetof(CUDA_ARRAY3D_DESCRIPTOR, Format));
static_assert(offsetof(Array3dDescriptor, flags) == offsetof(CUDA_ARRAY3D_DESCRIPTOR, Flags));

static_assert(kArrayLayered == CUDA_ARRAY3D_LAYERED && kArrayCubemap == CUDA_ARRAY3D_CUBEMAP);
static_assert(kArraySparse == CUDA_ARRAY3D_SPARSE && kArrayDeferredMapping == CUDA_ARRAY3D_DEFERRED_MAPPING);

static_assert(sizeof(IpcMemHandle) == sizeof(CUipcMemHandle));
static_assert(offsetof(ExternalMemoryHandleDesc, size) == offsetof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size));

static_assert(sizeof(MemAllocNodeParams) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));
static_assert(offsetof(MemAllocNodeParams, bytes) == offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize));
static_assert(offsetof(MemAllocNodeParams, address) == offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, dptr));
#if CUDA_VERSION >= 12020
static_assert(offsetof(GraphNodeParams, alloc) == offsetof(CUgraphNodeParams, alloc));
static_assert(offsetof(GraphNodeParams, freed) == offsetof(CUgraphNodeParams, free));
#endif
#if CUDA_VERSION >= 13000
static_assert(offsetof(GraphNodeParams, child) == offsetof(CUgraphNodeParams, graph));
static_assert(offsetof(ChildGraphNodeParams, ownership) == offsetof(CUDA_CHILD_GRAPH_NODE_PARAMS, ownership));
static_assert(kOwnershipMove == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE && kGraphNodeGraph == CU_GRAPH_NODE_TYPE_GRAPH);
#endif
static_assert(kGraphNodeMemAlloc == CU_GRAPH_NODE_TYPE_MEM_ALLOC && kGraphNodeMemFree == CU_GRAPH_NODE_TYPE_MEM_FREE);

static_assert(kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kPointerIsManaged == CU_POINTER_ATTRIBUTE_IS_MANAGED);
static_assert(kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kMemoryTypeHost == CU_MEMORYTYPE_HOST && kCaptureActive == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(kPoolReservedCurrent == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
static_assert(kPoolUsedCurrent == CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
static_assert(kGraphsReservedCurrent == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);

}  // namespace
}  // namespace hbmprof::internal::cuda_driver
