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
#include <array>
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
#include "src/backends/calls/events.h"

namespace hbmprof::internal {
namespace {

// The functions of the next layer. If a process has several loaders, the newest one has set them; they work on the
// objects of all loaders.
std::atomic<const cl_icd_dispatch*> next_layer{nullptr};
const cl_icd_dispatch& Next() { return *next_layer.load(std::memory_order_acquire); }

// Returns what an object answers; zero if it does not.
auto QueryOf(cl_context) { return Next().clGetContextInfo; }
auto QueryOf(cl_device_id) { return Next().clGetDeviceInfo; }
auto QueryOf(cl_mem) { return Next().clGetMemObjectInfo; }
template <typename Value, typename Object>
Value Ask(Object object, cl_uint what) {
  Value value = {};
  return QueryOf(object)(object, what, sizeof(Value), &value, nullptr) == CL_SUCCESS ? value : Value();
}

cl_device_id DeviceOf(cl_context context) { return Ask<std::array<cl_device_id, 64>>(context, CL_CONTEXT_DEVICES)[0]; }
cl_device_id DeviceOf(cl_mem mem) { return DeviceOf(Ask<cl_context>(mem, CL_MEM_CONTEXT)); }

struct KnownDevice {
  KnownDevice(Profiler& profiler, cl_device_id of) : device(of) {
    const auto platform = Ask<cl_platform_id>(device, CL_DEVICE_PLATFORM);
    cl_platform_id platforms[64] = {};
    cl_device_id devices[64] = {};
    Next().clGetPlatformIDs(std::size(platforms), platforms, nullptr);
    Next().clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, std::size(devices), devices, nullptr);
    const auto place = [](const auto& all, auto one) { return std::find(std::begin(all), std::end(all), one) - all; };
    const auto at_platform = place(platforms, platform), at_device = place(devices, device);
    DeviceProbe probe;
    if (platform != nullptr && device != nullptr && at_platform < 64 && at_device < 64) {
      name = "OpenCL:" + std::to_string(at_platform) + ":" + std::to_string(at_device);
      probe.bytes_limit = static_cast<int64_t>(Ask<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE));
    }
    id = profiler.Device(name);
    profiler.SetDeviceProbe(id, [probe] { return probe; });
    shares_host_memory = Ask<cl_bool>(device, CL_DEVICE_HOST_UNIFIED_MEMORY) != CL_FALSE;
  }

  const cl_device_id device;
  std::string name = "unknown";
  DeviceId id = {};
  bool shares_host_memory = false;
};

// Returns the entry of the device, or of that of which it is a part. Those that find no place share the last entry.
const KnownDevice& Known(Profiler& profiler, cl_device_id device) {
  static std::atomic<const KnownDevice*> entries[kMaxDevices] = {};
  while (const auto whole = Ask<cl_device_id>(device, CL_DEVICE_PARENT_DEVICE)) device = whole;
  const KnownDevice* known = nullptr;
  for (int i = 0; i < kMaxDevices && (known == nullptr || known->device != device); ++i) {
    known = entries[i].load(std::memory_order_acquire);
    if (known != nullptr) continue;
    auto made = std::make_unique<KnownDevice>(profiler, device);
    if (entries[i].compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) known = made.release();
  }
  return *known;
}

BufferId IdOf(cl_mem mem) { return BufferId::Handle(NameSpace::kOpenclMem, reinterpret_cast<uintptr_t>(mem)); }

void Destroyed(cl_mem mem, void*) {
  if (Profiler* const profiler = opencl_profiler.load()()) profiler->RecordFree(IdOf(mem));
}

void RecordObject(Profiler& profiler, const Caller& caller, cl_mem mem, const KnownDevice& device) {
  const auto bytes = Ask<size_t>(mem, CL_MEM_SIZE);
  const auto flags = Ask<cl_mem_flags>(mem, CL_MEM_FLAGS);
  const auto type = Ask<cl_mem_object_type>(mem, CL_MEM_TYPE);
  const bool is_programs_memory = (flags & CL_MEM_USE_HOST_PTR) != 0 &&
                                  (device.shares_host_memory || Ask<cl_bool>(mem, CL_MEM_USES_SVM_POINTER) != 0);
  MemoryKind kind = (flags & CL_MEM_ALLOC_HOST_PTR) != 0 ? MemoryKind::kPinnedHost : MemoryKind::kDevice;
  if (type != CL_MEM_OBJECT_BUFFER && type != CL_MEM_OBJECT_PIPE) kind = MemoryKind::kArray;
  if (is_programs_memory || Ask<cl_mem>(mem, CL_MEM_ASSOCIATED_MEMOBJECT) != nullptr) kind = MemoryKind::kAlias;
  // First the callback: without it, the record would never end.
  const bool has_end = Next().clSetMemObjectDestructorCallback(mem, &Destroyed, nullptr) == CL_SUCCESS;
  if (!has_end) return profiler.RecordDropped(bytes);
  profiler.RecordAllocFrom(caller, IdOf(mem), bytes, {device.id, kind});
}

