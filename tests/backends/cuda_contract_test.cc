// The contract suites on CudaAllocator, bare and tracked, on the double of the CUDA runtime.
#include <cuda_runtime_api.h>

#include <memory>

#include "gtest/gtest.h"
#include "hbmprof/cuda.h"
#include "hbmprof/profiler.h"
#include "tests/contract/device_allocator_contract.h"
#include "tests/contract/tracking_contract.h"
#include "tests/support/fake_cudart/fake_cuda.h"

namespace hbmprof {
namespace {

constexpr size_t kCapacity = size_t{4} << 20;

class CudaSubject : public ContractSubject {
 public:
  CudaSubject() {
    fake_cuda_reset(1, kCapacity + fake_cuda_context_bytes());
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

class TrackedCudaSubject : public CudaSubject {
 public:
  DeviceAllocator& allocator() override { return tracker_; }

 private:
  Profiler profiler_;
  TrackingAllocator tracker_{CudaSubject::allocator(), "tracked", profiler_};
};

template <typename Subject>
ContractCase Case(const char* name) {
  ContractCase c;
  c.name = name;
  c.make = [] { return std::make_unique<Subject>(); };
  c.capacity = kCapacity;
  return c;
}

const auto kCases =
    ::testing::Values(Case<CudaSubject>("CudaAllocator"), Case<TrackedCudaSubject>("TrackedCudaAllocator"));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceAllocatorContract, kCases, ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Cuda, TrackingContract, kCases, ContractCaseName);

}  // namespace
}  // namespace hbmprof
