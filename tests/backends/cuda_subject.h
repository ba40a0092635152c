// CudaAllocator on device 0 as the subject of the contract suites; on the fake CUDA runtime or on a real one.
#ifndef HBMPROF_TESTS_BACKENDS_CUDA_SUBJECT_H_
#define HBMPROF_TESTS_BACKENDS_CUDA_SUBJECT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gtest/gtest.h"
#include "hbmprof/cuda.h"
#include "tests/contract/subject.h"

namespace hbmprof {

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
  cuda::CudaAllocator allocator_{0};
  cudaStream_t streams_[2] = {};
};

}  // namespace hbmprof

#endif  // HBMPROF_TESTS_BACKENDS_CUDA_SUBJECT_H_
