// A wrapped call makes the next layer's call once, with unchanged arguments, and returns its result. A record is made
// after a call that allocates, and ends before one that frees. The driver says when an object ends, by the destructor
// callback: sub-buffers and commands hold it, too.
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include "src/backends/opencl/layer.h"

#include <CL/cl_ext.h>
#include <CL/cl_layer.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "src/base/try_run.h"

namespace hbmprof::internal {
namespace {

// The functions of the next layer. If a process has several loaders, the newest one has set them; they work on the
// objects of all loaders.
std::atomic<const cl_icd_dispatch*> next_layer{nullptr};
const cl_icd_dispatch& Next() { return *next_layer.load(std::memory_order_acquire); }

// Returns what an object answers; zero if it does not.
template <typename Value, typename Object>
Value Ask(cl_int (*query)(Object, cl_uint, size_t, void*, size_t*), Object object, cl_uint what) {
  Value value = {};
  return query(object, what, sizeof(value), &value, nullptr) == CL_SUCCESS ? value : Value();
}

cl_device_id DeviceOf(cl_context context) {
  cl_device_id devices[64] = {};
  Next().clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof(devices), devices, nullptr);
  return devices[0];
}
cl_device_id DeviceOf(cl_mem mem) { return DeviceOf(Ask<cl_context>(Next().clGetMemObjectInfo, mem, CL_MEM_CONTEXT)); }

struct KnownDevice {
  explicit KnownDevice(cl_device_id id) : device(id) {
    const auto platform = Ask<cl_platform_id>(Next().clGetDeviceInfo, device, CL_DEVICE_PLATFORM);
    cl_platform_id platforms[64] = {};
    cl_device_id devices[64] = {};
    Next().clGetPlatformIDs(std::size(platforms), platforms, nullptr);
    Next().clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, std::size(devices), devices, nullptr);
    const auto at_platform = std::find(std::begin(platforms), std::end(platforms), platform) - std::begin(platforms);
    const auto at_device = std::find(std::begin(devices), std::end(devices), device) - std::begin(devices);
    if (platform == nullptr || device == nullptr || at_platform == 64 || at_device == 64) return;
    name = "OpenCL:" + std::to_string(at_platform) + ":" + std::to_string(at_device);
    probe.bytes_limit = static_cast<int64_t>(Ask<cl_ulong>(Next().clGetDeviceInfo, device, CL_DEVICE_GLOBAL_MEM_SIZE));
    shares_host_memory = Ask<cl_bool>(Next().clGetDeviceInfo, device, CL_DEVICE_HOST_UNIFIED_MEMORY) != CL_FALSE;
  }

  const cl_device_id device;
  std::string name = "unknown";
  DeviceProbe probe;
  bool shares_host_memory = false;
  DeviceId id = {};
};

// Returns the entry of the device, or of that of which it is a part. Those that find no place share the last entry.
const KnownDevice& Known(Profiler& profiler, cl_device_id device) {
  static std::atomic<const KnownDevice*> entries[kMaxDevices] = {};
  while (const auto whole = Ask<cl_device_id>(Next().clGetDeviceInfo, device, CL_DEVICE_PARENT_DEVICE)) device = whole;
  const KnownDevice* known = nullptr;
  for (std::atomic<const KnownDevice*>& entry : entries) {
    known = entry.load(std::memory_order_acquire);
    if (known == nullptr) {
      auto made = std::make_unique<KnownDevice>(device);
      made->id = profiler.Device(made->name);
      profiler.SetDeviceProbe(made->id, [probe = made->probe] { return probe; });
      if (entry.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) known = made.release();
    }
    if (known->device == device) break;
  }
  return *known;
}

Profiler* Recorder() {
  auto* const get = opencl_profiler.load(std::memory_order_acquire);
  return get == nullptr ? nullptr : get();
}

BufferId IdOf(cl_mem mem) { return BufferId::Handle(NameSpace::kOpenclMem, reinterpret_cast<uintptr_t>(mem)); }

void Destroyed(cl_mem mem, void*) {
  if (Profiler* const profiler = Recorder()) profiler->RecordFree(IdOf(mem));
}

