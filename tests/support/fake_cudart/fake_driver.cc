// The fake libcuda.so.1: the driver's functions that allocate and free, on the model of fake_cuda.cc; physical memory
// and its mappings, graphs, pools and modules, which have no address; and cuGetProcAddress. Like the real driver, it
// reuses the value of a released handle immediately.
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "src/backends/cuda/shared/driver_abi.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

namespace {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kHostMemoryAlreadyRegistered = 712;
constexpr int kHostMemoryNotRegistered = 713;
constexpr int kNotSupported = 801;
constexpr int kCaptureImplicit = 906;
constexpr size_t kGranularity = size_t{2} << 20;

constexpr unsigned Bit(fake_cuda_kind kind) { return 1u << kind; }

struct Physical {
  size_t bytes = 0;
  int device = -1;  // -1: takes nothing of a device
  int references = 0;
  int mappings = 0;
};

struct InGraph {
  size_t bytes = 0;
  int device = 0;
};

struct Graph {
  std::map<CUdeviceptr, InGraph> allocations;  // that it does not free itself
  std::set<CUdeviceptr> frees;                 // of allocations of other graphs
  std::map<int, size_t> passing;               // bytes that it allocates and frees itself, by device
};

struct Pool {
  fake_cuda_kind kind = FAKE_CUDA_STREAM_ORDERED;
  int device = 0;
  size_t limit = 0;  // of `used`; 0: none
  size_t used = 0;
  size_t most_used = 0;
  size_t cached = 0;
};

struct State {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Physical>> handles;
  std::map<CUdeviceptr, std::pair<size_t, std::shared_ptr<Physical>>> mappings;
  std::set<CUdeviceptr> readable;  // mappings with memory of the host
  CUdeviceptr next_reservation = CUdeviceptr{1} << 44;
  std::map<Handle, std::shared_ptr<Graph>> graphs;  // graphs and their instances
  std::map<CUdeviceptr, InGraph> launched;          // allocated by launches and not freed
  std::map<int, size_t> graphs_reserved;            // by device
  std::map<Handle, std::shared_ptr<Graph>> capturing;
  std::map<Handle, Pool> pools;
  std::map<CUdeviceptr, Handle> pool_of;
  std::map<Handle, std::pair<int, size_t>> modules;
  std::map<CUdeviceptr, int> openings;
};

State& TheState() {
  static auto* state = new State;
  return *state;
}

// Returns the smallest number that is not a handle, so released handles are reused immediately.
template <typename Map>
Handle NewHandle(const Map& map) {
  uintptr_t number = 0x100;
  while (map.count(reinterpret_cast<Handle>(number)) != 0) number += 16;
  return reinterpret_cast<Handle>(number);
}

CUresult Allocate(const char* name, CUdeviceptr* ptr, size_t bytes, fake_cuda_kind kind) {
  if (const int error = fake_cuda_enter(name)) return error;
  const int device = fake_cuda_current_device();
  if (device < 0) return kInvalidContext;
  if (ptr == nullptr || bytes == 0) return kInvalidValue;
  void* memory = nullptr;
  const int error = fake_cuda_allocate(device, bytes, kind, &memory);
  *ptr = reinterpret_cast<CUdeviceptr>(memory);
  return error;
}

CUresult AllocateHost(const char* name, void** ptr, size_t bytes) {
  CUdeviceptr address = 0;
  const CUresult result = Allocate(name, &address, bytes, FAKE_CUDA_HOST);
  if (result == kSuccess) *ptr = reinterpret_cast<void*>(address);
  return result;
}

CUresult Release(void* ptr, unsigned kinds) { return fake_cuda_release(ptr, kinds) != 0 ? kSuccess : kInvalidValue; }

Handle DefaultPool(int device) { return reinterpret_cast<Handle>(static_cast<uintptr_t>(0x10 + device)); }

Pool& PoolOf(State& state, Handle pool) {
  const auto number = reinterpret_cast<uintptr_t>(pool);
  Pool& found = state.pools[pool];
  if (number >= 0x10 && number < 0x50) found.device = static_cast<int>(number - 0x10);
  return found;
}

// Returns the graph that a capturing stream captures into.
std::shared_ptr<Graph> CapturedGraph(Handle stream) {
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.capturing.find(stream);
  return found == state.capturing.end() ? nullptr : found->second;
}

// A graph reserves addresses, which no other allocation gets. It takes memory when it is launched.
CUdeviceptr AllocateInGraph(Graph& graph, size_t bytes, int device) {
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const CUdeviceptr address = state.next_reservation;
  state.next_reservation += (bytes + kGranularity - 1) / kGranularity * kGranularity;
  graph.allocations[address] = {bytes, device};
  return address;
}

void FreeInGraph(Graph& graph, CUdeviceptr address) {
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto own = graph.allocations.find(address);
  if (own == graph.allocations.end()) {
    graph.frees.insert(address);
  } else {
    graph.passing[own->second.device] += own->second.bytes;
    graph.allocations.erase(own);
  }
}

size_t UsedByGraphs(const State& state, int device) {
  size_t used = 0;
  for (const auto& [address, memory] : state.launched) used += memory.device == device ? memory.bytes : 0;
  return used;
}

CUresult LaunchGraph(const char* name, Handle executable) {
  if (const int error = fake_cuda_enter(name)) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.graphs.find(executable);
  if (found == state.graphs.end()) return kInvalidValue;
  const Graph& graph = *found->second;
  for (const auto& [address, memory] : graph.allocations) {
    if (state.launched.count(address) != 0) return kInvalidValue;  // still allocated by an earlier launch
  }
  for (const CUdeviceptr address : graph.frees) {
    if (state.launched.erase(address) == 0) return kInvalidValue;
  }
  state.launched.insert(graph.allocations.begin(), graph.allocations.end());
  for (int device = 0; device < fake_cuda_device_count(); ++device) {
    const auto passing = graph.passing.find(device);
    const size_t needed = UsedByGraphs(state, device) + (passing == graph.passing.end() ? 0 : passing->second);
    size_t& reserved = state.graphs_reserved[device];
    if (needed <= reserved) continue;
    if (fake_cuda_take(device, needed - reserved) != 0) return kOutOfMemory;
    reserved = needed;
  }
  return kSuccess;
}

CUresult AllocateFromPool(const char* name, CUdeviceptr* ptr, size_t bytes, Handle pool, Handle stream) {
  if (const int error = fake_cuda_ready()) return error;
  if (const std::shared_ptr<Graph> graph = CapturedGraph(stream)) {
    if (const int error = fake_cuda_enter(name)) return error;
    *ptr = AllocateInGraph(*graph, bytes, fake_cuda_current_device());
    return kSuccess;
  }
  State& state = TheState();
  // Memory that the pool has kept is used first.
  int device = 0;
  fake_cuda_kind kind = FAKE_CUDA_STREAM_ORDERED;
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    Pool& from = PoolOf(state, pool);
    if (from.limit != 0 && from.used + bytes > from.limit) return kOutOfMemory;
    device = from.device;
    kind = from.kind;
    const size_t reused = from.cached < bytes ? from.cached : bytes;
    from.cached -= reused;
    fake_cuda_give(device, reused);
  }
  if (const int error = fake_cuda_enter(name)) return error;
  if (ptr == nullptr || bytes == 0) return kInvalidValue;
  void* memory = nullptr;
  if (const int error = fake_cuda_allocate(device, bytes, kind, &memory)) return error;
  *ptr = reinterpret_cast<CUdeviceptr>(memory);
  std::lock_guard<std::mutex> lock(state.mutex);
  Pool& from = PoolOf(state, pool);
  from.used += bytes;
  from.most_used = std::max(from.most_used, from.used);
  state.pool_of[*ptr] = pool;
  return kSuccess;
}

