// TrackingGpuAllocator and TrackingGpuAsyncAllocator, through the interfaces that TensorRT calls.
#include "hbmprof/adapters/tensorrt.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "tests/adapters/adapter_tests.h"

// The deprecated functions are tested too.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace hbmprof::adapters {
namespace {

using adapter_tests::ExpectBeginsIn;
using adapter_tests::ExpectNoLosses;
using adapter_tests::InUse;
using adapter_tests::OperateAtRandom;
using adapter_tests::OutOfMemoryReports;
using adapter_tests::StackOf;

// Host memory, with counters. A block grows where it is if `grows_in_place`, else it moves.
template <typename Interface>
class Memory : public Interface {
 public:
  ~Memory() override {
    for (const auto& [memory, bytes] : sizes_) std::free(memory);
  }
  void* allocateAsync(uint64_t bytes, uint64_t, nvinfer1::AllocatorFlags, cudaStream_t) noexcept override {
    return Take(bytes);
  }
  bool deallocateAsync(void* memory, cudaStream_t) noexcept override { return Return(memory); }
  void* allocate(uint64_t bytes, uint64_t, nvinfer1::AllocatorFlags) noexcept override { return Take(bytes); }
  bool deallocate(void* memory) noexcept override { return Return(memory); }
  void* reallocate(void* memory, uint64_t, uint64_t bytes) noexcept override {
    if (is_full) return nullptr;
    if (grows_in_place) {
      const std::lock_guard<std::mutex> lock(mutex_);
      bytes_in_use += static_cast<int64_t>(bytes) - static_cast<int64_t>(sizes_[memory]);
      sizes_[memory] = bytes;
      return memory;
    }
    void* const moved = Take(bytes);
    Return(memory);
    return moved;
  }

  std::atomic<int64_t> bytes_in_use{0};
  std::atomic<bool> is_full{false};
  std::atomic<bool> frees{true};
  std::atomic<bool> grows_in_place{false};

 private:
  void* Take(uint64_t bytes) {
    if (is_full || bytes == 0) return nullptr;
    void* const memory = std::malloc(1 << 16);  // enough to grow
    const std::lock_guard<std::mutex> lock(mutex_);
    sizes_[memory] = bytes;
    bytes_in_use += static_cast<int64_t>(bytes);
    return memory;
  }
  bool Return(void* memory) {
    if (!frees) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_in_use -= static_cast<int64_t>(sizes_[memory]);
    sizes_.erase(memory);
    std::free(memory);
    return true;
  }

  std::mutex mutex_;
  std::map<void*, uint64_t> sizes_;
};

template <typename Interface>
class TensorRtTest : public testing::Test {
 protected:
  AdapterOptions Options(std::string_view device = "GPU:0") {
    AdapterOptions options;
    options.device = device;
    options.profiler = &profiler_;
    return options;
  }

