// CudaAllocator on the fake CUDA runtime: errors, devices, kinds, probe, and tracking. Not in this file: the contract
// of every DeviceAllocator (cuda_contract_test.cc).
#include <cuda_runtime_api.h>

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/cuda.h"
#include "hbmprof/device_allocator.h"
#include "tests/support/fake_cudart/fake_cuda.h"

namespace hbmprof::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_reset(2, size_t{1} << 20 << 4);
    static_cast<void>(cudaGetLastError());
  }
  void TearDown() override { EXPECT_EQ(fake_cuda_live_objects(), 0); }

  static int CurrentDevice() {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    return device;
  }
};

TEST_F(CudaAllocatorTest, OutOfMemoryErrorNamesTheCall) {
  CudaAllocator allocator(1);
  const absl::Status status = allocator.Allocate(size_t{1} << 40).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "cudaMalloc of 1099511627776 bytes on GPU:1: cudaErrorMemoryAllocation (out of memory)");
  EXPECT_EQ(allocator.AllocateAsync(size_t{1} << 40, 0).status().message(),
            "cudaMallocAsync of 1099511627776 bytes on GPU:1: cudaErrorMemoryAllocation (out of memory)");
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "the status has it; the program must not find it again";
}

TEST_F(CudaAllocatorTest, BadFreeNamesTheAddress) {
  CudaAllocator allocator(0);
  const absl::Status status = allocator.Free(reinterpret_cast<void*>(0x1000));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "cudaFree of 0x1000 on GPU:0: cudaErrorInvalidValue (invalid argument)");
}

TEST_F(CudaAllocatorTest, CudaErrorsMapToStatusCodes) {
  CudaAllocator allocator(0);
  for (const auto& [error, code] : {std::pair(cudaErrorMemoryAllocation, absl::StatusCode::kResourceExhausted),
                                    std::pair(cudaErrorInvalidValue, absl::StatusCode::kInvalidArgument),
                                    std::pair(cudaErrorInvalidResourceHandle, absl::StatusCode::kInvalidArgument),
                                    std::pair(cudaErrorNotSupported, absl::StatusCode::kUnimplemented),
                                    std::pair(cudaErrorNoDevice, absl::StatusCode::kUnavailable),
                                    std::pair(cudaErrorIllegalAddress, absl::StatusCode::kInternal)}) {
    fake_cuda_fail("cudaMalloc", error, 0);
    EXPECT_EQ(allocator.Allocate(100).status().code(), code) << error;
  }
}

TEST_F(CudaAllocatorTest, MissingDeviceIsInvalidArgument) {
  CudaAllocator allocator(7);
  const absl::Status status = allocator.Allocate(100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cudaSetDevice"), HasSubstr("GPU:7")));
  EXPECT_EQ(allocator.Probe().bytes_limit, std::nullopt);
}

TEST_F(CudaAllocatorTest, AllocatesOnItsDeviceAndKeepsCurrentOne) {
  CudaAllocator allocator(1);
  const size_t before = fake_cuda_context_bytes();
  ASSERT_EQ(CurrentDevice(), 0);
  void* plain = allocator.Allocate(1000).value();
  void* async = allocator.AllocateAsync(1000, 0).value();
  EXPECT_EQ(CurrentDevice(), 0);
  EXPECT_EQ(fake_cuda_bytes_in_use(1), before + 2048);
  EXPECT_TRUE(allocator.Free(plain).ok());
  EXPECT_TRUE(allocator.FreeAsync(async, 0).ok());
  EXPECT_EQ(CurrentDevice(), 0);
  EXPECT_EQ(fake_cuda_bytes_in_use(1), before);
}

TEST_F(CudaAllocatorTest, KeepsCorrectCurrentDevice) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  CudaAllocator allocator(1);
  const int64_t before = fake_cuda_calls("cudaSetDevice");
  EXPECT_TRUE(allocator.Free(allocator.Allocate(1000).value()).ok());
  EXPECT_EQ(fake_cuda_calls("cudaSetDevice"), before);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(CudaAllocatorTest, AllocatesManagedAndPinnedByKind) {
  CudaAllocator managed(0, MemoryKind::kManaged);
  CudaAllocator pinned(0, MemoryKind::kPinnedHost);
  void* m = managed.AllocateAsync(100, 0).value();
  void* p = pinned.AllocateAsync(100, 0).value();
  EXPECT_EQ(fake_cuda_calls("cudaMallocManaged"), 1);
  EXPECT_EQ(fake_cuda_calls("cudaMallocHost"), 1);
  EXPECT_EQ(managed.kind(), MemoryKind::kManaged);
  EXPECT_TRUE(managed.FreeAsync(m, 0).ok());
  EXPECT_TRUE(pinned.FreeAsync(p, 0).ok());
  EXPECT_EQ(fake_cuda_calls("cudaFreeHost"), 1);
}

TEST_F(CudaAllocatorTest, RefusesUnsupportedKind) {
  CudaAllocator allocator(0, MemoryKind::kVmm);
  EXPECT_EQ(allocator.Allocate(100).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaAllocatorTest, ProbeNeverInitializesTheDevice) {
  CudaAllocator allocator(1);
  EXPECT_EQ(allocator.Probe().driver_bytes_in_use, std::nullopt);
  EXPECT_FALSE(fake_cuda_context_active(1));
  void* ptr = allocator.Allocate(1000).value();
  EXPECT_EQ(allocator.Probe().bytes_limit, int64_t{16} << 20);
  EXPECT_EQ(allocator.Probe().driver_bytes_in_use, std::nullopt) << "only the thread's own context is queried";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(allocator.Probe().driver_bytes_in_use, static_cast<int64_t>(fake_cuda_bytes_in_use(1)));
  EXPECT_EQ(allocator.Probe().bytes_limit, int64_t{16} << 20);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(fake_cuda_calls("cuDevicePrimaryCtxRetain"), 0);
  EXPECT_EQ(allocator.Probe().largest_free_block_bytes, std::nullopt) << "CUDA does not say";
  EXPECT_TRUE(allocator.Free(ptr).ok());
}

TEST_F(CudaAllocatorTest, TrackedCountsEachAllocationOnce) {
  Profiler& profiler = Profiler::Default();
  CudaAllocator upstream(0);
  TrackingAllocator allocator(upstream, "weights");
  void* plain = allocator.Allocate(1000).value();
  void* async = allocator.AllocateAsync(500, 0).value();
  const DeviceStats stats = profiler.Stats(allocator.device());
  EXPECT_EQ(stats.bytes_in_use, 1500);
  EXPECT_EQ(stats.num_allocs, 2);
  EXPECT_EQ(stats.bytes_limit, int64_t{16} << 20);
  EXPECT_EQ(allocator.device(), profiler.Device("GPU:0"));
  EXPECT_EQ(profiler.FindBuffer(plain)->attributes.allocator, profiler.Allocator("weights"));
  EXPECT_TRUE(allocator.FreeAsync(async, 0).ok());
  EXPECT_TRUE(allocator.Free(plain).ok());
  EXPECT_EQ(profiler.Stats(allocator.device()).bytes_in_use, 0);
  EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
}

}  // namespace
}  // namespace hbmprof::cuda
