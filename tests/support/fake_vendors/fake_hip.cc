// A substitute for AMD's libamdhip64.so.7 without a device: hbmprof's table of it, as far as the tests call it, with
// the symbol versions of AMD's library (fake_hip.map). Physical memory is kept until its addresses are freed. As in
// ROCm 6.3, each call sets the thread's last error, also a call that succeeds; here those that hbmprof makes, and those
// that allocate or free.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "src/backends/hip/hip_driver.h"
#include "tests/support/fake_vendors/fake_memory.h"

namespace hbmprof::internal::hip_driver {
namespace {

constexpr int kInvalidValue = 1;

using fake_vendors::Memory;

thread_local int current_device = 0;
thread_local int last_error = kSuccess;

int Return(int error) { return last_error = error; }

int Make(CUdeviceptr* ptr, size_t bytes, bool is_on_device, int owner) {
  if (ptr == nullptr) return Return(kInvalidValue);
  const uintptr_t made = Memory::Instance().Allocate(bytes, is_on_device, owner);
  if (made == 0) return Return(kErrorOutOfMemory);
  *ptr = made;
  return Return(kSuccess);
}
int Make(CUdeviceptr* ptr, size_t bytes) { return Make(ptr, bytes, true, current_device); }
int MakeHost(void** ptr, size_t bytes) { return Make(reinterpret_cast<CUdeviceptr*>(ptr), bytes, false, -1); }
int MakeHandle(Handle* handle, size_t bytes) { return Make(reinterpret_cast<CUdeviceptr*>(handle), bytes); }
int End(CUdeviceptr ptr) { return Return(ptr == 0 || Memory::Instance().Free(ptr) ? kSuccess : kInvalidValue); }
int EndHandle(Handle handle) { return End(reinterpret_cast<CUdeviceptr>(handle)); }

size_t Pitch(size_t width) { return (width + 511) / 512 * 512; }

// Physical memory: the addresses where it was mapped keep it.
struct Addresses {
  std::mutex mutex;
  std::map<CUdeviceptr, std::set<CUmemGenericAllocationHandle>> kept;  // by the start of the range
  std::map<CUdeviceptr, size_t> ranges;
  std::set<CUmemGenericAllocationHandle> released;
};
Addresses& addresses() {
  static auto* const all = new Addresses;
  return *all;
}

// The properties of the pools.
struct Pools {
  Pools() {
    for (int i = 0; i < 2; ++i) of[&defaults[i]] = {1, 0, {kLocationDevice, i}};
  }
  std::mutex mutex;
  char defaults[2] = {};
  std::map<Handle, MemPoolProps> of;
  std::set<CUdeviceptr> managed;  // the addresses that managed pools have given
};
Pools& pools() {
  static auto* const all = new Pools;
  return *all;
}

}  // namespace

extern "C" {

int hipInit(Flags) { return kSuccess; }
int hipRuntimeGetVersion(int* version) { return *version = 70000000, kSuccess; }
int hipGetDeviceCount(int* count) { return *count = 2, kSuccess; }
int hipGetDevice(int* device) { return *device = current_device, Return(kSuccess); }
int hipSetDevice(int device) { return current_device = device, Return(kSuccess); }
int hipGetLastError() { return std::exchange(last_error, kSuccess); }
int hipPeekAtLastError() { return last_error; }
// Memory of the context of both devices stays.
int hipDeviceReset() {
  Memory::Instance().FreeAllOf(current_device);
  const std::lock_guard<std::mutex> hold(pools().mutex);
  for (auto pool = pools().of.begin(); pool != pools().of.end();) {
    const bool ends = pool->second.location.id == current_device && pool->first != &pools().defaults[current_device];
    pool = ends ? pools().of.erase(pool) : std::next(pool);
  }
  return Return(kSuccess);
}
int hipMemGetInfo(size_t* free, size_t* total) {
  *total = fake_vendors::kCapacity;
  *free = *total - Memory::Instance().used();
  return Return(kSuccess);
}
int hipMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr ptr) {
  uintptr_t start = 0;
  *bytes = Memory::Instance().Find(ptr, &start);
  *base = start;
  return Return(*bytes == 0 ? kInvalidValue : kSuccess);
}

int hipMalloc(CUdeviceptr* ptr, size_t bytes) { return Make(ptr, bytes); }
int hipExtMallocWithFlags(CUdeviceptr* ptr, size_t bytes, Flags) { return Make(ptr, bytes); }
int hipMallocManaged(CUdeviceptr* ptr, size_t bytes, Flags) { return Make(ptr, bytes, true, -1); }
int hipMallocPitch(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height) {
  return Make(ptr, (*pitch = Pitch(width)) * height);
}
int hipMalloc3D(PitchedPtr* ptr, Extent extent) {
  *ptr = {nullptr, Pitch(extent.width), extent.width, extent.height};
  return MakeHandle(&ptr->ptr, ptr->pitch * extent.height * extent.depth);
}
int hipFree(CUdeviceptr ptr) { return End(ptr); }
int hipHostMalloc(void** ptr, size_t bytes, Flags) { return MakeHost(ptr, bytes); }
int hipHostFree(void* ptr) { return EndHandle(ptr); }
int hipHostRegister(void*, size_t, Flags) { return kSuccess; }
int hipHostUnregister(void*) { return kSuccess; }

int hipMallocAsync(CUdeviceptr* ptr, size_t bytes, Handle) { return Make(ptr, bytes); }
int hipMallocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, Handle pool, Handle) {
  const std::lock_guard<std::mutex> hold(pools().mutex);
  const MemPoolProps& properties = pools().of[pool];
  const int result = Make(ptr, bytes, true, properties.location.id);
  if (result == kSuccess && properties.type == kAllocationManaged) pools().managed.insert(*ptr);
  return result;
}
int hipFreeAsync(CUdeviceptr ptr, Handle) { return End(ptr); }
int hipMemPoolCreate(Handle* pool, const MemPoolProps* properties) {
  *pool = std::malloc(1);
  const std::lock_guard<std::mutex> hold(pools().mutex);
  pools().of[*pool] = *properties;
  return Return(kSuccess);
}
int hipMemPoolDestroy(Handle pool) {
  const std::lock_guard<std::mutex> hold(pools().mutex);
  return Return(pools().of.erase(pool) == 1 ? kSuccess : kInvalidValue);
}
int hipDeviceGetDefaultMemPool(Handle* pool, int device) { return *pool = &pools().defaults[device], Return(kSuccess); }
// AMD's does not check the pool.
int hipMemPoolGetAttribute(Handle pool, int, void* value) {
  const std::lock_guard<std::mutex> hold(pools().mutex);
  if (pools().of.count(pool) == 0) std::fprintf(stderr, "fake_hip: a pool is asked after its end\n"), std::abort();
  *static_cast<int64_t*>(value) = 0;
  return Return(kSuccess);
}

