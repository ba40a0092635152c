// TrackingCachingAllocator: the toolkit's CUB on the fake runtime.
#include "hbmprof/adapters/cub.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "tests/adapters/adapter_tests.h"
#include "tests/support/fake_cudart/fake_cuda.h"

namespace hbmprof::adapters {
namespace {

using adapter_tests::ExpectBeginsIn;
using adapter_tests::ExpectNoLosses;
using adapter_tests::InUse;
using adapter_tests::OperateAtRandom;
using adapter_tests::OutOfMemoryReports;
using adapter_tests::StackOf;

constexpr size_t kMiB = 1 << 20;

// Frees a block. CUB lets another thread take the block before it records the block's event, and that thread may have
// destroyed the event by then; this is no error of the program.
void Free(TrackingCachingAllocator& allocator, int device, void* memory) {
  const cudaError_t error = allocator.DeviceFree(device, memory);
  EXPECT_TRUE(error == cudaSuccess || error == cudaErrorInvalidResourceHandle) << error;
}

class CubTest : public testing::Test {
 protected:
  CubTest() {
    fake_cuda_reset(2, size_t{1} << 30);
    cudaSetDevice(0);  // after a failure, CUB leaves another device current
  }

  // Expects that the sums of the profiler equal the counters of CUB and of the device, for each device.
  void ExpectExact(TrackingCachingAllocator& allocator, int device) {
    const std::string name = "GPU:" + std::to_string(device);
    const auto counters = allocator.cached_bytes[device];
    EXPECT_EQ(InUse(profiler_, name, MemoryKind::kDevice), static_cast<int64_t>(counters.live)) << name;
    EXPECT_EQ(InUse(profiler_, name, MemoryKind::kPool), static_cast<int64_t>(counters.free)) << name;
    EXPECT_EQ(InUse(profiler_, name), static_cast<int64_t>(counters.live + counters.free)) << name;
  }

  Profiler profiler_;
};

[[gnu::noinline]] uintptr_t User(TrackingCachingAllocator& allocator, size_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(allocator.DeviceAllocate(&memory, bytes), cudaSuccess);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserOfDevice(TrackingCachingAllocator& allocator, size_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(allocator.DeviceAllocate(1, &memory, bytes), cudaSuccess);
  return RETURNS_TO;
}

TEST_F(CubTest, StackBeginsAtTheCaller) {
  TrackingCachingAllocator allocator(profiler_);
  const uintptr_t user = User(allocator, 512);  // a bin's size
  ExpectBeginsIn(StackOf(profiler_, 512), user);
  const uintptr_t user_of_device = UserOfDevice(allocator, 4096);
  ExpectBeginsIn(StackOf(profiler_, 4096), user_of_device);
}

TEST_F(CubTest, RandomOperationsAreExact) {
  // The cache is small, so memory is often returned to CUDA.
  TrackingCachingAllocator allocator(profiler_, 2, 6, 14, 256 << 10);
  const auto live = OperateAtRandom(
      [&](size_t bytes) {
        void* memory = nullptr;
        EXPECT_EQ(allocator.DeviceAllocate(static_cast<int>(bytes % 2), &memory, bytes), cudaSuccess);
        return memory;
      },
      [&](void* memory, size_t bytes) { Free(allocator, static_cast<int>(bytes % 2), memory); });
  for (int device : {0, 1}) {
    ExpectExact(allocator, device);
    EXPECT_GT(allocator.cached_bytes[device].live, 0u);
    EXPECT_GT(allocator.cached_bytes[device].free, 0u);
  }
  EXPECT_EQ(allocator.FreeAllCached(), cudaSuccess);
  for (int device : {0, 1}) ExpectExact(allocator, device);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPool), 0);
  for (const auto& [memory, bytes] : live) {
    EXPECT_EQ(allocator.DeviceFree(static_cast<int>(bytes % 2), memory), cudaSuccess);
  }
  for (int device : {0, 1}) ExpectExact(allocator, device);
  EXPECT_EQ(profiler_.GetTrackerStats().dropped_records, 0);
}

TEST_F(CubTest, FreeAllCachedWhileOthersAllocateIsExact) {
  TrackingCachingAllocator allocator(profiler_);
  std::atomic<bool> done{false};
  std::thread trimmer([&] {
    for (; !done; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      EXPECT_EQ(allocator.FreeAllCached(), cudaSuccess);
    }
  });
  OperateAtRandom(
      [&](size_t bytes) {
        void* memory = nullptr;
        EXPECT_EQ(allocator.DeviceAllocate(&memory, bytes), cudaSuccess);
        return memory;
      },
      [&](void* memory, size_t) { Free(allocator, 0, memory); });
  done = true;
  trimmer.join();
  ExpectExact(allocator, 0);
}

TEST_F(CubTest, CacheIsIdleMemory) {
  TrackingCachingAllocator allocator(profiler_);
  void* memory = nullptr;
  ASSERT_EQ(allocator.DeviceAllocate(&memory, 1000), cudaSuccess);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kDevice), 4096) << "as CUB has rounded it up";
  ASSERT_EQ(allocator.DeviceFree(memory), cudaSuccess);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kDevice), 0);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPool), 4096);
  void* again = nullptr;
  ASSERT_EQ(allocator.DeviceAllocate(&again, 600), cudaSuccess);
  EXPECT_EQ(again, memory);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 4096);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPool), 0);
}

