// The types and constants of the CUDA driver's binary interface that hbmprof uses, declared here so that it builds
// without a toolkit. tests/backends/cuda_abi_check.cc compares them with cuda.h if a toolkit is found.
//
// Not in this file: functions (driver_calls.inc).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_SHARED_DRIVER_ABI_H_
#define HBMPROF_SRC_BACKENDS_CUDA_SHARED_DRIVER_ABI_H_

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal::cuda_driver {

using CUresult = int;
inline constexpr CUresult kSuccess = 0;
inline constexpr CUresult kErrorOutOfMemory = 2;
inline constexpr CUresult kErrorNotFound = 500;

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using Flags = unsigned int;
using Flags64 = unsigned long long;

// Opaque handles, and structs that are only passed on.
using Handle = void*;
using Opaque = void;

inline constexpr Flags64 kPerThreadDefaultStream = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

// CUmemLocationType
inline constexpr int kLocationDevice = 1;
inline constexpr int kLocationHost = 2;
inline constexpr int kLocationHostNumaCurrent = 4;
inline constexpr int kLocationDeviceLocalityDomain = 6;

struct MemLocation {
  int type;
  int id;
};
inline bool IsOnHost(const MemLocation& location) {
  return location.type >= kLocationHost && location.type <= kLocationHostNumaCurrent;
}
// Returns the ordinal of the device on which the location is; -1 if it is on none, or if it is not known on which.
inline int DeviceOfLocation(const MemLocation& location) {
  if (location.type == kLocationDevice) return location.id;
  // The first byte of the id is the device, the second one a part of the device's memory.
  return location.type == kLocationDeviceLocalityDomain ? location.id & 0xff : -1;
}

inline constexpr int kAllocationManaged = 2;  // CUmemAllocationType

// The first members of CUmemAllocationProp.
struct MemAllocationProp {
  int type;
  int handle_types;
  MemLocation location;
};

// CUmemPoolProps
struct MemPoolProps {
  int type;
  int handle_types;
  MemLocation location;
  void* security_attributes;
  size_t max_size;
  unsigned char reserved[56];
};

struct ArrayDescriptor {
  size_t width;
  size_t height;
  int format;
  unsigned channels;
};

struct Array3dDescriptor {
  size_t width;
  size_t height;
  size_t depth;
  int format;
  unsigned channels;
  unsigned flags;
};

// Flags of Array3dDescriptor.
inline constexpr unsigned kArrayLayered = 0x01;
inline constexpr unsigned kArrayCubemap = 0x04;
inline constexpr unsigned kArraySparse = 0x40;
inline constexpr unsigned kArrayDeferredMapping = 0x80;

struct IpcMemHandle {
  char reserved[64];
};

// The first members of CUDA_EXTERNAL_MEMORY_HANDLE_DESC.
struct ExternalMemoryHandleDesc {
  int type;
  void* handle[2];
  unsigned long long size;
};

// CUDA_MEM_ALLOC_NODE_PARAMS, both versions.
struct MemAllocNodeParams {
  MemPoolProps pool;
  const void* access_descriptors;
  size_t access_descriptor_count;
  size_t bytes;
  CUdeviceptr address;
};

// CUDA_CHILD_GRAPH_NODE_PARAMS
struct ChildGraphNodeParams {
  Handle graph;
  int ownership;
};
inline constexpr int kOwnershipMove = 1;

// The members of CUgraphNodeParams for memory nodes and child graphs.
struct GraphNodeParams {
  int type;
  int reserved[3];
  union {
    MemAllocNodeParams alloc;
    CUdeviceptr freed;
    ChildGraphNodeParams child;
  };
};
inline constexpr int kGraphNodeGraph = 4;
inline constexpr int kGraphNodeMemAlloc = 10;
inline constexpr int kGraphNodeMemFree = 11;

// CUdevice_attribute, CUpointer_attribute, CUmemorytype, CUstreamCaptureStatus, CUmemPool_attribute,
// CUgraphMem_attribute.
inline constexpr int kDeviceIsIntegrated = 18;
inline constexpr int kDeviceHasPools = 115;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr int kCaptureActive = 1;
inline constexpr int kPoolReservedCurrent = 5;
inline constexpr int kPoolUsedCurrent = 7;
inline constexpr int kGraphsReservedCurrent = 2;

}  // namespace hbmprof::internal::cuda_driver

#endif  // HBMPROF_SRC_BACKENDS_CUDA_SHARED_DRIVER_ABI_H_