int hipMallocArray(Handle* array, const ChannelFormat* format, size_t width, size_t height, Flags flags) {
  return MakeHandle(array, CudaArrayBytes(ArrayOf(*format, {width, height, 0}, flags)));
}
int hipFreeArray(Handle array) { return EndHandle(array); }

// An import fails with this error for any reason.
int hipImportExternalMemory(Handle*, const ExternalMemoryHandleDesc*) { return Return(kErrorOutOfMemory); }
int hipMemPoolImportPointer(CUdeviceptr*, Handle, Opaque*) { return Return(kErrorOutOfMemory); }

int hipGraphCreate(Handle* graph, Flags) { return *graph = std::malloc(1), Return(kSuccess); }
int hipGraphAddMemAllocNode(Handle*, Handle, const Handle*, size_t, MemAllocNodeParams* params) {
  return Make(&params->address, params->bytes, false, -1);
}
int hipGraphAddNode(Handle*, Handle, const Handle*, size_t, GraphNodeParams*) { return Return(kSuccess); }

int hipMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const MemAllocationProp* p, Flags64) {
  return Make(handle, bytes, true, p->location.id);
}
int hipMemAddressReserve(CUdeviceptr* ptr, size_t bytes, size_t, CUdeviceptr, Flags64) {
  const int result = Make(ptr, bytes, false, -1);
  const std::lock_guard<std::mutex> hold(addresses().mutex);
  if (result == kSuccess) addresses().ranges[*ptr] = bytes;
  return result;
}
int hipMemMap(CUdeviceptr address, size_t, size_t, CUmemGenericAllocationHandle handle, Flags64) {
  const std::lock_guard<std::mutex> hold(addresses().mutex);
  auto range = addresses().ranges.upper_bound(address);
  if (range == addresses().ranges.begin()) return kInvalidValue;
  addresses().kept[(--range)->first].insert(handle);
  return kSuccess;
}
int hipMemUnmap(CUdeviceptr, size_t) { return kSuccess; }
int hipMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard<std::mutex> hold(addresses().mutex);
  for (const auto& [address, handles] : addresses().kept) {
    if (handles.count(handle) != 0) return addresses().released.insert(handle), kSuccess;
  }
  return End(handle);
}
int hipMemAddressFree(CUdeviceptr ptr, size_t) {
  const std::lock_guard<std::mutex> hold(addresses().mutex);
  for (const CUmemGenericAllocationHandle handle : addresses().kept[ptr]) {
    if (addresses().released.erase(handle) != 0) End(handle);
  }
  addresses().kept.erase(ptr);
  addresses().ranges.erase(ptr);
  return End(ptr);
}