TEST_F(CubTest, DestructorEndsTheCache) {
  {
    TrackingCachingAllocator allocator(profiler_);
    void* memory = nullptr;
    ASSERT_EQ(allocator.DeviceAllocate(&memory, 1000), cudaSuccess);
    ASSERT_EQ(allocator.DeviceFree(memory), cudaSuccess);
    EXPECT_EQ(InUse(profiler_, "GPU:0"), 4096);
  }
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
  ExpectNoLosses(profiler_);
}

TEST_F(CubTest, ErrorsPassUnchanged) {
  TrackingCachingAllocator allocator(profiler_, 8, 3, 7, 0);  // nothing stays in the cache
  void* memory = nullptr;
  ASSERT_EQ(allocator.DeviceAllocate(&memory, 4096), cudaSuccess);
  fake_cuda_fail("cudaFree", cudaErrorIllegalAddress, 0);
  EXPECT_EQ(allocator.DeviceFree(memory), cudaErrorIllegalAddress);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
  EXPECT_EQ(profiler_.GetTrackerStats().refused_frees, 1);
  fake_cuda_fail("cudaEventCreateWithFlags", cudaErrorIllegalAddress, 0);
  void* other = nullptr;
  EXPECT_EQ(allocator.DeviceAllocate(&other, 4096), cudaErrorIllegalAddress);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
}

TEST_F(CubTest, BlockThatTheCacheKeepsIsRecordedWhenItIsUsed) {
  TrackingCachingAllocator allocator(profiler_);
  std::vector<void*> blocks(4);
  for (void*& block : blocks) ASSERT_EQ(allocator.DeviceAllocate(&block, 4096), cudaSuccess);
  for (void* block : blocks) ASSERT_EQ(allocator.DeviceFree(block), cudaSuccess);
  fake_cuda_fail("cudaFree", cudaErrorIllegalAddress, 2);
  EXPECT_NE(allocator.cached_bytes[0].free, 0u);
  allocator.FreeAllCached();  // CUB returns the result of its last cudaSetDevice
  EXPECT_EQ(profiler_.GetTrackerStats().refused_frees, 2);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
  for (size_t i = 0; i < 2; ++i) ASSERT_EQ(allocator.DeviceAllocate(&blocks[i], 4096), cudaSuccess);
  ExpectExact(allocator, 0);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 2 * 4096);
  for (size_t i = 0; i < 2; ++i) ASSERT_EQ(allocator.DeviceFree(blocks[i]), cudaSuccess);
  EXPECT_EQ(allocator.FreeAllCached(), cudaSuccess);
  ExpectExact(allocator, 0);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
}

TEST_F(CubTest, OutOfMemoryIsReported) {
  fake_cuda_reset(4, 64 * kMiB);
  TrackingCachingAllocator allocator(profiler_);
  const int reports = OutOfMemoryReports("GPU:3", [&] {
    void* memory = nullptr;
    EXPECT_EQ(allocator.DeviceAllocate(3, &memory, 100 * kMiB), cudaErrorMemoryAllocation);
  });
  EXPECT_EQ(reports, 1);
}

TEST_F(CubTest, CacheFreedForAnAllocationIsForgotten) {
  fake_cuda_reset(1, 64 * kMiB);
  TrackingCachingAllocator allocator(profiler_, 8, 3, 7, 128 * kMiB);
  std::vector<void*> blocks(20);
  for (void*& block : blocks) ASSERT_EQ(allocator.DeviceAllocate(&block, 2 * kMiB), cudaSuccess);
  for (void* block : blocks) ASSERT_EQ(allocator.DeviceFree(block), cudaSuccess);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPool), static_cast<int64_t>(20 * 2 * kMiB));
  void* large = nullptr;
  ASSERT_EQ(allocator.DeviceAllocate(&large, 50 * kMiB), cudaSuccess) << "CUB frees its cache for it";
  ExpectExact(allocator, 0);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), static_cast<int64_t>(50 * kMiB));
  ExpectNoLosses(profiler_);
}

}  // namespace
}  // namespace hbmprof::adapters