// The device of a location, as the driver reads it: in a locality domain, the id has the device and the domain.
int DeviceOf(const MemLocation& location) {
  if (location.type == 6) return location.id % 256;
  return location.type == kLocationDevice ? location.id : -1;
}

// FAKE_CUDA_POOL_KEEPS=1: a pool keeps freed memory, as with a release threshold.
bool PoolsKeep() {
  static const bool keep = getenv("FAKE_CUDA_POOL_KEEPS") != nullptr;
  return keep;
}

void ReturnToPool(CUdeviceptr ptr, size_t bytes) {
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.pool_of.find(ptr);
  if (found == state.pool_of.end()) return;
  Pool& pool = PoolOf(state, found->second);
  state.pool_of.erase(found);
  pool.used -= bytes;
  if (pool.kind == FAKE_CUDA_STREAM_ORDERED && PoolsKeep() && fake_cuda_take(pool.device, bytes) == 0)
    pool.cached += bytes;
}

CUresult Free(CUdeviceptr ptr, unsigned kinds) {
  {
    State& state = TheState();
    std::lock_guard<std::mutex> lock(state.mutex);
    if (state.launched.erase(ptr) != 0) return kSuccess;
  }
  fake_cuda_block block;
  const bool is_block = fake_cuda_find(reinterpret_cast<void*>(ptr), &block) != 0 && block.base == ptr;
  if (!is_block || (kinds & Bit(block.kind)) == 0) return kInvalidValue;
  // Before the address can be reused.
  ReturnToPool(ptr, block.bytes);
  return Release(reinterpret_cast<void*>(ptr), kinds);
}

