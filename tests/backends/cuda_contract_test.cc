// The contract suites on an allocator of CUDA memory, untracked and tracked, on the fake CUDA runtime.
#include <memory>

#include "gtest/gtest.h"
#include "tests/backends/cuda_subject.h"
#include "tests/contract/device_allocator_contract.h"
#include "tests/contract/tracking_contract.h"
#include "tests/support/fake_cudart/fake_cuda.h"

namespace hbmprof {
namespace {

constexpr size_t kCapacity = size_t{4} << 20;

template <typename Subject>
ContractCase Case(const char* name) {
  ContractCase c;
  c.name = name;
  c.make = [] {
    fake_cuda_reset(1, kCapacity + fake_cuda_context_bytes());
    return std::make_unique<Subject>();
  };
  c.capacity = kCapacity;
  return c;
}

const auto kCases =
    ::testing::Values(Case<CudaSubject>("CudaMemory"), Case<TrackedSubject<CudaSubject>>("TrackedCudaMemory"));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceAllocatorContract, kCases, ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Cuda, TrackingContract, kCases, ContractCaseName);

}  // namespace
}  // namespace hbmprof