enum Entry : int {
#define CALL(PLACE, name, ...) k_##name,
#include "src/backends/opencl/calls.inc"
  kEntryCount
};

// A row of calls.inc. `slot`: in the dispatch table; SIZE_MAX: an extension, of which each platform has its own.
struct Call {
  const char* name;
  size_t slot;
  void* wrapper;
};
extern const Call calls[kEntryCount];
std::atomic<void*> last_found[kEntryCount];  // that which a program got last, for calls without a context of a platform

// Returns the function of the next layer or, for an extension, of the platform of `owner`.
template <typename Function, Entry entry, typename Owner>
Function Find(Owner owner) {
  const Call& call = calls[entry];
  if (call.slot != SIZE_MAX) return reinterpret_cast<Function>(reinterpret_cast<void* const*>(&Next())[call.slot]);
  const auto id = Ask<cl_platform_id>(DeviceOf(owner), CL_DEVICE_PLATFORM);
  void* const found = id == nullptr ? nullptr : Next().clGetExtensionFunctionAddressForPlatform(id, call.name);
  return reinterpret_cast<Function>(found != nullptr ? found : last_found[entry].load(std::memory_order_acquire));
}

template <Entry entry, int bytes_at, int device_at, MemoryKind kind, typename Result, typename... Arguments>
[[gnu::noinline]] Result Allocates(Arguments... arguments) {
  const Caller caller = Caller::OfThisFunction();
  const std::tuple<Arguments...> all(arguments...);
  const Result made = Find<Result (*)(Arguments...), entry>(std::get<0>(all))(arguments...);
  [[maybe_unused]] const auto last = std::get<sizeof...(Arguments) - 1>(all);
  cl_int error = CL_SUCCESS;
  if constexpr (std::is_same_v<decltype(last), cl_int* const>) error = last != nullptr ? *last : CL_SUCCESS;
  const bool is_full = error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_RESOURCES;
  Profiler* const profiler = made != nullptr || is_full ? opencl_profiler.load()() : nullptr;
  if (profiler == nullptr) return made;
  std::optional<size_t> bytes;
  if constexpr (bytes_at >= 0) bytes = std::get<bytes_at>(all);
  RecordOrDrop(*profiler, bytes.value_or(0), [&] {
    cl_device_id id = nullptr;
    if constexpr (device_at >= 0) id = std::get<device_at>(all);
    const KnownDevice& device = Known(*profiler, id != nullptr ? id : DeviceOf(std::get<0>(all)));
    if (made == nullptr) {
      const ScopedCaller scope(caller);
      ReportOutOfMemory({calls[entry].name, bytes, device.name, SpaceOf(kind)}, *profiler);
    } else if constexpr (std::is_same_v<Result, cl_mem>) {
      RecordObject(*profiler, caller, made, device);
    } else {
      profiler->RecordAllocFrom(caller, made, *bytes, {device.id, kind});
    }
  });
  return made;
}

template <Entry entry, typename Result>
Result Frees(cl_context context, void* address) {
  const auto free = [=] { return Find<Result (*)(cl_context, void*), entry>(context)(context, address); };
  Profiler* const profiler = opencl_profiler.load()();
  if (profiler == nullptr) return free();
  if constexpr (std::is_void_v<Result>) return profiler->RecordFree(address), free();
  if constexpr (!std::is_void_v<Result>) return RemoveAndFree(*profiler, address, CL_SUCCESS, free);
}