constexpr unsigned kLinear =
    1u << FAKE_CUDA_DEVICE | 1u << FAKE_CUDA_MANAGED | 1u << FAKE_CUDA_STREAM_ORDERED | 1u << FAKE_CUDA_IMPORTED;

// Texels have at most 16 bytes; all sizes here are for 16.
CUresult CreateArray(const char* name, Handle* array, size_t texels) {
  CUdeviceptr address = 0;
  const CUresult result = Allocate(name, &address, texels * 16, FAKE_CUDA_DEVICE);
  if (result == kSuccess) *array = reinterpret_cast<Handle>(address);
  return result;
}

size_t AtLeastOne(size_t n) { return n == 0 ? 1 : n; }

void EndIfUnused(const Physical& memory) {
  if (memory.references == 0 && memory.mappings == 0 && memory.device >= 0) fake_cuda_give(memory.device, memory.bytes);
}

CUmemGenericAllocationHandle NewPhysical(State& state, size_t bytes, int device) {
  auto memory = std::make_shared<Physical>();
  memory->bytes = bytes;
  memory->device = device;
  memory->references = 1;
  CUmemGenericAllocationHandle handle = 1;
  while (state.handles.count(handle) != 0) ++handle;
  state.handles[handle] = std::move(memory);
  return handle;
}

CUresult LoadModule(const char* name, Handle* module) {
  if (const int error = fake_cuda_enter(name)) return error;
  const int device = fake_cuda_current_device();
  if (device < 0) return kInvalidContext;
  if (fake_cuda_take(device, kGranularity) != 0) return kOutOfMemory;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  *module = NewHandle(state.modules);
  state.modules[*module] = {device, kGranularity};
  return kSuccess;
}

CUresult UnloadModule(const char* name, Handle module) {
  if (const int error = fake_cuda_enter(name)) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.modules.find(module);
  if (found == state.modules.end()) return kInvalidHandle;
  fake_cuda_give(found->second.first, found->second.second);
  state.modules.erase(found);
  return kSuccess;
}

}  // namespace

