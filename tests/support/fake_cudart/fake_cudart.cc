// The fake libcudart: the runtime's memory calls on the model in fake_cuda.cc. They are declared by the toolkit's
// header, so no signature can differ from the real one.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <set>

#include "tests/support/fake_cudart/fake_cuda.h"

extern "C" int cuStreamBeginCapture_v2(void* stream, int mode);
extern "C" int cuStreamEndCapture(void* stream, void** graph);

namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Fail(int error) {
  last_error = static_cast<cudaError_t>(error);
  return last_error;
}

constexpr unsigned Bit(fake_cuda_kind kind) { return 1u << kind; }

constexpr size_t kPitchAlignment = 512;

size_t RoundUpToPitch(size_t width) { return (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment; }

// The object behind an opaque handle. Device and kind of its memory are those of its model block.
struct Object {
  char sort = 0;  // 'p'ool, 's'tream
  int device = 0;
  fake_cuda_kind kind = FAKE_CUDA_STREAM_ORDERED;
};

Object* NewObject(char sort) {
  void* memory = nullptr;
  if (fake_cuda_allocate(current_device, sizeof(Object), FAKE_CUDA_OBJECT, &memory) != 0) abort();
  auto* object = new (memory) Object;
  object->sort = sort;
  object->device = current_device;
  return object;
}

// The object of a live handle of this sort, or null.
template <typename Handle>
Object* Find(Handle handle, char sort) {
  fake_cuda_block block;
  if (handle == nullptr || fake_cuda_find(handle, &block) == 0 || block.kind != FAKE_CUDA_OBJECT) return nullptr;
  auto* object = reinterpret_cast<Object*>(block.base);
  return object->sort == sort ? object : nullptr;
}

class EventTable {
 public:
  uintptr_t Add() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return *live_.insert(++last_).first;
  }
  bool Remove(cudaEvent_t event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return live_.erase(reinterpret_cast<uintptr_t>(event)) != 0;
  }
  bool Has(cudaEvent_t event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return live_.count(reinterpret_cast<uintptr_t>(event)) != 0;
  }

 private:
  std::mutex mutex_;
  uintptr_t last_ = 0;
  std::set<uintptr_t> live_;
};
EventTable& Events() {
  static auto& events = *new EventTable;
  return events;
}

cudaError_t Destroy(Object* object) {
  if (object == nullptr) return Fail(cudaErrorInvalidResourceHandle);
  fake_cuda_release(object, Bit(FAKE_CUDA_OBJECT));
  return cudaSuccess;
}

cudaError_t Allocate(int device, size_t bytes, fake_cuda_kind kind, void** ptr) {
  if (ptr == nullptr) return Fail(cudaErrorInvalidValue);
  fake_cuda_use_device(current_device);
  if (device != current_device) {
    const int before = current_device;
    fake_cuda_use_device(device);
    fake_cuda_use_device(before);
  }
  const int error = fake_cuda_allocate(device, bytes, kind, ptr);
  return error != 0 ? Fail(error) : cudaSuccess;
}

// FAKE_CUDART_DRIVER=1: linear memory is allocated with the driver's functions, looked up as a program does.
template <typename Function>
Function* DriverCall(const char* name) {
  static const bool uses_driver = getenv("FAKE_CUDART_DRIVER") != nullptr;
  if (!uses_driver) return nullptr;
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name));
}

cudaError_t Release(void* ptr, unsigned kinds) {
  fake_cuda_use_device(current_device);
  if (ptr == nullptr) return cudaSuccess;
  return fake_cuda_release(ptr, kinds) != 0 ? cudaSuccess : Fail(cudaErrorInvalidValue);
}

int DeviceOfStream(cudaStream_t stream) {
  const Object* object = Find(stream, 's');
  return object != nullptr ? object->device : current_device;
}

bool IsStream(cudaStream_t stream) { return reinterpret_cast<uintptr_t>(stream) <= 2 || Find(stream, 's') != nullptr; }

cudaError_t MallocOnStream(void** ptr, size_t bytes, cudaStream_t stream) {
  if (!IsStream(stream)) return Fail(cudaErrorInvalidResourceHandle);
  return Allocate(DeviceOfStream(stream), bytes, FAKE_CUDA_STREAM_ORDERED, ptr);
}