void RecordObject(Profiler& profiler, const Caller& caller, cl_mem mem, const KnownDevice& device) {
  auto* const query = Next().clGetMemObjectInfo;
  const auto bytes = Ask<size_t>(query, mem, CL_MEM_SIZE);
  const auto flags = Ask<cl_mem_flags>(query, mem, CL_MEM_FLAGS);
  const auto type = Ask<cl_mem_object_type>(query, mem, CL_MEM_TYPE);
  const bool is_programs_memory = (flags & CL_MEM_USE_HOST_PTR) != 0 &&
                                  (device.shares_host_memory || Ask<cl_bool>(query, mem, CL_MEM_USES_SVM_POINTER) != 0);
  MemoryKind kind = (flags & CL_MEM_ALLOC_HOST_PTR) != 0 ? MemoryKind::kPinnedHost : MemoryKind::kDevice;
  if (type != CL_MEM_OBJECT_BUFFER && type != CL_MEM_OBJECT_PIPE) kind = MemoryKind::kArray;
  if (is_programs_memory || Ask<cl_mem>(query, mem, CL_MEM_ASSOCIATED_MEMOBJECT) != nullptr) kind = MemoryKind::kAlias;
  // First the callback: without it, the record would never end.
  const cl_int error = Next().clSetMemObjectDestructorCallback(mem, &Destroyed, nullptr);
  if (error != CL_SUCCESS) return profiler.RecordDropped(bytes);
  profiler.RecordAllocFrom(caller, IdOf(mem), bytes, {device.id, kind});
}

// A row of calls.inc. `slot`: the place in the dispatch table; -1: an extension, of which each platform has its own.
// `last`: that which a program got last, for calls that name no context of a platform.
template <typename Function>
struct Call {
  template <typename Owner>
  Function Find(Owner owner) const {
    if (slot >= 0) return reinterpret_cast<Function>(reinterpret_cast<void* const*>(&Next())[slot]);
    const auto platform = Ask<cl_platform_id>(Next().clGetDeviceInfo, DeviceOf(owner), CL_DEVICE_PLATFORM);
    void* const found = platform == nullptr ? nullptr : Next().clGetExtensionFunctionAddressForPlatform(platform, name);
    return reinterpret_cast<Function>(found != nullptr ? found : last.load(std::memory_order_acquire));
  }

  const char* name;
  int slot;
  std::atomic<void*> last{nullptr};
  Function type = nullptr;
};

template <auto& call, typename Function, int bytes_at, int device_at, MemoryKind kind>
struct Allocates;
template <auto& call, typename Result, typename... Arguments, int bytes_at, int device_at, MemoryKind kind>
struct Allocates<call, Result (*)(Arguments...), bytes_at, device_at, kind> {
  [[gnu::noinline]] static Result Wrapper(Arguments... arguments) {
    const Caller caller = Caller::OfThisFunction();
    const std::tuple<Arguments...> all(arguments...);
    const Result made = call.Find(std::get<0>(all))(arguments...);
    [[maybe_unused]] const auto last = std::get<sizeof...(Arguments) - 1>(all);
    cl_int error = CL_SUCCESS;
    if constexpr (std::is_same_v<decltype(last), cl_int* const>) error = last != nullptr ? *last : CL_SUCCESS;
    const bool is_full = error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_RESOURCES;
    Profiler* const profiler = made != nullptr || is_full ? Recorder() : nullptr;
    if (profiler == nullptr) return made;
    std::optional<size_t> bytes;
    if constexpr (bytes_at >= 0) bytes = std::get<bytes_at>(all);
    const bool is_complete = TryRun([&] {
      cl_device_id id = nullptr;
      if constexpr (device_at >= 0) id = std::get<device_at>(all);
      const KnownDevice& device = Known(*profiler, id != nullptr ? id : DeviceOf(std::get<0>(all)));
      if (made == nullptr) {
        const ScopedCaller scope(caller);
        ReportOutOfMemory({call.name, bytes, device.name, SpaceOf(kind)}, *profiler);
      } else if constexpr (std::is_same_v<Result, cl_mem>) {
        RecordObject(*profiler, caller, made, device);
      } else {
        profiler->RecordAllocFrom(caller, made, *bytes, {device.id, kind});
      }
    });
    if (!is_complete) profiler->RecordDropped(bytes.value_or(0));
    return made;
  }
};

template <auto& call, typename Result>
void* Frees(Result (*)(cl_context, void*)) {
  return reinterpret_cast<void*>(+[](cl_context context, void* address) {
    Profiler* const profiler = Recorder();
    const bool is_ended = profiler != nullptr && profiler->RecordFree(address).has_value();
    if constexpr (std::is_void_v<Result>) {
      call.Find(context)(context, address);
    } else {
      const Result result = call.Find(context)(context, address);
      if (is_ended && result != CL_SUCCESS) profiler->RecordRefusedFree();
      return result;
    }
  });
}

// A callback, if there is one, frees the memory itself.
cl_int clEnqueueSVMFree(cl_command_queue queue, cl_uint count, void** addresses,
                        void (*callback)(cl_command_queue, cl_uint, void**, void*), void* data, cl_uint wait_count,
                        const cl_event* wait_list, cl_event* event) {
  Profiler* const profiler = callback == nullptr && addresses != nullptr ? Recorder() : nullptr;
  cl_uint ended = 0;
  for (cl_uint i = 0; profiler != nullptr && i < count; ++i) ended += profiler->RecordFree(addresses[i]) ? 1 : 0;
  const cl_int result = Next().clEnqueueSVMFree(queue, count, addresses, callback, data, wait_count, wait_list, event);
  for (; result != CL_SUCCESS && ended != 0; --ended) profiler->RecordRefusedFree();
  return result;
}

