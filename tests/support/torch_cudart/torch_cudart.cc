// libcudart.so.12 and libcudart.so.13 for PyTorch and JAX: the CUDA runtime's functions that they import and that need
// an answer, on the double of the driver. Without a toolkit's headers: handles are pointers, structures of which a
// field is needed are written by its offset. Calls go to the driver's functions by name, as the real runtime's do, so
// that whatever wraps those sees them. A test can make cudaEventQuery fail (fake_cuda_fail). Kernels do nothing; the
// code of a library is loaded with the first launch of one of its kernels.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "src/backends/cuda/shared/driver_abi.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using hbmprof::internal::cuda_driver::CUdeviceptr;
using Stream = void*;
using HostFunction = void (*)(void*);

extern "C" {
int cuCtxSynchronize();
int cuDeviceGetAttribute(int*, int, int);
int cuDeviceGetByPCIBusId(int*, const char*);
int cuDeviceGetDefaultMemPool(void**, int);
int cuDeviceGetGraphMemAttribute(int, int, void*);
int cuDeviceGetName(char*, int, int);
int cuDeviceGetPCIBusId(char*, int, int);
int cuDeviceGetUuid_v2(void*, int);
int cuDevicePrimaryCtxReset_v2(int);
int cuDeviceTotalMem_v2(size_t*, int);
int cuDriverGetVersion(int*);
int cuEventCreate(void**, unsigned);
int cuEventDestroy_v2(void*);
int cuEventElapsedTime(float*, void*, void*);
int cuEventRecord(void*, Stream);
int cuGetProcAddress_v2(const char*, void**, int, unsigned long long, int*);
int cuGraphAddEmptyNode(void**, void*, const void*, size_t);
int cuGraphDestroy(void*);
int cuGraphExecDestroy(void*);
int cuGraphGetNodes(void*, void**, size_t*);
int cuGraphInstantiateWithFlags(void**, void*, unsigned long long);
int cuGraphLaunch(void*, Stream);
int cuGraphNodeGetType(void*, int*);
int cuInit(unsigned);
struct IpcHandle {
  char bytes[64];
};
int cuIpcCloseMemHandle(CUdeviceptr);
int cuIpcGetMemHandle(IpcHandle*, CUdeviceptr);
int cuIpcOpenMemHandle_v2(CUdeviceptr*, IpcHandle, unsigned);
int cuLaunchHostFunc(Stream, HostFunction, void*);
int cuLibraryGetKernel(void**, void*, const char*);
int cuLibraryLoadData(void**, const void*, int*, void**, unsigned, int*, void**, unsigned);
int cuLibraryUnload(void*);
int cuMemAllocAsync(CUdeviceptr*, size_t, Stream);
int cuMemAllocFromPoolAsync(CUdeviceptr*, size_t, void*, Stream);
int cuMemAllocManaged(CUdeviceptr*, size_t, unsigned);
int cuMemAlloc_v2(CUdeviceptr*, size_t);
int cuMemFreeAsync(CUdeviceptr, Stream);
int cuMemFreeHost(void*);
int cuMemFree_v2(CUdeviceptr);
int cuMemGetInfo_v2(size_t*, size_t*);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemHostRegister_v2(void*, size_t, unsigned);
int cuMemHostUnregister(void*);
int cuMemPoolCreate(void**, const void*);
int cuMemPoolDestroy(void*);
int cuMemPoolGetAttribute(void*, int, void*);
int cuMemPoolTrimTo(void*, size_t);
int cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, Stream);
int cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, Stream);
int cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, const void*, const char*);
int cuPointerGetAttribute(void*, int, CUdeviceptr);
int cuProfilerStart();
int cuProfilerStop();
int cuStreamAddCallback(Stream, void (*)(Stream, int, void*), void*, unsigned);
int cuStreamBeginCapture_v2(Stream, int);
int cuStreamCreateWithPriority(Stream*, unsigned, int);
int cuStreamDestroy_v2(Stream);
int cuStreamEndCapture(Stream, void**);
int cuStreamGetCaptureInfo_v2(Stream, int*, uint64_t*, void**, void* const**, size_t*);
int cuStreamGetDevice(Stream, int*);
int cuStreamGetFlags(Stream, unsigned*);
int cuStreamGetId(Stream, unsigned long long*);
int cuStreamGetPriority(Stream, int*);
int cuStreamIsCapturing(Stream, int*);
int cuThreadExchangeStreamCaptureMode(int*);
}