// A callback, if there is one, frees the memory itself.
cl_int clEnqueueSVMFree(cl_command_queue queue, cl_uint count, void** addresses,
                        void (*callback)(cl_command_queue, cl_uint, void**, void*), void* data, cl_uint wait_count,
                        const cl_event* wait_list, cl_event* event) {
  Profiler* const profiler = callback == nullptr && addresses != nullptr ? opencl_profiler.load()() : nullptr;
  cl_uint ended = 0;
  for (cl_uint i = 0; profiler != nullptr && i < count; ++i) ended += profiler->RecordFree(addresses[i]) ? 1 : 0;
  const cl_int result = Next().clEnqueueSVMFree(queue, count, addresses, callback, data, wait_count, wait_list, event);
  for (; result != CL_SUCCESS && ended != 0; --ended) profiler->RecordRefusedFree();
  return result;
}

// Returns the wrapper of the function that a driver has for `name`; `function` itself if there is none.
void* WrapperOf(const char* name, void* function) {
  for (int i = 0; i < kEntryCount; ++i) {
    if (function == nullptr || std::strcmp(name, calls[i].name) != 0) continue;
    last_found[i].store(function, std::memory_order_release);
    return calls[i].wrapper;
  }
  return function;
}
void* clGetExtensionFunctionAddress(const char* name) {
  return WrapperOf(name, Next().clGetExtensionFunctionAddress(name));
}
void* clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char* name) {
  return WrapperOf(name, Next().clGetExtensionFunctionAddressForPlatform(platform, name));
}

#define ROW(name, Type, slot, ...) {#name, slot, reinterpret_cast<void*>(static_cast<Type>(__VA_ARGS__))},
#define CORE(name, ...) \
  ROW(name, decltype(cl_icd_dispatch::name), offsetof(cl_icd_dispatch, name) / sizeof(void*), __VA_ARGS__)
#define EXTENSION(name, ...) ROW(name, name##_fn, SIZE_MAX, __VA_ARGS__)
#define ALLOCATES(name, bytes, device, kind) &Allocates<k_##name, bytes, device, MemoryKind::kind>
#define FREES(name, ...) &Frees<k_##name>
#define OTHER(name, ...) &name
#define CALL(PLACE, name, role, ...) PLACE(name, role(name, __VA_ARGS__))
const Call calls[] = {
#include "src/backends/opencl/calls.inc"
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int hbmprof_opencl_layer = 0;  // whether a loader has loaded the layer, for `hbmprof doctor`

cl_int clGetLayerInfo(cl_layer_info what, size_t size, void* value, size_t* size_ret) {
  constexpr cl_layer_api_version kVersion = CL_LAYER_API_VERSION_100;
  if (what != CL_LAYER_API_VERSION || (value != nullptr && size < sizeof(kVersion))) return CL_INVALID_VALUE;
  if (value != nullptr) std::memcpy(value, &kVersion, sizeof(kVersion));
  if (size_ret != nullptr) *size_ret = sizeof(kVersion);
  return CL_SUCCESS;
}

// Each loader gets a table of its own, which is never freed.
cl_int clInitLayer(cl_uint count, const cl_icd_dispatch* next, cl_uint* count_ret, const cl_icd_dispatch** table_ret) {
  if (next == nullptr || count_ret == nullptr || table_ret == nullptr) return CL_INVALID_VALUE;
  if (count <= calls[k_clEnqueueSVMFree].slot) return CL_INVALID_VALUE;  // lacks functions that the layer calls
  const auto* const functions = reinterpret_cast<void* const*>(next);
  auto* const table = new (std::nothrow) void*[count];
  if (table == nullptr) return CL_OUT_OF_HOST_MEMORY;
  std::copy_n(functions, count, table);
  for (const Call& call : calls) {
    if (call.slot < count && table[call.slot] != nullptr) table[call.slot] = call.wrapper;
  }
  // The layer calls the loader, so that must stay loaded.
  if (Dl_info info; dladdr(functions[0], &info) != 0) dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  next_layer.store(next, std::memory_order_release);
  *table_ret = reinterpret_cast<const cl_icd_dispatch*>(table);
  *count_ret = count;
  hbmprof_opencl_layer = 1;
  return CL_SUCCESS;
}

// Newer loaders of Khronos call this one.
cl_int clInitLayerWithProperties(cl_uint count, const cl_icd_dispatch* next, cl_uint* count_ret,
                                 const cl_icd_dispatch** table_ret, const cl_properties*) {
  return clInitLayer(count, next, count_ret, table_ret);
}

}  // extern "C"
#pragma GCC visibility pop

}  // namespace hbmprof::internal