void* WrapperOf(const char* name, void* function);
void* clGetExtensionFunctionAddress(const char* name) {
  return WrapperOf(name, Next().clGetExtensionFunctionAddress(name));
}
void* clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char* name) {
  return WrapperOf(name, Next().clGetExtensionFunctionAddressForPlatform(platform, name));
}

#define DEFINE(name, Type, slot) Call<Type> k_##name{#name, slot};
#define CORE(name) DEFINE(name, decltype(cl_icd_dispatch::name), offsetof(cl_icd_dispatch, name) / sizeof(void*))
#define EXTENSION(name) DEFINE(name, name##_fn, -1)
#define ALLOCATES(PLACE, name, ...) PLACE(name)
#define FREES ALLOCATES
#define OTHER ALLOCATES
#include "src/backends/opencl/calls.inc"

// Calls visit(call, wrapper) for each row of calls.inc.
template <typename Visit>
void ForEachCall(const Visit& visit) {
#define ALLOCATES(PLACE, name, bytes, device, kind) \
  visit(k_##name, &Allocates<k_##name, decltype(k_##name.type), bytes, device, MemoryKind::kind>::Wrapper);
#define FREES(PLACE, name) visit(k_##name, Frees<k_##name>(k_##name.type));
#define OTHER(PLACE, name) visit(k_##name, &name);
#include "src/backends/opencl/calls.inc"
}

// Returns the wrapper of the function that a driver has for `name`; `function` itself if there is none.
void* WrapperOf(const char* name, void* function) {
  void* found = function;
  ForEachCall([&](auto& call, auto* wrapper) {
    if (function == nullptr || std::strcmp(name, call.name) != 0) return;
    call.last.store(function, std::memory_order_release);
    found = reinterpret_cast<void*>(wrapper);
  });
  return found;
}

}  // namespace
}  // namespace hbmprof::internal

using namespace hbmprof::internal;  // NOLINT

#pragma GCC visibility push(default)
extern "C" {

int hbmprof_opencl_layer = 0;  // whether a loader has loaded the layer, for `hbmprof doctor`

cl_int clGetLayerInfo(cl_layer_info what, size_t size, void* value, size_t* size_ret) {
  const bool has_room = value == nullptr || size >= sizeof(cl_layer_api_version);
  if (what != CL_LAYER_API_VERSION || !has_room) return CL_INVALID_VALUE;
  if (value != nullptr) *static_cast<cl_layer_api_version*>(value) = CL_LAYER_API_VERSION_100;
  if (size_ret != nullptr) *size_ret = sizeof(cl_layer_api_version);
  return CL_SUCCESS;
}

// Each loader gets a table of its own, which is never freed.
cl_int clInitLayer(cl_uint count, const cl_icd_dispatch* next, cl_uint* count_ret, const cl_icd_dispatch** table_ret) {
  if (next == nullptr || count_ret == nullptr || table_ret == nullptr) return CL_INVALID_VALUE;
  const int size = static_cast<int>(count);
  if (size <= k_clEnqueueSVMFree.slot) return CL_INVALID_VALUE;  // lacks functions that the layer calls
  const auto* const functions = reinterpret_cast<void* const*>(next);
  auto* const table = new (std::nothrow) void*[count];
  if (table == nullptr) return CL_OUT_OF_HOST_MEMORY;
  std::copy_n(functions, count, table);
  ForEachCall([&](const auto& call, auto* wrapper) {
    const bool is_there = call.slot >= 0 && call.slot < size && table[call.slot] != nullptr;
    if (is_there) table[call.slot] = reinterpret_cast<void*>(wrapper);
  });
  // The layer calls the loader, so that must stay loaded.
  if (Dl_info info; dladdr(functions[0], &info) != 0) dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  next_layer.store(next, std::memory_order_release);
  *table_ret = reinterpret_cast<const cl_icd_dispatch*>(table);
  *count_ret = count;
  hbmprof_opencl_layer = 1;
  return CL_SUCCESS;
}

// Newer loaders of Khronos call these.
cl_int clInitLayerWithProperties(cl_uint count, const cl_icd_dispatch* next, cl_uint* count_ret,
                                 const cl_icd_dispatch** table_ret, const cl_properties*) {
  return clInitLayer(count, next, count_ret, table_ret);
}
cl_int clDeinitLayer() { return CL_SUCCESS; }

}  // extern "C"
#pragma GCC visibility pop