namespace {

constexpr int kSuccess = 0;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kNotSupported = 801;

thread_local int current_device = 0;
thread_local int last_error = kSuccess;

int Remember(int error) {
  if (error != kSuccess) last_error = error;
  return error;
}

int Unsupported() { return kNotSupported; }

// Makes the thread's device current for the driver, as the runtime's calls do.
int Use() {
  if (fake_cuda_init_was_called() == 0) {
    if (const int error = cuInit(0)) return Remember(error);
  }
  if (fake_cuda_current_device() != current_device) fake_cuda_use_device(current_device);
  return kSuccess;
}

// Calls a function of the driver on the thread's device.
template <typename... Parameters, typename... Arguments>
int Call(int (*function)(Parameters...), Arguments... arguments) {
  if (const int error = Use()) return error;
  return Remember(function(static_cast<Parameters>(arguments)...));
}

CUdeviceptr Address(const void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

// cudaDeviceProp: the driver's attributes by the offset of their field.
struct Field {
  int attribute;
  size_t offset;
  size_t bytes;
};
#if CUDART_MAJOR >= 13
constexpr size_t kPropertiesBytes = 1008;
constexpr size_t kPointerBytes = 88;
constexpr Field kLaterFields[] = {{16, 384, 4},  {19, 392, 4},  {31, 560, 4},  {33, 568, 4}, {40, 584, 4},
                                  {41, 588, 4},  {37, 592, 4},  {38, 596, 4},  {39, 604, 4}, {81, 624, 8},
                                  {82, 632, 4},  {83, 636, 4},  {89, 656, 4},  {95, 668, 4}, {97, 672, 8},
                                  {106, 688, 4}, {111, 696, 8}, {115, 720, 4}, {120, 748, 4}};
#else
constexpr size_t kPropertiesBytes = 1032;
constexpr size_t kPointerBytes = 24;
constexpr Field kLaterFields[] = {{16, 388, 4},  {19, 400, 4},  {31, 576, 4},  {33, 584, 4}, {40, 600, 4},
                                  {41, 604, 4},  {37, 612, 4},  {38, 616, 4},  {39, 624, 4}, {81, 640, 8},
                                  {82, 648, 4},  {83, 652, 4},  {89, 676, 4},  {95, 688, 4}, {97, 696, 8},
                                  {106, 712, 4}, {111, 720, 8}, {115, 744, 4}, {120, 772, 4}};
#endif
constexpr Field kFields[] = {{8, 296, 8}, {12, 304, 4}, {10, 308, 4}, {11, 312, 8}, {1, 320, 4},
                             {2, 324, 4}, {3, 328, 4},  {4, 332, 4},  {5, 336, 4},  {6, 340, 4},
                             {7, 344, 4}, {9, 352, 8},  {75, 360, 4}, {76, 364, 4}, {14, 368, 8}};
constexpr size_t kNameBytes = 256;  // followed by the UUID
constexpr size_t kTotalMemoryOffset = 288;

// The code of a library, which is loaded on a device with the first launch of a kernel.
struct Code {
  const void* data;
  std::set<int> loaded_on;
};
struct Codes {
  std::mutex mutex;
  std::unordered_map<const void*, Code*> of_kernel;
};
Codes& TheCodes() {
  static auto* const codes = new Codes;
  return *codes;
}

int Launch(const void* kernel) {
  if (const int error = Use()) return error;
  Codes& codes = TheCodes();
  const void* data = nullptr;
  {
    std::lock_guard<std::mutex> lock(codes.mutex);
    const auto found = codes.of_kernel.find(kernel);
    if (found != codes.of_kernel.end() && found->second->loaded_on.insert(current_device).second) {
      data = found->second->data;
    }
  }
  void* library = nullptr;
  return data == nullptr ? kSuccess
                         : Remember(cuLibraryLoadData(&library, data, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

struct Dimensions {
  unsigned x, y, z;
};
struct Configuration {
  Dimensions grid, block;
  size_t shared;
  Stream stream;
};
thread_local Configuration pushed;

int CaptureInfo(Stream stream, int* status, uint64_t* id, void** graph, void* const** nodes, size_t* count) {
  return Call(cuStreamGetCaptureInfo_v2, stream, status, id, graph, nodes, count);
}

}  // namespace

extern "C" {

// --- Code. ---

void** __cudaRegisterFatBinary(void* data) { return reinterpret_cast<void**>(new Code{data, {}}); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** code, const char* kernel, char*, const char*, int, void*, void*, void*, void*,
                            int*) {
  Codes& codes = TheCodes();
  std::lock_guard<std::mutex> lock(codes.mutex);
  codes.of_kernel[kernel] = reinterpret_cast<Code*>(code);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(Dimensions grid, Dimensions block, size_t shared, Stream stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
int __cudaPopCallConfiguration(Dimensions* grid, Dimensions* block, size_t* shared, Stream* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *stream = pushed.stream;
  return kSuccess;
}
int __cudaGetKernel(const void** kernel, const void* entry) {
  *kernel = entry;
  return kSuccess;
}
int __cudaLaunchKernel(const void* kernel, Dimensions, Dimensions, void**, size_t, Stream) { return Launch(kernel); }
int cudaLaunchKernel(const void* kernel, Dimensions, Dimensions, void**, size_t, Stream) { return Launch(kernel); }
int cudaLaunchKernelExC(const void*, const void* kernel, void**) { return Launch(kernel); }
int cudaLaunchCooperativeKernel(const void* kernel, Dimensions, Dimensions, void**, size_t, Stream) {
  return Launch(kernel);
}
int cudaLaunchHostFunc(Stream stream, HostFunction function, void* data) {
  return Call(cuLaunchHostFunc, stream, function, data);
}
int cudaFuncGetAttributes(void* attributes, const void*) {
  std::memset(attributes, 0, 144);
  const std::pair<size_t, int> fields[] = {{24, 1024}, {28, 32}, {32, 90}, {36, 90}, {44, 49152}};
  for (const auto& [offset, value] : fields) {
    std::memcpy(static_cast<char*>(attributes) + offset, &value, sizeof(value));
  }
  return kSuccess;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return kSuccess;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 2;
  return kSuccess;
}
int cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int, int) {
  *bytes = 49152;
  return kSuccess;
}
int cudaGetSymbolAddress(CUdeviceptr* ptr, const void* symbol) {
  return Call(cuModuleGetGlobal_v2, ptr, nullptr, symbol, "");
}
int cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, int) {
  CUdeviceptr ptr = 0;
  if (const int error = cudaGetSymbolAddress(&ptr, symbol)) return error;
  return Call(cuMemcpyAsync, ptr + offset, Address(from), bytes, nullptr);
}
int cudaLibraryLoadData(void** library, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
  return Call(cuLibraryLoadData, library, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
}
int cudaLibraryUnload(void* library) { return Call(cuLibraryUnload, library); }
int cudaLibraryGetKernel(void** kernel, void* library, const char* name) {
  return Call(cuLibraryGetKernel, kernel, library, name);
}

// --- Devices. ---

int cudaGetDeviceCount(int* count) {
  if (const int error = cuInit(0)) return Remember(error);
  *count = fake_cuda_device_count();
  return kSuccess;
}
int cudaGetDevice(int* device) {
  *device = current_device;
  return kSuccess;
}
int cudaSetDevice(int device) {
  if (const int error = cuInit(0)) return Remember(error);
  if (device < 0 || device >= fake_cuda_device_count()) return Remember(kInvalidDevice);
  current_device = device;
  return Use();
}
int cudaInitDevice(int, unsigned, unsigned) { return Use(); }
int cudaDeviceReset() { return Remember(cuDevicePrimaryCtxReset_v2(current_device)); }
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (const int error = cuInit(0)) return Remember(error);
  return Remember(cuDeviceGetAttribute(value, attribute, device));
}
int cudaGetDeviceProperties(void* properties, int device) {
  if (const int error = cuInit(0)) return Remember(error);
  auto* const bytes = static_cast<char*>(properties);
  std::memset(bytes, 0, kPropertiesBytes);
  cuDeviceGetName(bytes, kNameBytes, device);
  cuDeviceGetUuid_v2(bytes + kNameBytes, device);
  size_t total = 0;
  cuDeviceTotalMem_v2(&total, device);
  std::memcpy(bytes + kTotalMemoryOffset, &total, sizeof(total));
  const auto write = [&](const Field& field) {
    int value = 0;
    cuDeviceGetAttribute(&value, field.attribute, device);
    std::memcpy(bytes + field.offset, &value, sizeof(value));  // little-endian: of 8 bytes, the others are 0
  };
  for (const Field& field : kFields) write(field);
  for (const Field& field : kLaterFields) write(field);
  return kSuccess;
}
int cudaGetDeviceProperties_v2(void* properties, int device) { return cudaGetDeviceProperties(properties, device); }
int cudaDeviceGetPCIBusId(char* text, int bytes, int device) { return Call(cuDeviceGetPCIBusId, text, bytes, device); }
int cudaDeviceGetByPCIBusId(int* device, const char* text) { return Call(cuDeviceGetByPCIBusId, device, text); }
int cudaMemGetInfo(size_t* free_bytes, size_t* total) { return Call(cuMemGetInfo_v2, free_bytes, total); }
int cudaDeviceSynchronize() { return Call(cuCtxSynchronize); }
int cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return kSuccess;
}
int cudaDeviceEnablePeerAccess(int, unsigned) { return Remember(kInvalidDevice); }
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}
int cudaDeviceGetGraphMemAttribute(int device, int attribute, void* value) {
  return Call(cuDeviceGetGraphMemAttribute, device, attribute, value);
}
int cudaDeviceSetGraphMemAttribute(int, int, void*) { return kSuccess; }
int cudaDriverGetVersion(int* version) { return Remember(cuDriverGetVersion(version)); }
int cudaRuntimeGetVersion(int* version) {
  *version = CUDART_MAJOR * 1000 + 20;
  return kSuccess;
}
int cudaProfilerStart() { return Call(cuProfilerStart); }
int cudaProfilerStop() { return Call(cuProfilerStop); }

// --- Errors. ---

int cudaGetLastError() {
  const int error = last_error;
  last_error = kSuccess;
  return error;
}
int cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(int error) {
  return error == kSuccess ? "no error" : error == kOutOfMemory ? "out of memory" : "an error";
}
const char* cudaGetErrorName(int error) {
  switch (error) {
    case kSuccess:
      return "cudaSuccess";
    case 1:
      return "cudaErrorInvalidValue";
    case kOutOfMemory:
      return "cudaErrorMemoryAllocation";
    case kInvalidDevice:
      return "cudaErrorInvalidDevice";
    case kNotSupported:
      return "cudaErrorNotSupported";
    default:
      return "unrecognized error code";
  }
}

// --- Memory. ---

int cudaMalloc(CUdeviceptr* ptr, size_t bytes) { return Call(cuMemAlloc_v2, ptr, bytes); }
int cudaFree(CUdeviceptr ptr) { return Call(cuMemFree_v2, ptr); }
int cudaMallocManaged(CUdeviceptr* ptr, size_t bytes, unsigned flags) {
  return Call(cuMemAllocManaged, ptr, bytes, flags);
}
int cudaHostAlloc(void** ptr, size_t bytes, unsigned flags) { return Call(cuMemHostAlloc, ptr, bytes, flags); }
int cudaMallocHost(void** ptr, size_t bytes) { return cudaHostAlloc(ptr, bytes, 0); }
int cudaFreeHost(void* ptr) { return ptr == nullptr ? kSuccess : Call(cuMemFreeHost, ptr); }
int cudaHostRegister(void* ptr, size_t bytes, unsigned flags) { return Call(cuMemHostRegister_v2, ptr, bytes, flags); }
int cudaHostUnregister(void* ptr) { return Call(cuMemHostUnregister, ptr); }
int cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return kSuccess;
}
int cudaMallocAsync(CUdeviceptr* ptr, size_t bytes, Stream stream) { return Call(cuMemAllocAsync, ptr, bytes, stream); }
int cudaMallocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, void* pool, Stream stream) {
  return Call(cuMemAllocFromPoolAsync, ptr, bytes, pool, stream);
}
int cudaFreeAsync(CUdeviceptr ptr, Stream stream) { return Call(cuMemFreeAsync, ptr, stream); }
int cudaDeviceGetDefaultMemPool(void** pool, int device) { return Call(cuDeviceGetDefaultMemPool, pool, device); }
int cudaDeviceGetMemPool(void** pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
int cudaMemPoolCreate(void** pool, const void* properties) { return Call(cuMemPoolCreate, pool, properties); }
int cudaMemPoolDestroy(void* pool) { return Call(cuMemPoolDestroy, pool); }
int cudaMemPoolGetAttribute(void* pool, int attribute, void* value) {
  return Call(cuMemPoolGetAttribute, pool, attribute, value);
}
int cudaMemPoolSetAttribute(void*, int, void*) { return kSuccess; }
int cudaMemPoolSetAccess(void*, const void*, size_t) { return kSuccess; }
int cudaMemPoolTrimTo(void* pool, size_t bytes) { return Call(cuMemPoolTrimTo, pool, bytes); }
int cudaIpcGetMemHandle(IpcHandle* handle, CUdeviceptr ptr) { return Call(cuIpcGetMemHandle, handle, ptr); }
int cudaIpcOpenMemHandle(CUdeviceptr* ptr, IpcHandle handle, unsigned flags) {
  return Call(cuIpcOpenMemHandle_v2, ptr, handle, flags);
}
int cudaIpcCloseMemHandle(CUdeviceptr ptr) { return Call(cuIpcCloseMemHandle, ptr); }
int cudaMemcpyAsync(const void* to, const void* from, size_t bytes, int, Stream stream) {
  return Call(cuMemcpyAsync, Address(to), Address(from), bytes, stream);
}
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, Stream stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}
int cudaMemcpy2DAsync(char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width, size_t height,
                      int kind, Stream stream) {
  for (size_t row = 0; row < height; ++row) {
    const int error = cudaMemcpyAsync(to + row * to_pitch, from + row * from_pitch, width, kind, stream);
    if (error != kSuccess) return error;
  }
  return kSuccess;
}
int cudaMemsetAsync(void* to, int value, size_t count, Stream stream) {
  return Call(cuMemsetD8Async, Address(to), value, count, stream);
}
int cudaMemset(void* to, int value, size_t count) { return cudaMemsetAsync(to, value, count, nullptr); }

// cudaPointerAttributes: type, device, device pointer, host pointer. Memory that CUDA does not know has type 0.
int cudaPointerGetAttributes(void* attributes, const void* ptr) {
  constexpr int kMemoryType = 2, kIsManaged = 8, kDevice = 9, kHost = 1, kManaged = 3;
  std::memset(attributes, 0, kPointerBytes);
  if (const int error = Use()) return error;
  struct {
    int type, device;
    const void *device_pointer, *host_pointer;
  } answer = {0, -2, nullptr, ptr};
  unsigned type = 0;
  if (cuPointerGetAttribute(&type, kMemoryType, Address(ptr)) == kSuccess) {
    int is_managed = 0;
    cuPointerGetAttribute(&is_managed, kIsManaged, Address(ptr));
    cuPointerGetAttribute(&answer.device, kDevice, Address(ptr));
    answer.type = is_managed != 0 ? kManaged : static_cast<int>(type);
    answer.device_pointer = ptr;
    if (answer.type != kHost && answer.type != kManaged) answer.host_pointer = nullptr;
  }
  std::memcpy(attributes, &answer, sizeof(answer));
  return kSuccess;
}

// --- Streams, events and graphs. ---

int cudaStreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
  return Call(cuStreamCreateWithPriority, stream, flags, priority);
}
int cudaStreamCreateWithFlags(Stream* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
int cudaStreamCreate(Stream* stream) { return cudaStreamCreateWithFlags(stream, 0); }
int cudaStreamGetPriority(Stream stream, int* priority) { return Call(cuStreamGetPriority, stream, priority); }
int cudaStreamGetFlags(Stream stream, unsigned* flags) { return Call(cuStreamGetFlags, stream, flags); }
int cudaStreamGetId(Stream stream, unsigned long long* id) { return Call(cuStreamGetId, stream, id); }
int cudaStreamGetDevice(Stream stream, int* device) { return Call(cuStreamGetDevice, stream, device); }
int cudaStreamAddCallback(Stream stream, void (*callback)(Stream, int, void*), void* data, unsigned flags) {
  return Call(cuStreamAddCallback, stream, callback, data, flags);
}
int cudaStreamIsCapturing(Stream stream, int* status) { return Call(cuStreamIsCapturing, stream, status); }
int cudaStreamBeginCapture(Stream stream, int mode) { return Call(cuStreamBeginCapture_v2, stream, mode); }
int cudaStreamEndCapture(Stream stream, void** graph) { return Call(cuStreamEndCapture, stream, graph); }
#if CUDART_MAJOR >= 13
int cudaStreamGetCaptureInfo(Stream stream, int* status, uint64_t* id, void** graph, void* const** nodes,
                             const void** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return CaptureInfo(stream, status, id, graph, nodes, count);
}
int cudaGraphNodeGetDependencies(void*, void*, void*, size_t* count) {
  *count = 0;
  return kSuccess;
}
#else
int cudaStreamGetCaptureInfo(Stream stream, int* status, uint64_t* id) {
  return CaptureInfo(stream, status, id, nullptr, nullptr, nullptr);
}
int cudaStreamGetCaptureInfo_v2(Stream stream, int* status, uint64_t* id, void** graph, void* const** nodes,
                                size_t* count) {
  return CaptureInfo(stream, status, id, graph, nodes, count);
}
int cudaGraphNodeGetDependencies(void*, void*, size_t* count) {
  *count = 0;
  return kSuccess;
}
#endif
int cudaStreamDestroy(Stream stream) { return Call(cuStreamDestroy_v2, stream); }
int cudaStreamQuery(Stream) { return kSuccess; }
int cudaStreamSynchronize(Stream) { return kSuccess; }
int cudaStreamWaitEvent(Stream, void*, unsigned) { return kSuccess; }
int cudaStreamUpdateCaptureDependencies(Stream, ...) { return kSuccess; }
int cudaThreadExchangeStreamCaptureMode(int* mode) { return Call(cuThreadExchangeStreamCaptureMode, mode); }
int cudaEventCreateWithFlags(void** event, unsigned flags) { return Call(cuEventCreate, event, flags); }
int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void* event) { return Call(cuEventDestroy_v2, event); }
int cudaEventElapsedTime(float* milliseconds, void* start, void* end) {
  return Call(cuEventElapsedTime, milliseconds, start, end);
}
int cudaEventQuery(void*) { return Remember(fake_cuda_enter("cudaEventQuery")); }
int cudaEventRecord(void* event, Stream stream) { return Call(cuEventRecord, event, stream); }
int cudaEventRecordWithFlags(void* event, Stream stream, unsigned) { return cudaEventRecord(event, stream); }
int cudaEventSynchronize(void*) { return kSuccess; }
int cudaGraphAddEmptyNode(void** node, void* graph, const void* dependencies, size_t count) {
  return Call(cuGraphAddEmptyNode, node, graph, dependencies, count);
}
int cudaGraphNodeGetType(void* node, int* type) { return Call(cuGraphNodeGetType, node, type); }
int cudaGraphGetNodes(void* graph, void** nodes, size_t* count) { return Call(cuGraphGetNodes, graph, nodes, count); }
int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return Call(cuGraphInstantiateWithFlags, executable, graph, flags);
}
int cudaGraphInstantiate(void** executable, void* graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
int cudaGraphLaunch(void* executable, Stream stream) { return Call(cuGraphLaunch, executable, stream); }
int cudaGraphDestroy(void* graph) { return Call(cuGraphDestroy, graph); }
int cudaGraphExecDestroy(void* graph) { return Call(cuGraphExecDestroy, graph); }

// --- The driver's functions by name. PyTorch requests all functions that it may need, and ends if one is missing. ---

int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long flags,
                                     int* status) {
  cuGetProcAddress_v2(name, function, static_cast<int>(version), flags, nullptr);
  if (*function == nullptr) *function = dlsym(RTLD_DEFAULT, name);
  if (*function == nullptr) *function = reinterpret_cast<void*>(&Unsupported);
  if (status != nullptr) *status = 0;
  return kSuccess;
}
int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, int* status) {
  return cudaGetDriverEntryPointByVersion(name, function, 13000, flags, status);
}
}