  Profiler profiler_;
  Memory<Interface> memory_;
  TrackingGpuAllocatorOf<Interface> tracker_{memory_, Options()};
  nvinfer1::IGpuAllocator& allocator_ = tracker_;  // as TensorRT knows it
};
struct InterfaceNames {
  template <typename T>
  static std::string GetName(int) {
    return std::is_same_v<T, nvinfer1::IGpuAllocator> ? "IGpuAllocator" : "IGpuAsyncAllocator";
  }
};
using Interfaces = testing::Types<nvinfer1::IGpuAllocator, nvinfer1::IGpuAsyncAllocator>;
TYPED_TEST_SUITE(TensorRtTest, Interfaces, InterfaceNames);

[[gnu::noinline]] uintptr_t UserOfAsync(nvinfer1::IGpuAllocator& allocator, uint64_t bytes) {
  EXPECT_NE(allocator.allocateAsync(bytes, 256, 0, nullptr), nullptr);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t User(nvinfer1::IGpuAllocator& allocator, uint64_t bytes) {
  EXPECT_NE(allocator.allocate(bytes, 256, 0), nullptr);
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t UserOfReallocate(nvinfer1::IGpuAllocator& allocator, void** memory, uint64_t bytes) {
  *memory = allocator.reallocate(*memory, 256, bytes);
  return RETURNS_TO;
}

TYPED_TEST(TensorRtTest, StackBeginsAtTheCaller) {
  const uintptr_t user_of_async = UserOfAsync(this->allocator_, 100);
  ExpectBeginsIn(StackOf(this->profiler_, 100), user_of_async);
  const uintptr_t user = User(this->allocator_, 200);
  ExpectBeginsIn(StackOf(this->profiler_, 200), user);
}

TYPED_TEST(TensorRtTest, RandomOperationsAreExact) {
  nvinfer1::IGpuAllocator& allocator = this->allocator_;
  const auto live = OperateAtRandom(
      [&](size_t bytes) {
        if (bytes % 3 == 0) return allocator.allocate(bytes, 256, 0);
        void* const memory = allocator.allocateAsync(bytes, 256, 0, nullptr);
        this->memory_.grows_in_place = bytes % 5 == 0;
        return bytes % 3 == 1 ? allocator.reallocate(memory, 256, 2 * bytes) : memory;
      },
      [&](void* memory, size_t bytes) {
        EXPECT_TRUE(bytes % 2 == 0 ? allocator.deallocate(memory) : allocator.deallocateAsync(memory, nullptr));
      });
  EXPECT_GT(this->memory_.bytes_in_use, 0);
  EXPECT_EQ(InUse(this->profiler_, "GPU:0"), this->memory_.bytes_in_use);
  for (const auto& [memory, bytes] : live) EXPECT_TRUE(allocator.deallocate(memory));
  EXPECT_EQ(InUse(this->profiler_, "GPU:0"), 0);
  ExpectNoLosses(this->profiler_);
}

TYPED_TEST(TensorRtTest, MovedBlockHasTheStackOfReallocate) {
  void* memory = this->allocator_.allocateAsync(100, 256, 0, nullptr);
  const uintptr_t user = UserOfReallocate(this->allocator_, &memory, 300);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(InUse(this->profiler_, "GPU:0"), 300);
  ExpectBeginsIn(StackOf(this->profiler_, 300), user);
}

TYPED_TEST(TensorRtTest, FailedReallocateKeepsTheBytes) {
  void* const memory = this->allocator_.allocateAsync(100, 256, 0, nullptr);
  this->memory_.is_full = true;
  EXPECT_EQ(this->allocator_.reallocate(memory, 256, 300), nullptr);
  EXPECT_EQ(InUse(this->profiler_, "GPU:0"), 100);
}

TYPED_TEST(TensorRtTest, RefusedFreeIsCounted) {
  void* const memory = this->allocator_.allocateAsync(100, 256, 0, nullptr);
  this->memory_.frees = false;
  EXPECT_FALSE(this->allocator_.deallocateAsync(memory, nullptr));
  EXPECT_FALSE(this->allocator_.deallocate(memory));
  EXPECT_EQ(InUse(this->profiler_, "GPU:0"), 0);
  EXPECT_EQ(this->profiler_.GetTrackerStats().refused_frees, 1);
}

TYPED_TEST(TensorRtTest, OutOfMemoryIsReported) {
  // There is one report a minute for a profiler's address and the number of a device, and the test of the other type
  // may have had a profiler at this address.
  if (std::is_same_v<TypeParam, nvinfer1::IGpuAsyncAllocator>) this->profiler_.Device("another");
  const std::string device = "trt:" + InterfaceNames::GetName<TypeParam>(0);
  TrackingGpuAllocatorOf<TypeParam> tracker(this->memory_, this->Options(device));
  this->memory_.is_full = true;
  const int reports = OutOfMemoryReports(device, [&] {
    EXPECT_EQ(tracker.allocateAsync(100, 256, 0, nullptr), nullptr);
    EXPECT_EQ(tracker.allocateAsync(0, 256, 0, nullptr), nullptr) << "no failure";
  });
  EXPECT_EQ(reports, 1);
}

TYPED_TEST(TensorRtTest, InterfaceIsThatOfUpstream) {
  EXPECT_STREQ(this->allocator_.getInterfaceInfo().kind, "IGpuAllocator");
  EXPECT_EQ(this->allocator_.getInterfaceInfo().major, 1);
}

}  // namespace
}  // namespace hbmprof::adapters
