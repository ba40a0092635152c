// The fake libcuda.so.1: the work of a device. A stream is any number, and everything has finished at once.
// Copies and fills are real, because device memory is host memory; on a capturing stream they do nothing. Every name of
// a kernel or of a variable is found, and kernels do nothing.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "src/backends/cuda/shared/driver_abi.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kUnsupportedLimit = 215;
constexpr int kInvalidHandle = 400;
constexpr int kCaptureImplicit = 906;
constexpr int kGreatestPriority = -5;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kDisableTiming = 2;
constexpr size_t kVariableBytes = size_t{1} << 20;

struct Number {
  int attribute;
  int value;
};

// CUdevice_attribute, of an H100: sizes of blocks, grids and memory, processors and clocks, which programs divide by or
// compare; compute capability 9.0; then what it can: map host memory, run kernels beside each other, share addresses
// with the host, manage memory, launch cooperatively, map physical memory, allocate in order of a stream.
constexpr Number kDeviceAttributes[] = {
    {1, 1024},  {2, 1024},     {3, 1024},   {4, 64},          {5, 2147483647}, {6, 65535},    {7, 65535},
    {8, 49152}, {9, 65536},    {10, 32},    {11, 2147483647}, {12, 65536},     {13, 1980000}, {14, 512},
    {16, 132},  {36, 2619000}, {37, 5120},  {38, 50 << 20},   {39, 2048},      {40, 3},       {51, 32},
    {75, 9},    {81, 233472},  {82, 65536}, {97, 232448},     {106, 32},       {111, 1024},   {15, 1},
    {19, 1},    {31, 1},       {41, 1},     {78, 1},          {79, 1},         {80, 1},       {83, 1},
    {89, 1},    {90, 1},       {95, 1},     {102, 1},         {103, 1},        {119, 1},      {120, 1}};

// CUfunction_attribute: threads of a block, registers, versions of the code, dynamic shared memory.
constexpr Number kFunctionAttributes[] = {{0, 1024}, {4, 32}, {5, 90}, {6, 90}, {8, 49152}};

// 0 for other attributes.
template <size_t kCount>
int Find(const Number (&numbers)[kCount], int attribute) {
  for (const Number& number : numbers) {
    if (number.attribute == attribute) return number.value;
  }
  return 0;
}

template <typename T>
CUresult Answer(T* out, T value) {
  if (const int error = fake_cuda_ready()) return error;
  if (out == nullptr) return kInvalidValue;
  *out = value;
  return kSuccess;
}

CUresult NewHandle(Handle* handle) {
  static std::atomic<uintptr_t> next{0x1000};
  return Answer(handle, reinterpret_cast<Handle>(next.fetch_add(16)));
}

struct Event {
  unsigned flags;
  std::optional<std::chrono::steady_clock::time_point> at;
};

struct Stream {
  unsigned flags = 0;
  int priority = 0;
  CUdevice device = fake_cuda_current_device();
  Handle context = nullptr;
};
struct Streams {
  std::mutex mutex;
  std::map<Handle, Stream> by_handle;
};
Streams& TheStreams() {
  static auto* const streams = new Streams;
  return *streams;
}

// A stream that was not created, such as the default one, is one of the current context.
Stream StreamOf(Handle stream) {
  Streams& streams = TheStreams();
  std::lock_guard<std::mutex> lock(streams.mutex);
  const auto found = streams.by_handle.find(stream);
  return found == streams.by_handle.end() ? Stream{} : found->second;
}

// CUlimit: of a stack, of printf's buffer, of the heap, of nested grids and their launches, of a fetch of the L2 cache,
// and of its persisting part.
std::atomic<size_t> limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};
constexpr int kLimits = sizeof(limits) / sizeof(limits[0]);