cudaError_t MallocFromPool(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  const Object* object = Find(pool, 'p');
  if (object == nullptr || !IsStream(stream)) return Fail(cudaErrorInvalidResourceHandle);
  return Allocate(object->device, bytes, object->kind, ptr);
}

cudaError_t FreeOnStream(void* ptr, cudaStream_t stream) {
  if (!IsStream(stream)) return Fail(cudaErrorInvalidResourceHandle);
  if (ptr == nullptr) return Fail(cudaErrorInvalidValue);
  return Release(
      ptr, Bit(FAKE_CUDA_STREAM_ORDERED) | Bit(FAKE_CUDA_IMPORTED) | Bit(FAKE_CUDA_MANAGED) | Bit(FAKE_CUDA_HOST));
}

}  // namespace

#define FAKE_CUDA_ENTER()                                 \
  do {                                                    \
    const int injected_error = fake_cuda_enter(__func__); \
    if (injected_error != 0) return Fail(injected_error); \
  } while (false)

extern "C" {

// --- Devices and errors. ---

cudaError_t cudaGetDeviceCount(int* count) {
  FAKE_CUDA_ENTER();
  *count = fake_cuda_device_count();
  return *count > 0 ? cudaSuccess : Fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  FAKE_CUDA_ENTER();
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  FAKE_CUDA_ENTER();
  if (device < 0 || device >= fake_cuda_device_count()) return Fail(cudaErrorInvalidDevice);
  current_device = device;
  fake_cuda_use_device(device);
  return cudaSuccess;
}

cudaError_t cudaDeviceReset(void) {
  FAKE_CUDA_ENTER();
  fake_cuda_reset_device(current_device);
  return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    default:
      return "unknown error";
  }
}

// --- Linear memory. ---

cudaError_t cudaMalloc(void** ptr, size_t bytes) {
  FAKE_CUDA_ENTER();
  if (auto* driver_call = DriverCall<int(void**, size_t)>("cuMemAlloc_v2")) {
    fake_cuda_use_device(current_device);
    return static_cast<cudaError_t>(driver_call(ptr, bytes));
  }
  return Allocate(current_device, bytes, FAKE_CUDA_DEVICE, ptr);
}

cudaError_t cudaMallocManaged(void** ptr, size_t bytes, unsigned int) {
  FAKE_CUDA_ENTER();
  if (bytes == 0) return Fail(cudaErrorInvalidValue);
  return Allocate(current_device, bytes, FAKE_CUDA_MANAGED, ptr);
}

cudaError_t cudaMallocPitch(void** ptr, size_t* pitch, size_t width, size_t height) {
  FAKE_CUDA_ENTER();
  *pitch = RoundUpToPitch(width);
  return Allocate(current_device, *pitch * height, FAKE_CUDA_DEVICE, ptr);
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  FAKE_CUDA_ENTER();
  pitched->pitch = RoundUpToPitch(extent.width);
  pitched->xsize = extent.width;
  pitched->ysize = extent.height;
  return Allocate(current_device, pitched->pitch * extent.height * extent.depth, FAKE_CUDA_DEVICE, &pitched->ptr);
}

cudaError_t cudaFree(void* ptr) {
  FAKE_CUDA_ENTER();
  if (auto* driver_call = DriverCall<int(void*)>("cuMemFree_v2")) return static_cast<cudaError_t>(driver_call(ptr));
  return Release(
      ptr, Bit(FAKE_CUDA_DEVICE) | Bit(FAKE_CUDA_STREAM_ORDERED) | Bit(FAKE_CUDA_MANAGED) | Bit(FAKE_CUDA_IMPORTED));
}

// --- Host memory. ---

cudaError_t cudaMallocHost(void** ptr, size_t bytes) {
  FAKE_CUDA_ENTER();
  return Allocate(current_device, bytes, FAKE_CUDA_HOST, ptr);
}

cudaError_t cudaHostAlloc(void** ptr, size_t bytes, unsigned int) {
  FAKE_CUDA_ENTER();
  return Allocate(current_device, bytes, FAKE_CUDA_HOST, ptr);
}

