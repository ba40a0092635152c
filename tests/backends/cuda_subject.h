// An allocator of CUDA's device 0 as the subject of the contract suites; on the fake CUDA runtime or on a real one.
#ifndef HBMPROF_TESTS_BACKENDS_CUDA_SUBJECT_H_
#define HBMPROF_TESTS_BACKENDS_CUDA_SUBJECT_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "hbmprof/device_allocator.h"
#include "tests/contract/subject.h"

namespace hbmprof {

// As a program writes it that has an allocator class.
class CudaMemory : public DeviceAllocator {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    return Allocated(bytes, [&](void** ptr) { return cudaMalloc(ptr, bytes); });
  }
  absl::Status Free(void* ptr) override { return Freed(cudaFree(ptr)); }
  absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream) override {
    return Allocated(bytes, [&](void** ptr) { return cudaMallocAsync(ptr, bytes, ToStream(stream)); });
  }
  absl::Status FreeAsync(void* ptr, StreamId stream) override {
    return ptr == nullptr ? absl::OkStatus() : Freed(cudaFreeAsync(ptr, ToStream(stream)));
  }
  std::string device_name() const override { return "GPU:0"; }

 private:
  static cudaStream_t ToStream(StreamId stream) {
    return reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(stream));
  }
  template <typename Call>
  static absl::StatusOr<void*> Allocated(size_t bytes, const Call& call) {
    void* ptr = nullptr;
    const cudaError_t error = bytes == 0 ? cudaSuccess : call(&ptr);
    if (error == cudaSuccess) return ptr;
    static_cast<void>(cudaGetLastError());
    const auto code =
        error == cudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal;
    return absl::Status(code, cudaGetErrorString(error));
  }
  static absl::Status Freed(cudaError_t error) {
    if (error == cudaSuccess) return absl::OkStatus();
    static_cast<void>(cudaGetLastError());
    return absl::InvalidArgumentError(cudaGetErrorString(error));
  }
};

class CudaSubject : public ContractSubject {
 public:
  CudaSubject() {
    cudaSetDevice(0);
    for (cudaStream_t& stream : streams_) cudaStreamCreate(&stream);
  }
  ~CudaSubject() override {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  DeviceAllocator& allocator() override { return allocator_; }
  StreamId stream(int index) override { return reinterpret_cast<uintptr_t>(streams_[index]); }
  void Synchronize(StreamId stream) override {
    EXPECT_EQ(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(stream))), cudaSuccess);
  }

 private:
  CudaMemory allocator_;
  cudaStream_t streams_[2] = {};
};

}  // namespace hbmprof

#endif  // HBMPROF_TESTS_BACKENDS_CUDA_SUBJECT_H_