extern "C" {

// A variant of a later driver, with other arguments.
CUresult cuMemAlloc_v99(CUdeviceptr* ptr, Flags64, size_t bytes);
CUresult cuMemAlloc_v99(CUdeviceptr* ptr, Flags64, size_t bytes) {
  return Allocate("cuMemAlloc_v99", ptr, bytes, FAKE_CUDA_DEVICE);
}
CUresult cuMemAlloc_v2(CUdeviceptr* ptr, size_t bytes) {
  // As a driver that reads a file.
  static const bool can_be_cancelled = getenv("FAKE_CUDA_CANCELS") != nullptr;
  if (can_be_cancelled) pthread_testcancel();
  return Allocate("cuMemAlloc_v2", ptr, bytes, FAKE_CUDA_DEVICE);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height, unsigned) {
  *pitch = (width + 511) / 512 * 512;
  return Allocate("cuMemAllocPitch_v2", ptr, *pitch * height, FAKE_CUDA_DEVICE);
}

CUresult cuMemAllocManaged(CUdeviceptr* ptr, size_t bytes, unsigned) {
  return Allocate("cuMemAllocManaged", ptr, bytes, FAKE_CUDA_MANAGED);
}

CUresult cuMemFree_v2(CUdeviceptr ptr) {
  if (const int error = fake_cuda_enter("cuMemFree_v2")) return error;
  return ptr == 0 ? kSuccess : Free(ptr, kLinear);
}

CUresult cuMemAllocHost_v2(void** ptr, size_t bytes) { return AllocateHost("cuMemAllocHost_v2", ptr, bytes); }
CUresult cuMemHostAlloc(void** ptr, size_t bytes, unsigned) { return AllocateHost("cuMemHostAlloc", ptr, bytes); }

CUresult cuMemFreeHost(void* ptr) {
  if (const int error = fake_cuda_enter("cuMemFreeHost")) return error;
  return Release(ptr, Bit(FAKE_CUDA_HOST));
}

CUresult cuMemHostRegister_v2(void* ptr, size_t bytes, unsigned) {
  if (const int error = fake_cuda_enter("cuMemHostRegister_v2")) return error;
  const bool is_new = fake_cuda_adopt(fake_cuda_current_device(), ptr, bytes, FAKE_CUDA_REGISTERED) != 0;
  return is_new ? kSuccess : kHostMemoryAlreadyRegistered;
}

CUresult cuMemHostUnregister(void* ptr) {
  if (const int error = fake_cuda_enter("cuMemHostUnregister")) return error;
  return fake_cuda_release(ptr, Bit(FAKE_CUDA_REGISTERED)) != 0 ? kSuccess : kHostMemoryNotRegistered;
}

CUresult cuDeviceGetDefaultMemPool(Handle* pool, CUdevice device) {
  if (const int error = fake_cuda_ready()) return error;
  if (!fake_cuda_has_pools()) return fake_cuda_result("cuDeviceGetDefaultMemPool", kNotSupported);
  *pool = DefaultPool(device);
  return kSuccess;
}

CUresult cuMemAllocAsync(CUdeviceptr* ptr, size_t bytes, Handle stream) {
  return AllocateFromPool("cuMemAllocAsync", ptr, bytes, DefaultPool(fake_cuda_current_device()), stream);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* ptr, size_t bytes, Handle stream) {
  return AllocateFromPool("cuMemAllocAsync_ptsz", ptr, bytes, DefaultPool(fake_cuda_current_device()), stream);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, Handle pool, Handle stream) {
  return AllocateFromPool("cuMemAllocFromPoolAsync", ptr, bytes, pool, stream);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* ptr, size_t bytes, Handle pool, Handle stream) {
  return AllocateFromPool("cuMemAllocFromPoolAsync_ptsz", ptr, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, Handle stream) {
  if (const int error = fake_cuda_enter("cuMemFreeAsync")) return error;
  if (const std::shared_ptr<Graph> graph = CapturedGraph(stream)) {
    FreeInGraph(*graph, ptr);
    return kSuccess;
  }
  return Free(ptr, kLinear | Bit(FAKE_CUDA_HOST));
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, Handle stream) { return cuMemFreeAsync(ptr, stream); }

CUresult cuMemPoolCreate(Handle* pool, const MemPoolProps* properties) {
  if (const int error = fake_cuda_enter("cuMemPoolCreate")) return error;
  if (properties == nullptr) return kInvalidValue;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  *pool = NewHandle(state.pools);
  Pool& made = state.pools[*pool];
  made.device = std::max(DeviceOf(properties->location), 0);
  made.limit = properties->max_size;
  constexpr int kManagedType = 2;
  if (properties->type == kManagedType) {
    made.kind = FAKE_CUDA_MANAGED;
  } else if (DeviceOf(properties->location) < 0) {
    made.kind = FAKE_CUDA_HOST;
  }
  return kSuccess;
}

CUresult cuMemPoolDestroy(Handle pool) {
  // Takes no lock for this handle, so that a forked child can make the call.
  if (pool == reinterpret_cast<Handle>(FAKE_CUDA_NO_POOL)) return kInvalidValue;
  if (const int error = fake_cuda_enter("cuMemPoolDestroy")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.pools.find(pool);
  if (found == state.pools.end()) return kInvalidValue;
  fake_cuda_give(found->second.device, found->second.cached);
  state.pools.erase(found);
  return kSuccess;
}

CUresult cuMemPoolTrimTo(Handle pool, size_t) {
  if (const int error = fake_cuda_ready()) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  Pool& trimmed = PoolOf(state, pool);
  fake_cuda_give(trimmed.device, trimmed.cached);
  trimmed.cached = 0;
  return kSuccess;
}

CUresult cuMemPoolGetAttribute(Handle pool, int attribute, void* value) {
  if (const int error = fake_cuda_ready()) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  constexpr int kPoolUsedHigh = 8;
  const Pool& asked = PoolOf(state, pool);
  *static_cast<uint64_t*>(value) = attribute == kPoolUsedHigh          ? asked.most_used
                                   : attribute == kPoolReservedCurrent ? asked.used + asked.cached
                                                                       : asked.used;
  return kSuccess;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* ptr, Handle, void*) {
  return Allocate("cuMemPoolImportPointer", ptr, 4096, FAKE_CUDA_IMPORTED);
}

// The block with this address, which may be mapped physical memory.
static bool FindBlock(CUdeviceptr ptr, fake_cuda_block* block) {
  if (fake_cuda_find(reinterpret_cast<void*>(ptr), block) != 0) return true;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  auto mapping = state.mappings.upper_bound(ptr);
  if (mapping == state.mappings.begin()) return false;
  --mapping;
  const auto& [bytes, memory] = mapping->second;
  if (ptr >= mapping->first + bytes) return false;
  const int device = std::max(memory->device, 0);
  *block = {static_cast<uintptr_t>(mapping->first), bytes, device, FAKE_CUDA_DEVICE,
            static_cast<uintptr_t>(device) + 1};
  return true;
}

CUresult cuPointerGetAttribute(void* answer, int attribute, CUdeviceptr ptr) {
  constexpr int kContext = 1, kDevicePointer = 3, kHostPointer = 4, kBufferId = 7, kRangeStart = 11, kRangeSize = 12;
  if (const int error = fake_cuda_enter("cuPointerGetAttribute")) return error;
  fake_cuda_block block;
  if (!FindBlock(ptr, &block)) return fake_cuda_result("cuPointerGetAttribute", kInvalidValue);
  switch (attribute) {
    case kPointerDeviceOrdinal:
      *static_cast<int*>(answer) = block.device;
      return kSuccess;
    case kPointerIsManaged:
      *static_cast<int*>(answer) = block.kind == FAKE_CUDA_MANAGED;
      return kSuccess;
    case kPointerMemoryType:
      *static_cast<unsigned*>(answer) = block.kind == FAKE_CUDA_HOST ? kMemoryTypeHost : 2;
      return kSuccess;
    case kContext:
      *static_cast<uintptr_t*>(answer) = block.context;
      return kSuccess;
    case kDevicePointer:
    case kHostPointer:
      *static_cast<CUdeviceptr*>(answer) = ptr;
      return kSuccess;
    case kBufferId:
    case kRangeStart:
      *static_cast<CUdeviceptr*>(answer) = block.base;
      return kSuccess;
    case kRangeSize:
      *static_cast<size_t*>(answer) = block.bytes;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

// --- Physical memory. ---

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t bytes, size_t, CUdeviceptr, Flags64) {
  if (const int error = fake_cuda_ready()) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  *ptr = state.next_reservation;
  state.next_reservation += (bytes + kGranularity - 1) / kGranularity * kGranularity;
  return kSuccess;
}

CUresult cuMemAddressFree(CUdeviceptr, size_t) { return fake_cuda_ready(); }
CUresult cuMemSetAccess(CUdeviceptr, size_t, const void*, size_t) { return fake_cuda_ready(); }

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const MemAllocationProp* properties, Flags64) {
  if (const int error = fake_cuda_enter("cuMemCreate")) return error;
  if (handle == nullptr || properties == nullptr || bytes % kGranularity != 0) return kInvalidValue;
  const int device = DeviceOf(properties->location);
  if (device >= 0 && fake_cuda_take(device, bytes) != 0) return kOutOfMemory;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  *handle = NewPhysical(state, bytes, device);
  return kSuccess;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void*, int) {
  if (const int error = fake_cuda_enter("cuMemImportFromShareableHandle")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  *handle = NewPhysical(state, 0, -1);
  return kSuccess;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const void*) {
  if (const int error = fake_cuda_enter("cuMulticastCreate")) return error;
  return cuMemImportFromShareableHandle(handle, nullptr, 0);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (const int error = fake_cuda_enter("cuMemRelease")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.handles.find(handle);
  if (found == state.handles.end()) return kInvalidValue;
  const std::shared_ptr<Physical> memory = found->second;
  if (--memory->references == 0) state.handles.erase(found);
  EndIfUnused(*memory);
  return kSuccess;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  if (const int error = fake_cuda_enter("cuMemRetainAllocationHandle")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  auto mapping = state.mappings.upper_bound(reinterpret_cast<CUdeviceptr>(address));
  if (mapping == state.mappings.begin()) return kInvalidValue;
  --mapping;
  const std::shared_ptr<Physical> memory = mapping->second.second;
  for (const auto& [known, named] : state.handles) {
    if (named != memory) continue;
    *handle = known;
    ++memory->references;
    return kSuccess;
  }
  *handle = NewPhysical(state, 0, -1);
  state.handles[*handle] = memory;
  ++memory->references;
  return kSuccess;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle, Flags64) {
  if (const int error = fake_cuda_enter("cuMemMap")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.handles.find(handle);
  if (found == state.handles.end() || state.mappings.count(address) != 0) return kInvalidValue;
  ++found->second->mappings;
  state.mappings[address] = {bytes, found->second};
  // Readable if the address is free: a sanitizer may have it.
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  if (mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) != MAP_FAILED) {
    state.readable.insert(address);
  }
  return kSuccess;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  if (const int error = fake_cuda_enter("cuMemUnmap")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  for (auto mapping = state.mappings.lower_bound(address);
       mapping != state.mappings.end() && mapping->first < address + bytes; mapping = state.mappings.erase(mapping)) {
    --mapping->second.second->mappings;
    EndIfUnused(*mapping->second.second);
    if (state.readable.erase(mapping->first) != 0) {
      munmap(reinterpret_cast<void*>(mapping->first), mapping->second.first);
    }
  }
  return kSuccess;
}

// --- Arrays. ---

CUresult cuArrayCreate_v2(Handle* array, const ArrayDescriptor* d) {
  return CreateArray("cuArrayCreate_v2", array, d->width * AtLeastOne(d->height));
}
CUresult cuArray3DCreate_v2(Handle* array, const Array3dDescriptor* d) {
  return CreateArray("cuArray3DCreate_v2", array, d->width * AtLeastOne(d->height) * AtLeastOne(d->depth));
}
CUresult cuMipmappedArrayCreate(Handle* array, const Array3dDescriptor* d, unsigned) {
  return CreateArray("cuMipmappedArrayCreate", array, 2 * d->width * AtLeastOne(d->height) * AtLeastOne(d->depth));
}
CUresult cuArrayDestroy(Handle array) {
  if (array == nullptr && fake_cuda_init_was_called() != 0) return kInvalidHandle;
  if (const int error = fake_cuda_enter("cuArrayDestroy")) return error;
  return Release(array, Bit(FAKE_CUDA_DEVICE));
}
CUresult cuMipmappedArrayDestroy(Handle array) {
  if (array == nullptr && fake_cuda_init_was_called() != 0) return kInvalidHandle;
  if (const int error = fake_cuda_enter("cuMipmappedArrayDestroy")) return error;
  return Release(array, Bit(FAKE_CUDA_DEVICE));
}

// --- Other processes. A handle contains an address of this process, because there is only one here. ---

CUresult cuIpcGetMemHandle(IpcMemHandle* handle, CUdeviceptr ptr) {
  if (const int error = fake_cuda_ready()) return error;
  std::memcpy(handle->reserved, &ptr, sizeof(ptr));
  return kSuccess;
}

// Opened memory has an address after that of the original memory; opened again, it has the same address.
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* ptr, IpcMemHandle handle, unsigned) {
  if (const int error = fake_cuda_enter("cuIpcOpenMemHandle_v2")) return error;
  CUdeviceptr exported = 0;
  std::memcpy(&exported, handle.reserved, sizeof(exported));
  fake_cuda_block block;
  if (fake_cuda_find(reinterpret_cast<void*>(exported), &block) == 0) return kInvalidValue;
  *ptr = exported + (CUdeviceptr{1} << 50);
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (++state.openings[*ptr] == 1) {
    // The model gets a block at this address. Nothing reads or writes its memory.
    fake_cuda_adopt(block.device, reinterpret_cast<void*>(*ptr), block.bytes, FAKE_CUDA_REGISTERED);
  }
  return kSuccess;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
  if (const int error = fake_cuda_enter("cuIpcCloseMemHandle")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.openings.find(ptr);
  if (found == state.openings.end()) return kInvalidValue;
  if (--found->second > 0) return kSuccess;
  state.openings.erase(found);
  return Release(reinterpret_cast<void*>(ptr), Bit(FAKE_CUDA_REGISTERED));
}

CUresult cuImportExternalMemory(Handle* memory, const ExternalMemoryHandleDesc*) {
  CUdeviceptr address = 0;
  const CUresult result = Allocate("cuImportExternalMemory", &address, 16, FAKE_CUDA_IMPORTED);
  if (result == kSuccess) *memory = reinterpret_cast<Handle>(address);
  return result;
}
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* ptr, Handle, const void*) {
  return Allocate("cuExternalMemoryGetMappedBuffer", ptr, 16, FAKE_CUDA_IMPORTED);
}
CUresult cuDestroyExternalMemory(Handle memory) {
  if (const int error = fake_cuda_enter("cuDestroyExternalMemory")) return error;
  return Release(memory, Bit(FAKE_CUDA_IMPORTED));
}

// --- Graphs and streams. A stream is any number. ---

CUresult cuGraphCreate(Handle* graph, unsigned) {
  if (const int error = fake_cuda_enter("cuGraphCreate")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  *graph = NewHandle(state.graphs);
  state.graphs[*graph] = std::make_shared<Graph>();
  return kSuccess;
}

static std::shared_ptr<Graph> FindGraph(Handle graph) {
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.graphs.find(graph);
  return found == state.graphs.end() ? nullptr : found->second;
}

CUresult cuGraphAddMemAllocNode(Handle* node, Handle graph, const Handle*, size_t, MemAllocNodeParams* params) {
  if (const int error = fake_cuda_enter("cuGraphAddMemAllocNode")) return error;
  const std::shared_ptr<Graph> found = FindGraph(graph);
  if (found == nullptr || params == nullptr) return kInvalidValue;
  params->address = AllocateInGraph(*found, params->bytes, params->pool.location.id);
  *node = reinterpret_cast<Handle>(params->address);
  return kSuccess;
}

CUresult cuGraphAddMemFreeNode(Handle* node, Handle graph, const Handle*, size_t, CUdeviceptr ptr) {
  if (const int error = fake_cuda_enter("cuGraphAddMemFreeNode")) return error;
  const std::shared_ptr<Graph> found = FindGraph(graph);
  if (found == nullptr) return kInvalidValue;
  FreeInGraph(*found, ptr);
  *node = reinterpret_cast<Handle>(ptr + 1);
  return kSuccess;
}

CUresult cuGraphAddNode_v2(Handle* node, Handle graph, const Handle* dependencies, const void*, size_t count,
                           GraphNodeParams* params) {
  if (const int error = fake_cuda_enter("cuGraphAddNode_v2")) return error;
  if (params->type == kGraphNodeMemAlloc) {
    return cuGraphAddMemAllocNode(node, graph, dependencies, count, &params->alloc);
  }
  return params->type == kGraphNodeMemFree ? cuGraphAddMemFreeNode(node, graph, dependencies, count, params->freed)
                                           : kInvalidValue;
}

CUresult cuGraphAddNode_v3(Handle* node, Handle graph, const Handle* dependencies, const void* edges, size_t count,
                           GraphNodeParams* params) {
  if (const int error = fake_cuda_enter("cuGraphAddNode_v3")) return error;
  return cuGraphAddNode_v2(node, graph, dependencies, edges, count, params);
}

static CUresult Instantiate(const char* name, Handle* executable, Handle graph) {
  if (const int error = fake_cuda_enter(name)) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.graphs.find(graph);
  if (found == state.graphs.end()) return kInvalidValue;
  *executable = NewHandle(state.graphs);
  state.graphs[*executable] = std::make_shared<Graph>(*found->second);
  return kSuccess;
}
CUresult cuGraphInstantiate_v2(Handle* executable, Handle graph, Handle*, char*, size_t) {
  return Instantiate("cuGraphInstantiate_v2", executable, graph);
}
CUresult cuGraphInstantiateWithFlags(Handle* executable, Handle graph, Flags64) {
  return Instantiate("cuGraphInstantiateWithFlags", executable, graph);
}

CUresult cuGraphLaunch(Handle executable, Handle) { return LaunchGraph("cuGraphLaunch", executable); }
CUresult cuGraphLaunch_ptsz(Handle executable, Handle) { return LaunchGraph("cuGraphLaunch_ptsz", executable); }

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void* value) {
  if (const int error = fake_cuda_ready()) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  *static_cast<uint64_t*>(value) =
      attribute == kGraphsReservedCurrent ? state.graphs_reserved[device] : UsedByGraphs(state, device);
  return kSuccess;
}

static CUresult DestroyGraph(const char* name, Handle graph) {
  if (const int error = fake_cuda_enter(name)) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.graphs.erase(graph) != 0 ? kSuccess : kInvalidValue;
}
CUresult cuGraphDestroy(Handle graph) { return DestroyGraph("cuGraphDestroy", graph); }
CUresult cuGraphExecDestroy(Handle graph) { return DestroyGraph("cuGraphExecDestroy", graph); }

CUresult cuStreamBeginCapture_v2(Handle stream, int) {
  if (const int error = fake_cuda_enter("cuStreamBeginCapture_v2")) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const Handle graph = NewHandle(state.graphs);
  state.graphs[graph] = std::make_shared<Graph>();
  state.capturing[stream] = state.graphs[graph];
  return kSuccess;
}

CUresult cuStreamBeginCapture_v2_ptsz(Handle stream, int mode) { return cuStreamBeginCapture_v2(stream, mode); }

int fake_cuda_is_legacy_stream_blocked(void) {
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto is_blocking = [](const auto& stream) { return fake_cuda_is_blocking(stream.first) != 0; };
  return std::any_of(state.capturing.begin(), state.capturing.end(), is_blocking) ? 1 : 0;
}

static CUresult CaptureInfo(Handle stream, int* status, Handle* graph) {
  if (const int error = fake_cuda_ready()) return error;
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.capturing.find(stream);
  *status = found == state.capturing.end() ? 0 : kCaptureActive;
  if (*status == 0 || graph == nullptr) return kSuccess;
  for (const auto& [handle, known] : state.graphs) {
    if (known == found->second) *graph = handle;
  }
  return kSuccess;
}

int fake_cuda_is_capturing(void* stream) { return CapturedGraph(stream) != nullptr ? 1 : 0; }

// The number of a capture is that of its graph. A graph has one node, on which the next one depends.
CUresult cuStreamGetCaptureInfo_v2(Handle stream, int* status, uint64_t* id, Handle* graph, const Handle** nodes,
                                   size_t* count) {
  static const Handle kNode = reinterpret_cast<Handle>(uintptr_t{0x10});
  if (const int error = fake_cuda_enter("cuStreamGetCaptureInfo_v2")) return error;
  if (stream == nullptr && fake_cuda_is_legacy_stream_blocked() != 0)
    return fake_cuda_result("cuStreamGetCaptureInfo_v2", kCaptureImplicit);
  Handle found = nullptr;
  const CUresult result = CaptureInfo(stream, status, &found);
  if (id != nullptr) *id = reinterpret_cast<uintptr_t>(found);
  if (graph != nullptr) *graph = found;
  if (nodes != nullptr) *nodes = &kNode;
  if (count != nullptr) *count = found == nullptr ? 0 : 1;
  return result;
}
CUresult cuStreamGetCaptureInfo_v2_ptsz(Handle stream, int* status, uint64_t*, Handle* graph, const Handle**, size_t*) {
  if (const int error = fake_cuda_enter("cuStreamGetCaptureInfo_v2_ptsz")) return error;
  return CaptureInfo(stream, status, graph);
}

CUresult cuStreamEndCapture(Handle stream, Handle* graph) {
  if (const int error = fake_cuda_ready()) return error;
  int status = 0;
  CaptureInfo(stream, &status, graph);
  State& state = TheState();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.capturing.erase(stream) != 0 ? kSuccess : kInvalidValue;
}

// --- The part of the run that a profiler looks at. ---

CUresult cuProfilerStart() {
  if (const int error = fake_cuda_ready()) return error;
  return fake_cuda_current_device() < 0 ? kInvalidContext : kSuccess;
}
CUresult cuProfilerStop() { return cuProfilerStart(); }

// --- Code. Each module takes 2 MiB. ---

CUresult cuModuleLoadData(Handle* module, const void*) { return LoadModule("cuModuleLoadData", module); }
CUresult cuModuleUnload(Handle module) { return UnloadModule("cuModuleUnload", module); }
CUresult cuLibraryLoadData(Handle* library, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
  if (code == nullptr) return kInvalidValue;
  return LoadModule("cuLibraryLoadData", library);
}
CUresult cuLibraryUnload(Handle library) {
  return library == nullptr ? kInvalidHandle : UnloadModule("cuLibraryUnload", library);
}

// --- Functions that programs look up, but rarely call. ---

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == kOutOfMemory ? "out of memory" : "an error";
  return kSuccess;
}
CUresult cuMemGetAllocationGranularity(size_t* bytes, const MemAllocationProp*, int) {
  if (const int error = fake_cuda_ready()) return error;
  *bytes = kGranularity;
  return kSuccess;
}
CUresult cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle, int, Flags64) { return kInvalidValue; }
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) { return kInvalidValue; }
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t,
                            Flags64) {
  return kInvalidValue;
}

// --- How the runtime finds all this. ---

CUresult cuGetProcAddress(const char* name, void** function, int version, Flags64 flags);
CUresult cuGetProcAddress_v2(const char* name, void** function, int version, Flags64 flags, int* status);
}

namespace {

struct Entry {
  const char* name;
  int version;
  bool per_thread;
  void* function;
};

#include "fake_cuda_table.inc"

// Finds a function as the real drivers do (tests/inject/driver_facts.txt). If a name has per-thread functions, only
// these are found with kPerThreadDefaultStream.
CUresult Find(const char* name, void** function, int version, Flags64 flags, int* status) {
  const auto is_named = [name](const Entry& entry) { return std::strcmp(entry.name, name) == 0; };
  const bool per_thread = (flags & kPerThreadDefaultStream) != 0 &&
                          std::any_of(std::begin(kEntries), std::end(kEntries),
                                      [&](const Entry& entry) { return is_named(entry) && entry.per_thread; });
  const Entry* best = nullptr;
  *status = 1;  // the name is not known
  for (const Entry& entry : kEntries) {
    if (!is_named(entry)) continue;
    if (best == nullptr) *status = 2;  // not known to this version
    if (entry.per_thread != per_thread || entry.version > version) continue;
    if (best != nullptr && entry.version < best->version) continue;
    best = &entry;
    *status = 0;
  }
  if (best == nullptr) return kErrorNotFound;
  *function = best->function;
  return kSuccess;
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress(const char* name, void** function, int version, Flags64 flags) {
  int status = 0;
  return Find(name, function, version, flags, &status);
}

// Gives null and a status for a name that is not found.
CUresult cuGetProcAddress_v2(const char* name, void** function, int version, Flags64 flags, int* status) {
  int ignored = 0;
  *function = nullptr;
  Find(name, function, version, flags, status == nullptr ? &ignored : status);
  return kSuccess;
}
}