struct ErrorName {
  CUresult error;
  const char* name;
};
constexpr ErrorName kErrorNames[] = {{kSuccess, "CUDA_SUCCESS"},
                                     {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                     {kErrorOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                     {3, "CUDA_ERROR_NOT_INITIALIZED"},
                                     {100, "CUDA_ERROR_NO_DEVICE"},
                                     {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
                                     {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                     {kUnsupportedLimit, "CUDA_ERROR_UNSUPPORTED_LIMIT"},
                                     {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                                     {500, "CUDA_ERROR_NOT_FOUND"},
                                     {600, "CUDA_ERROR_NOT_READY"},
                                     {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                     {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
                                     {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
                                     {719, "CUDA_ERROR_LAUNCH_FAILED"},
                                     {801, "CUDA_ERROR_NOT_SUPPORTED"},
                                     {kCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
                                     {999, "CUDA_ERROR_UNKNOWN"}};

void* Memory(CUdeviceptr ptr) { return reinterpret_cast<void*>(ptr); }

CUresult Copy(void* to, const void* from, size_t bytes, Handle stream) {
  if (const int error = fake_cuda_ready()) return error;
  if (bytes == 0 || fake_cuda_is_capturing(stream) != 0) return kSuccess;
  if (to == nullptr || from == nullptr) return kInvalidValue;
  std::memmove(to, from, bytes);
  return kSuccess;
}

template <typename T>
CUresult Fill(CUdeviceptr to, T value, size_t count, Handle stream) {
  if (const int error = fake_cuda_ready()) return error;
  if (fake_cuda_is_capturing(stream) == 0) std::fill_n(static_cast<T*>(Memory(to)), count, value);
  return kSuccess;
}

// The first members of CUDA_MEMCPY2D are these; it has no others.
struct Side {
  size_t x_bytes, y;
  int memory_type;
  void* host;
  CUdeviceptr device;
  Handle array;
  size_t pitch;

  char* Row(size_t row) const {
    char* const start = static_cast<char*>(memory_type == static_cast<int>(kMemoryTypeHost) ? host : Memory(device));
    return start == nullptr ? nullptr : start + (y + row) * pitch + x_bytes;
  }
};
struct Copy2d {
  Side from, to;
  size_t width_bytes, height;
};

}  // namespace

extern "C" {

// --- Devices. ---

// FAKE_CUDA_POOLS=0: the devices have no pools.
int fake_cuda_has_pools() {
  static const bool has = getenv("FAKE_CUDA_POOLS") == nullptr;
  return has ? 1 : 0;
}

// FAKE_CUDA_INTEGRATED=1: the devices use the memory of the host.
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  constexpr int kIntegrated = 18, kBusId = 33, kMemoryPoolsSupported = 115;
  static const int is_integrated = getenv("FAKE_CUDA_INTEGRATED") != nullptr ? 1 : 0;
  if (attribute == kIntegrated) return Answer(value, is_integrated);
  if (attribute == kMemoryPoolsSupported) return Answer(value, fake_cuda_has_pools());
  return Answer(value, attribute == kBusId ? device + 1 : Find(kDeviceAttributes, attribute));
}
CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  std::snprintf(name, static_cast<size_t>(bytes), "Substitute H100");
  return fake_cuda_ready();
}
CUresult cuDeviceGetUuid_v2(char* uuid, CUdevice device) {
  std::memset(uuid, 0xfa, 16);
  uuid[15] = static_cast<char>(device);
  return fake_cuda_ready();
}
CUresult cuDeviceGetUuid(char* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  *minor = 0;
  return Answer(major, 9);
}
CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  unsigned bus = 0;
  if (std::sscanf(text, "%*x:%x:", &bus) != 1) return kInvalidValue;
  if (bus == 0 || bus > static_cast<unsigned>(fake_cuda_device_count())) return kInvalidDevice;
  return Answer(device, static_cast<CUdevice>(bus) - 1);
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) { return Answer(can, 0); }
CUresult cuDeviceGetP2PAttribute(int* value, int, CUdevice, CUdevice) { return Answer(value, 0); }
CUresult cuDeviceGetDefaultMemPool(Handle* pool, CUdevice device);
CUresult cuDeviceGetMemPool(Handle* pool, CUdevice device) { return cuDeviceGetDefaultMemPool(pool, device); }
CUresult cuMemPoolSetAttribute(Handle, int, void*) { return fake_cuda_ready(); }
CUresult cuMemPoolSetAccess(Handle, const void*, size_t) { return fake_cuda_ready(); }
CUresult cuGetErrorName(CUresult error, const char** text) {
  const auto* const found = std::find_if(std::begin(kErrorNames), std::end(kErrorNames),
                                         [error](const ErrorName& one) { return one.error == error; });
  *text = found == std::end(kErrorNames) ? nullptr : found->name;
  return *text == nullptr ? kInvalidValue : kSuccess;
}
CUresult cuCtxGetApiVersion(Handle, unsigned* version) { return Answer(version, 3020u); }
CUresult cuCtxGetFlags(unsigned* flags) { return Answer(flags, 0u); }
CUresult cuCtxGetId(Handle context, unsigned long long* id) {
  return Answer(id, reinterpret_cast<unsigned long long>(context) + 1);
}
CUresult cuCtxGetLimit(size_t* value, int limit) {
  return limit < 0 || limit >= kLimits ? kUnsupportedLimit : Answer(value, limits[limit].load());
}
CUresult cuCtxSetLimit(int limit, size_t value) {
  if (limit < 0 || limit >= kLimits) return kUnsupportedLimit;
  limits[limit] = value;
  return fake_cuda_ready();
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  return Answer(greatest, kGreatestPriority);
}

// --- Streams and events. ---

CUresult cuCtxGetCurrent(Handle* context);
CUresult cuStreamCreateWithPriority(Handle* handle, unsigned flags, int priority) {
  if (const int error = NewHandle(handle)) return error;
  Stream stream;
  stream.flags = flags;
  stream.priority = std::clamp(priority, kGreatestPriority, 0);
  cuCtxGetCurrent(&stream.context);
  Streams& streams = TheStreams();
  std::lock_guard<std::mutex> lock(streams.mutex);
  streams.by_handle[*handle] = stream;
  return kSuccess;
}
CUresult cuStreamCreate(Handle* stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
CUresult cuStreamDestroy_v2(Handle stream) {
  Streams& streams = TheStreams();
  std::lock_guard<std::mutex> lock(streams.mutex);
  streams.by_handle.erase(stream);
  return fake_cuda_ready();
}
CUresult cuStreamGetPriority(Handle stream, int* priority) { return Answer(priority, StreamOf(stream).priority); }
CUresult cuStreamGetFlags(Handle stream, unsigned* flags) { return Answer(flags, StreamOf(stream).flags); }
CUresult cuStreamGetId(Handle stream, unsigned long long* id) {
  return Answer(id, reinterpret_cast<unsigned long long>(stream));
}
CUresult cuStreamGetDevice(Handle stream, CUdevice* device) { return Answer(device, StreamOf(stream).device); }
CUresult cuStreamGetCtx(Handle stream, Handle* context) {
  const Handle of_stream = StreamOf(stream).context;
  return of_stream == nullptr ? cuCtxGetCurrent(context) : Answer(context, of_stream);
}
int fake_cuda_is_blocking(void* stream) { return (StreamOf(stream).flags & kNonBlocking) == 0 ? 1 : 0; }
CUresult cuStreamIsCapturing(Handle stream, int* status) {
  if (stream == nullptr && fake_cuda_is_legacy_stream_blocked() != 0) return kCaptureImplicit;
  return Answer(status, fake_cuda_is_capturing(stream) != 0 ? kCaptureActive : 0);
}
CUresult cuStreamQuery(Handle) { return fake_cuda_ready(); }
CUresult cuStreamSynchronize(Handle) { return fake_cuda_ready(); }
CUresult cuStreamWaitEvent(Handle, Handle, unsigned) { return fake_cuda_ready(); }
CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int current = 0;
  std::swap(*mode, current);
  return kSuccess;
}
CUresult cuStreamAddCallback(Handle stream, void (*callback)(Handle, CUresult, void*), void* data, unsigned) {
  callback(stream, kSuccess, data);
  return kSuccess;
}
CUresult cuLaunchHostFunc(Handle stream, void (*function)(void*), void* data) {
  if (fake_cuda_is_capturing(stream) == 0) function(data);
  return kSuccess;
}
CUresult cuEventCreate(Handle* event, unsigned flags) { return Answer(event, Handle{new Event{flags, {}}}); }
CUresult cuEventDestroy_v2(Handle event) {
  delete static_cast<Event*>(event);
  return kSuccess;
}
CUresult cuEventRecord(Handle event, Handle) {
  static_cast<Event*>(event)->at = std::chrono::steady_clock::now();
  return fake_cuda_ready();
}
CUresult cuEventRecordWithFlags(Handle event, Handle stream, unsigned) { return cuEventRecord(event, stream); }
CUresult cuEventQuery(Handle) { return fake_cuda_enter("cuEventQuery"); }
CUresult cuEventSynchronize(Handle) { return fake_cuda_ready(); }
CUresult cuEventElapsedTime(float* milliseconds, Handle start, Handle end) {
  const auto& [first_flags, first] = *static_cast<Event*>(start);
  const auto& [last_flags, last] = *static_cast<Event*>(end);
  if (!first || !last || ((first_flags | last_flags) & kDisableTiming) != 0) return kInvalidHandle;
  return Answer(milliseconds, std::chrono::duration<float, std::milli>(*last - *first).count());
}
CUresult cuEventElapsedTime_v2(float* milliseconds, Handle start, Handle end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

// --- Copies and fills. ---

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, Handle stream) {
  return Copy(Memory(to), Memory(from), bytes, stream);
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return cuMemcpyAsync(to, from, bytes, nullptr); }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, Handle stream) {
  return Copy(Memory(to), from, bytes, stream);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return Copy(Memory(to), from, bytes, nullptr);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, Handle stream) {
  return Copy(to, Memory(from), bytes, stream);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) { return Copy(to, Memory(from), bytes, nullptr); }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, Handle stream) {
  return cuMemcpyAsync(to, from, bytes, stream);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return cuMemcpyAsync(to, from, bytes, nullptr);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, Handle, CUdeviceptr from, Handle, size_t bytes, Handle stream) {
  return cuMemcpyAsync(to, from, bytes, stream);
}
CUresult cuMemcpyPeer(CUdeviceptr to, Handle, CUdeviceptr from, Handle, size_t bytes) {
  return cuMemcpyAsync(to, from, bytes, nullptr);
}
CUresult cuMemcpy2DAsync_v2(const Copy2d* copy, Handle stream) {
  CUresult result = kSuccess;
  for (size_t row = 0; row < copy->height && result == kSuccess; ++row) {
    result = Copy(copy->to.Row(row), copy->from.Row(row), copy->width_bytes, stream);
  }
  return result;
}
CUresult cuMemcpy2D_v2(const Copy2d* copy) { return cuMemcpy2DAsync_v2(copy, nullptr); }
CUresult cuMemcpy2DUnaligned_v2(const Copy2d* copy) { return cuMemcpy2DAsync_v2(copy, nullptr); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, Handle stream) {
  return Fill(to, value, count, stream);
}
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return Fill(to, value, count, nullptr); }
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, Handle stream) {
  return Fill(to, value, count, stream);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return Fill(to, value, count, nullptr); }
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, Handle stream) {
  return Fill(to, value, count, stream);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { return Fill(to, value, count, nullptr); }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned) {
  return Answer(device, reinterpret_cast<CUdeviceptr>(host));
}
CUresult cuMemHostGetFlags(unsigned* flags, void*) { return Answer(flags, 3u); }
CUresult cuPointerGetAttribute(void* answer, int attribute, CUdeviceptr ptr);
CUresult cuPointerGetAttributes(unsigned count, const int* attributes, void** answers, CUdeviceptr ptr) {
  for (unsigned i = 0; i < count; ++i) {
    if (cuPointerGetAttribute(answers[i], attributes[i], ptr) == kSuccess) continue;
    // An attribute that an address does not have is 0: pointers (context, device, host) have 8 bytes.
    const bool is_pointer = attributes[i] == 1 || attributes[i] == 3 || attributes[i] == 4;
    std::memset(answers[i], 0, is_pointer ? 8 : 4);
  }
  return fake_cuda_ready();
}

// --- Code. ---

CUresult cuModuleLoadData(Handle* module, const void* code);
CUresult cuModuleLoadDataEx(Handle* module, const void* code, unsigned, int*, void**) {
  return cuModuleLoadData(module, code);
}
CUresult cuModuleLoadFatBinary(Handle* module, const void* code) { return cuModuleLoadData(module, code); }
CUresult cuModuleLoad(Handle* module, const char*) { return cuModuleLoadData(module, ""); }
CUresult cuModuleGetFunction(Handle* function, Handle, const char*) { return NewHandle(function); }
CUresult cuModuleGetGlobal_v2(CUdeviceptr* ptr, size_t* bytes, Handle module, const char* name) {
  static std::mutex mutex;
  static auto* const variables = new std::map<std::pair<Handle, std::string>, void*>;
  std::lock_guard<std::mutex> lock(mutex);
  void*& memory = (*variables)[{module, name}];
  if (memory == nullptr) memory = calloc(1, kVariableBytes);
  if (ptr != nullptr) *ptr = reinterpret_cast<CUdeviceptr>(memory);
  if (bytes != nullptr) *bytes = kVariableBytes;
  return fake_cuda_ready();
}
CUresult cuModuleGetLoadingMode(int* mode) {
  constexpr int kLazy = 2;
  return Answer(mode, kLazy);
}
CUresult cuLibraryGetKernel(Handle* kernel, Handle, const char*) { return NewHandle(kernel); }
CUresult cuLibraryGetModule(Handle* module, Handle library) { return Answer(module, library); }
CUresult cuLibraryGetGlobal(CUdeviceptr* ptr, size_t* bytes, Handle library, const char* name) {
  return cuModuleGetGlobal_v2(ptr, bytes, library, name);
}
CUresult cuKernelGetFunction(Handle* function, Handle kernel) { return Answer(function, kernel); }
CUresult cuFuncGetAttribute(int* value, int attribute, Handle) {
  return Answer(value, Find(kFunctionAttributes, attribute));
}
CUresult cuFuncSetAttribute(Handle, int, int) { return fake_cuda_ready(); }
CUresult cuFuncSetCacheConfig(Handle, int) { return fake_cuda_ready(); }
CUresult cuKernelGetAttribute(int* value, int attribute, Handle, CUdevice) {
  return Answer(value, Find(kFunctionAttributes, attribute));
}
CUresult cuKernelSetAttribute(int, int, Handle, CUdevice) { return fake_cuda_ready(); }
CUresult cuFuncGetName(const char** name, Handle) { return Answer(name, "kernel"); }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Handle, int, size_t) { return Answer(blocks, 2); }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Handle, int, size_t, unsigned) {
  return Answer(blocks, 2);
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, Handle, const void*) { return Answer(clusters, 16); }
CUresult cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                        void**) {
  return fake_cuda_enter("cuLaunchKernel");
}
CUresult cuLaunchKernelEx(const void*, Handle, void**, void**) { return fake_cuda_enter("cuLaunchKernelEx"); }
CUresult cuTensorMapEncodeTiled(void* map, ...) {
  std::memset(map, 0, 128);
  return fake_cuda_ready();
}

// --- Graphs: a node is a number, and a graph has one. ---

CUresult cuGraphAddEmptyNode(Handle* node, Handle, const Handle*, size_t) { return NewHandle(node); }
CUresult cuGraphGetNodes(Handle, Handle* nodes, size_t* count) {
  if (nodes != nullptr && *count > 0) NewHandle(nodes);
  return Answer(count, size_t{1});
}
CUresult cuGraphGetRootNodes(Handle graph, Handle* nodes, size_t* count) {
  return cuGraphGetNodes(graph, nodes, count);
}
CUresult cuGraphNodeGetType(Handle, int* type) {
  constexpr int kKernel = 0;
  return Answer(type, kKernel);
}
}