int hipPointerGetAttributes(int* attributes, CUdeviceptr ptr) {
  uintptr_t start = 0;
  int device = 0;
  if (Memory::Instance().Find(ptr, &start, &device) == 0) return Return(kInvalidValue);
  constexpr int kOnDevice = 2;
  std::memset(attributes, 0, 32);
  attributes[0] = kOnDevice;
  attributes[1] = std::max(device, 0);
  const std::lock_guard<std::mutex> hold(pools().mutex);
  attributes[6] = static_cast<int>(pools().managed.count(start));
  return Return(kSuccess);
}

int hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }
int hipDeviceGetAttribute(int* value, int, int) { return *value = 0, kSuccess; }
int hipDeviceGetPCIBusId(char* id, int bytes, int) { return std::memset(id, 0, static_cast<size_t>(bytes)), kSuccess; }
const char* hipGetErrorName(int) { return "hipError"; }
const char* hipGetErrorString(int) { return "an error"; }
int hipStreamCreateWithFlags(Handle* stream, Flags) { return *stream = &current_device, kSuccess; }
int hipStreamIsCapturing(Handle, int* status) { return *status = 0, kSuccess; }
int hipStreamGetCaptureInfo_v2(Handle, int* status, uint64_t*, Handle*, const Handle**, size_t*) {
  return *status = 0, Return(kSuccess);
}
// CuPy refers to these, too.
#define NOTHING(name) \
  int name() { return kSuccess; }
#include "tests/support/fake_vendors/hip_nothing.inc"

// As AMD's, it returns another address than that of the exported function.
int hipGetProcAddress(const char* name, void** function, int, Flags64, int*) {
  static int (*const allocate)(CUdeviceptr*, size_t) = [](CUdeviceptr* ptr, size_t bytes) { return Make(ptr, bytes); };
  static int (*const free)(CUdeviceptr) = &End;
  *function = nullptr;
  if (std::strcmp(name, "hipMalloc") == 0) *function = reinterpret_cast<void*>(allocate);
  if (std::strcmp(name, "hipFree") == 0) *function = reinterpret_cast<void*>(free);
  return *function == nullptr ? kErrorNotFound : kSuccess;
}

}  // extern "C"
}  // namespace hbmprof::internal::hip_driver
