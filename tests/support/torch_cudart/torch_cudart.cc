// libcudart.so.12 and libcudart.so.13 for PyTorch's real libc10_cuda.so: the functions of the CUDA runtime that
// releases 2.1 to 2.15 import, on the double of the driver. Without a toolkit's headers: handles are pointers,
// structures of which a field is needed are written by its offset. Memory calls go to the driver's functions by name,
// as the real runtime's do, so that whatever wraps those sees them. Events and streams do nothing; a test can make
// cudaEventQuery fail (fake_cuda_fail).
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/backends/cuda/shared/driver_abi.h"
#include "tests/support/fake_cudart/fake_cuda.h"

using hbmprof::internal::cuda_driver::CUdeviceptr;

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNotSupported = 801;
constexpr size_t kTotalGlobalMemOffset = 288;  // of cudaDeviceProp
constexpr size_t kPropertiesWritten = 1000;    // cudaDeviceProp has 1008 bytes or more

thread_local int current_device = 0;
thread_local int last_error = kSuccess;

int Remember(int error) {
  if (error != kSuccess) last_error = error;
  return error;
}

int Unsupported() { return kNotSupported; }

void* const kSomeHandle = &last_error;

}  // namespace

extern "C" {

int cuInit(unsigned);
int cuMemAlloc_v2(CUdeviceptr*, size_t);
int cuMemFree_v2(CUdeviceptr);
int cuMemAllocAsync(CUdeviceptr*, size_t, void*);
int cuMemFreeAsync(CUdeviceptr, void*);
int cuMemGetInfo_v2(size_t*, size_t*);
int cuDeviceTotalMem_v2(size_t*, int);
int cuDeviceGetDefaultMemPool(void**, int);
int cuGetProcAddress_v2(const char*, void**, int, unsigned long long, int*);

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
  if (device < 0 || device >= fake_cuda_device_count()) return Remember(kInvalidValue);
  current_device = device;
  return kSuccess;
}
int cudaGetDeviceProperties(void* properties, int device) {
  size_t total = 0;
  if (const int error = cuInit(0)) return Remember(error);
  cuDeviceTotalMem_v2(&total, device);
  std::memset(properties, 0, kPropertiesWritten);
  std::memcpy(static_cast<char*>(properties) + kTotalGlobalMemOffset, &total, sizeof(total));
  return kSuccess;
}
int cudaGetDeviceProperties_v2(void* properties, int device) { return cudaGetDeviceProperties(properties, device); }
int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  fake_cuda_use_device(current_device);
  return Remember(cuMemGetInfo_v2(free_bytes, total));
}
int cudaDeviceSynchronize() { return kSuccess; }
int cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return kSuccess;
}
int cudaDeviceEnablePeerAccess(int, unsigned) { return kSuccess; }
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return kSuccess;
}
int cudaDeviceGetGraphMemAttribute(int, int, void* value) {
  std::memset(value, 0, sizeof(uint64_t));
  return kSuccess;
}
int cudaDeviceSetGraphMemAttribute(int, int, void*) { return kSuccess; }
int cudaDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

// --- Errors. ---

int cudaGetLastError() {
  const int error = last_error;
  last_error = kSuccess;
  return error;
}
const char* cudaGetErrorString(int error) { return error == kOutOfMemory ? "out of memory" : "an error"; }
const char* cudaGetErrorName(int error) { return error == kOutOfMemory ? "cudaErrorMemoryAllocation" : "cudaError"; }

// --- Memory. ---

int cudaMalloc(CUdeviceptr* ptr, size_t bytes) {
  fake_cuda_use_device(current_device);
  return Remember(cuMemAlloc_v2(ptr, bytes));
}
int cudaFree(CUdeviceptr ptr) { return Remember(cuMemFree_v2(ptr)); }
int cudaMallocAsync(CUdeviceptr* ptr, size_t bytes, void* stream) {
  fake_cuda_use_device(current_device);
  return Remember(cuMemAllocAsync(ptr, bytes, stream));
}
int cudaFreeAsync(CUdeviceptr ptr, void* stream) { return Remember(cuMemFreeAsync(ptr, stream)); }
int cudaDeviceGetDefaultMemPool(void** pool, int device) { return cuDeviceGetDefaultMemPool(pool, device); }
int cudaMemPoolGetAttribute(void*, int, void* value) {
  std::memset(value, 0, sizeof(uint64_t));
  return kSuccess;
}
int cudaMemPoolSetAttribute(void*, int, void*) { return kSuccess; }
int cudaMemPoolSetAccess(void*, const void*, size_t) { return kSuccess; }
int cudaMemPoolTrimTo(void*, size_t) { return kSuccess; }
int cudaIpcGetMemHandle(void*, void*) { return kNotSupported; }
int cudaIpcOpenMemHandle(void**, ...) { return kNotSupported; }
int cudaIpcCloseMemHandle(void*) { return kNotSupported; }
int cudaMemcpy(void*, const void*, size_t, int) { return kSuccess; }
int cudaMemcpyAsync(void*, const void*, size_t, int, void*) { return kSuccess; }
int cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, void*) { return kSuccess; }

// --- Streams, events and graphs. ---

int cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  *stream = kSomeHandle;
  return kSuccess;
}
int cudaStreamIsCapturing(void*, int* status) {
  *status = 0;
  return kSuccess;
}
int cudaStreamGetCaptureInfo(void*, int* status, ...) {
  *status = 0;
  return kSuccess;
}
int cudaStreamGetCaptureInfo_v2(void*, int* status, ...) {
  *status = 0;
  return kSuccess;
}
int cudaStreamQuery(void*) { return kSuccess; }
int cudaStreamSynchronize(void*) { return kSuccess; }
int cudaStreamWaitEvent(void*, void*, unsigned) { return kSuccess; }
int cudaStreamUpdateCaptureDependencies(void*, ...) { return kNotSupported; }
int cudaThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = kSomeHandle;
  return kSuccess;
}
int cudaEventDestroy(void*) { return kSuccess; }
int cudaEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 0;
  return kSuccess;
}
int cudaEventQuery(void*) { return Remember(fake_cuda_enter("cudaEventQuery")); }
int cudaEventRecord(void*, void*) { return kSuccess; }
int cudaEventSynchronize(void*) { return kSuccess; }
int cudaGraphAddEmptyNode(void**, ...) { return kNotSupported; }
int cudaGraphNodeGetDependencies(void*, ...) { return kNotSupported; }
int cudaGraphNodeGetType(void*, int*) { return kNotSupported; }

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
