// hbmprof::cuda on the real CUDA runtime and a real GPU: the behaviour that tests/support/fake_cudart imitates, and the
// allocator contracts. Skips with the reason if there is no usable GPU.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/cuda.h"
#include "hbmprof/profiler.h"
#include "tests/backends/cuda_subject.h"
#include "tests/contract/device_allocator_contract.h"
#include "tests/contract/tracking_contract.h"

namespace hbmprof {
namespace {

// Returns the reason why these tests cannot run; "" if they can.
std::string NoGpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return "";
  static_cast<void>(cudaGetLastError());
  return std::string("no usable GPU: ") + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
}

class CudaGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = NoGpu();
    if (!why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(LiveRecords(), 0);
  }
  static Profiler& profiler() { return Profiler::Default(); }
  static int64_t LiveRecords() { return profiler().GetTrackerStats().live_records; }
  static DeviceId Gpu() { return profiler().Device("GPU:0"); }
  static DeviceStats Stats(MemorySpace space = MemorySpace::kDevice) { return profiler().Stats(Gpu(), space); }
  // Size and kind as recorded, on GPU:0.
  static void ExpectRecorded(BufferId id, size_t bytes, MemoryKind kind) {
    const auto buffer = profiler().FindBuffer(id);
    ASSERT_TRUE(buffer.has_value());
    EXPECT_EQ(buffer->bytes, static_cast<int64_t>(bytes));
    EXPECT_EQ(buffer->attributes.kind, kind);
    EXPECT_EQ(buffer->attributes.device, Gpu());
  }
};

TEST_F(CudaGpuTest, LinearMemoryIsRecorded) {
  float* ptr = nullptr;
  ASSERT_EQ(cuda::Malloc(&ptr, 1 << 20), cudaSuccess);
  ExpectRecorded(ptr, 1 << 20, MemoryKind::kDevice);
  EXPECT_EQ(cudaMemset(ptr, 0, 1 << 20), cudaSuccess);

  size_t pitch = 0;
  void* pitched = nullptr;
  ASSERT_EQ(cuda::MallocPitch(&pitched, &pitch, 1000, 30), cudaSuccess);
  ExpectRecorded(pitched, pitch * 30, MemoryKind::kDevice);

  cudaPitchedPtr volume = {};
  ASSERT_EQ(cuda::Malloc3D(&volume, {100, 20, 5}), cudaSuccess);
  ExpectRecorded(volume.ptr, volume.pitch * 20 * 5, MemoryKind::kDevice);

  EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
  EXPECT_EQ(cuda::Free(pitched), cudaSuccess);
  EXPECT_EQ(cuda::Free(volume.ptr), cudaSuccess);
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(LiveRecords(), 0);
}

TEST_F(CudaGpuTest, ManagedAndPinnedHaveTheirOwnSpace) {
  void* managed = nullptr;
  ASSERT_EQ(cuda::MallocManaged(&managed, 4096), cudaSuccess);
  ExpectRecorded(managed, 4096, MemoryKind::kManaged);
  void* pinned = nullptr;
  ASSERT_EQ(cuda::MallocHost(&pinned, 8192), cudaSuccess);
  ExpectRecorded(pinned, 8192, MemoryKind::kPinnedHost);
  void* mapped = nullptr;
  ASSERT_EQ(cuda::HostAlloc(&mapped, 4096, cudaHostAllocMapped), cudaSuccess);
  std::vector<char> own(1 << 16);
  ASSERT_EQ(cuda::HostRegister(own.data(), own.size(), cudaHostRegisterDefault), cudaSuccess);
  ExpectRecorded(own.data(), own.size(), MemoryKind::kPinnedHost);
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(cuda::Free(managed), cudaSuccess);
  EXPECT_EQ(cuda::FreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cuda::FreeHost(mapped), cudaSuccess);
  EXPECT_EQ(cuda::HostUnregister(own.data()), cudaSuccess);
  EXPECT_EQ(LiveRecords(), 0);
}

