// CudaAllocator: the runtime's calls as a DeviceAllocator. Records nothing.
#include <string>

#include "absl/strings/str_cat.h"
#include "hbmprof/cuda.h"
#include "src/backends/cuda/runtime/queries.h"

namespace hbmprof::cuda {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidResourceHandle:
      return absl::StatusCode::kInvalidArgument;
    case cudaErrorNotSupported:
      return absl::StatusCode::kUnimplemented;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Returns the status of `error`; `what` names the call and its argument. Clears the runtime's last-error state.
absl::Status ToStatus(cudaError_t error, const std::string& what, int ordinal) {
  static_cast<void>(cudaGetLastError());
  return absl::Status(CodeOf(error), absl::StrCat(what, " on ", internal::CudaDeviceName(ordinal), ": ",
                                                  cudaGetErrorName(error), " (", cudaGetErrorString(error), ")"));
}

std::string AddressText(const void* ptr) { return absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(ptr))); }

// Makes a device the thread's current one for a scope.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal) {
    error_ = cudaGetDevice(&before_);
    if (error_ != cudaSuccess || before_ == ordinal) return;
    error_ = cudaSetDevice(ordinal);
    changed_ = error_ == cudaSuccess;
  }
  ~ScopedDevice() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  cudaError_t error_ = cudaSuccess;
  bool changed_ = false;
};

template <typename Call>
absl::StatusOr<void*> AllocateOn(int ordinal, const char* name, size_t bytes, const Call& call) {
  if (bytes == 0) return nullptr;
  const ScopedDevice device(ordinal);
  if (device.error() != cudaSuccess) return ToStatus(device.error(), "cudaSetDevice", ordinal);
  void* ptr = nullptr;
  const cudaError_t error = call(&ptr);
  if (error != cudaSuccess) return ToStatus(error, absl::StrCat(name, " of ", bytes, " bytes"), ordinal);
  return ptr;
}

template <typename Call>
absl::Status FreeOn(int ordinal, const char* name, void* ptr, const Call& call) {
  if (ptr == nullptr) return absl::OkStatus();
  const ScopedDevice device(ordinal);
  if (device.error() != cudaSuccess) return ToStatus(device.error(), "cudaSetDevice", ordinal);
  const cudaError_t error = call();
  if (error != cudaSuccess) return ToStatus(error, absl::StrCat(name, " of ", AddressText(ptr)), ordinal);
  return absl::OkStatus();
}

cudaStream_t ToStream(StreamId stream) { return reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(stream)); }

}  // namespace

absl::StatusOr<void*> CudaAllocator::Allocate(size_t bytes) {
  switch (kind_) {
    case MemoryKind::kDevice:
      return AllocateOn(ordinal_, "cudaMalloc", bytes, [&](void** ptr) { return cudaMalloc(ptr, bytes); });
    case MemoryKind::kManaged:
      return AllocateOn(ordinal_, "cudaMallocManaged", bytes,
                        [&](void** ptr) { return cudaMallocManaged(ptr, bytes, cudaMemAttachGlobal); });
    case MemoryKind::kPinnedHost:
      return AllocateOn(ordinal_, "cudaMallocHost", bytes, [&](void** ptr) { return cudaMallocHost(ptr, bytes); });
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("CudaAllocator cannot allocate memory of kind ", std::string(MemoryKindName(kind_))));
  }
}

absl::Status CudaAllocator::Free(void* ptr) {
  if (kind_ == MemoryKind::kPinnedHost) {
    return FreeOn(ordinal_, "cudaFreeHost", ptr, [&] { return cudaFreeHost(ptr); });
  }
  return FreeOn(ordinal_, "cudaFree", ptr, [&] { return cudaFree(ptr); });
}

absl::StatusOr<void*> CudaAllocator::AllocateAsync(size_t bytes, StreamId stream) {
  if (kind_ != MemoryKind::kDevice) return Allocate(bytes);
  return AllocateOn(ordinal_, "cudaMallocAsync", bytes,
                    [&](void** ptr) { return cudaMallocAsync(ptr, bytes, ToStream(stream)); });
}

absl::Status CudaAllocator::FreeAsync(void* ptr, StreamId stream) {
  if (kind_ != MemoryKind::kDevice) return Free(ptr);
  return FreeOn(ordinal_, "cudaFreeAsync", ptr, [&] { return cudaFreeAsync(ptr, ToStream(stream)); });
}

std::string CudaAllocator::device_name() const { return internal::CudaDeviceName(ordinal_); }

DeviceProbe CudaAllocator::Probe() const { return internal::ProbeCudaDevice(ordinal_); }

}  // namespace hbmprof::cuda