cudaError_t cudaFreeHost(void* ptr) {
  FAKE_CUDA_ENTER();
  return Release(ptr, Bit(FAKE_CUDA_HOST));
}

cudaError_t cudaHostRegister(void* ptr, size_t bytes, unsigned int) {
  FAKE_CUDA_ENTER();
  if (ptr == nullptr || bytes == 0) return Fail(cudaErrorInvalidValue);
  fake_cuda_use_device(current_device);
  return fake_cuda_adopt(current_device, ptr, bytes, FAKE_CUDA_REGISTERED) != 0
             ? cudaSuccess
             : Fail(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* ptr) {
  FAKE_CUDA_ENTER();
  return fake_cuda_release(ptr, Bit(FAKE_CUDA_REGISTERED)) != 0 ? cudaSuccess : Fail(cudaErrorHostMemoryNotRegistered);
}

// --- Streams and pools. ---

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  FAKE_CUDA_ENTER();
  fake_cuda_use_device(current_device);
  *stream = reinterpret_cast<cudaStream_t>(NewObject('s'));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  FAKE_CUDA_ENTER();
  return Destroy(Find(stream, 's'));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAKE_CUDA_ENTER();
  return IsStream(stream) ? cudaSuccess : Fail(cudaErrorInvalidResourceHandle);
}

// A stream has no work, so an event has always happened. An event is a number, because a program may use one that
// another thread destroys at the same time.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  FAKE_CUDA_ENTER();
  *event = reinterpret_cast<cudaEvent_t>(Events().Add());
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  FAKE_CUDA_ENTER();
  return Events().Remove(event) ? cudaSuccess : Fail(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  FAKE_CUDA_ENTER();
  return Events().Has(event) ? cudaSuccess : Fail(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAKE_CUDA_ENTER();
  return Events().Has(event) ? cudaSuccess : Fail(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = reinterpret_cast<uintptr_t>(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FAKE_CUDA_ENTER();
  if (Find(stream, 's') == nullptr) return Fail(cudaErrorStreamCaptureUnsupported);
  return static_cast<cudaError_t>(cuStreamBeginCapture_v2(stream, mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  FAKE_CUDA_ENTER();
  if (Find(stream, 's') == nullptr) return Fail(cudaErrorInvalidResourceHandle);
  return static_cast<cudaError_t>(cuStreamEndCapture(stream, reinterpret_cast<void**>(graph)));
}

cudaError_t cudaMallocAsync(void** ptr, size_t bytes, cudaStream_t stream) {
  FAKE_CUDA_ENTER();
  return MallocOnStream(ptr, bytes, stream);
}

cudaError_t cudaMallocAsync_ptsz(void** ptr, size_t bytes, cudaStream_t stream) {
  FAKE_CUDA_ENTER();
  return MallocOnStream(ptr, bytes, stream);
}

cudaError_t cudaMallocFromPoolAsync(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  FAKE_CUDA_ENTER();
  return MallocFromPool(ptr, bytes, pool, stream);
}

cudaError_t cudaMallocFromPoolAsync_ptsz(void** ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  FAKE_CUDA_ENTER();
  return MallocFromPool(ptr, bytes, pool, stream);
}

cudaError_t cudaFreeAsync(void* ptr, cudaStream_t stream) {
  FAKE_CUDA_ENTER();
  return FreeOnStream(ptr, stream);
}

cudaError_t cudaFreeAsync_ptsz(void* ptr, cudaStream_t stream) {
  FAKE_CUDA_ENTER();
  return FreeOnStream(ptr, stream);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  FAKE_CUDA_ENTER();
  Object* object = NewObject('p');
  if (properties->location.type == cudaMemLocationTypeDevice) object->device = properties->location.id;
  if (properties->location.type == cudaMemLocationTypeHost) object->kind = FAKE_CUDA_HOST;
#if CUDART_VERSION >= 13000
  if (properties->allocType == cudaMemAllocationTypeManaged) object->kind = FAKE_CUDA_MANAGED;
#endif
  *pool = reinterpret_cast<cudaMemPool_t>(object);
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  FAKE_CUDA_ENTER();
  return Destroy(Find(pool, 'p'));
}

}  // extern "C"