TEST_F(CudaGpuTest, StreamOrderedMemoryIsFreedByBothFrees) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  void* a = nullptr;
  void* b = nullptr;
  ASSERT_EQ(cuda::MallocAsync(&a, 5000, stream), cudaSuccess);
  ASSERT_EQ(cuda::MallocAsync(&b, 6000, nullptr), cudaSuccess);
  ExpectRecorded(a, 5000, MemoryKind::kDevice);
  ExpectRecorded(b, 6000, MemoryKind::kDevice);

  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaMemPoolCreate(&pool, &properties), cudaSuccess);
  void* c = nullptr;
  ASSERT_EQ(cuda::MallocFromPoolAsync(&c, 7000, pool, stream), cudaSuccess);
  ExpectRecorded(c, 7000, MemoryKind::kDevice);

  EXPECT_EQ(cuda::FreeAsync(a, stream), cudaSuccess);
  EXPECT_EQ(cuda::Free(b), cudaSuccess);
  EXPECT_EQ(cuda::FreeAsync(c, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaMemPoolDestroy(pool), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(LiveRecords(), 0);
}

TEST_F(CudaGpuTest, CapturedMemoryIsOfKindGraph) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  void* ptr = nullptr;
  ASSERT_EQ(cuda::MallocAsync(&ptr, 4096, stream), cudaSuccess);
  ExpectRecorded(ptr, 4096, MemoryKind::kGraph);
  EXPECT_EQ(cuda::FreeAsync(ptr, stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "asking for the device did not disturb it";
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(LiveRecords(), 0);
}

TEST_F(CudaGpuTest, FailuresAreReturnedAndNotRecorded) {
  void* ptr = nullptr;
  EXPECT_EQ(cuda::Malloc(&ptr, size_t{1} << 50), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda::MallocAsync(&ptr, size_t{1} << 50, nullptr), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(LiveRecords(), 0);

  ASSERT_EQ(cuda::Malloc(&ptr, 4096), cudaSuccess);
  EXPECT_EQ(cuda::FreeHost(ptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  ExpectRecorded(ptr, 4096, MemoryKind::kDevice);
  EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
  EXPECT_EQ(cuda::Free(nullptr), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaGpuTest, UntrackedMemoryIsUnaccounted) {
  void* tracked = nullptr;
  ASSERT_EQ(cuda::Malloc(&tracked, size_t{256} << 20), cudaSuccess);
  const DeviceStats before = Stats();
  ASSERT_TRUE(before.unaccounted.has_value());
  size_t free = 0;
  size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(before.bytes_limit, static_cast<int64_t>(total));
  EXPECT_GE(before.driver_bytes_in_use, int64_t{256} << 20);

  void* untracked = nullptr;
  ASSERT_EQ(cudaMalloc(&untracked, size_t{64} << 20), cudaSuccess);
  // Another process can use the device too, so only lower bounds are checked.
  EXPECT_GE(*Stats().unaccounted - *before.unaccounted, int64_t{64} << 20);
  EXPECT_EQ(cudaFree(untracked), cudaSuccess);
  EXPECT_EQ(cuda::Free(tracked), cudaSuccess);
}

TEST_F(CudaGpuTest, ProbeWorksOnThreadWithoutCuda) {
  void* ptr = nullptr;
  ASSERT_EQ(cuda::Malloc(&ptr, 4096), cudaSuccess);
  std::thread([] { EXPECT_TRUE(Stats().unaccounted.has_value()); }).join();
  EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
}

TEST_F(CudaGpuTest, ResetDropsTheDevicesMemory) {
  void* ptr = nullptr;
  ASSERT_EQ(cuda::Malloc(&ptr, 4096), cudaSuccess);
  ASSERT_EQ(cuda::DeviceReset(), cudaSuccess);
  EXPECT_EQ(Stats().bytes_in_use, 0);
  EXPECT_EQ(LiveRecords(), 0);
  EXPECT_FALSE(Stats().unaccounted.has_value()) << "there is no context, and none is made for the query";
  ASSERT_EQ(cuda::Malloc(&ptr, 4096), cudaSuccess);
  EXPECT_EQ(cuda::Free(ptr), cudaSuccess);
}

ContractCase GpuCase() {
  ContractCase c;
  c.name = "CudaMemory";
  c.make = [] { return std::make_unique<CudaSubject>(); };
  c.unavailable = NoGpu;
  return c;
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceAllocatorContract, ::testing::Values(GpuCase()), ContractCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, TrackingContract, ::testing::Values(GpuCase()), ContractCaseName);

}  // namespace
}  // namespace hbmprof
