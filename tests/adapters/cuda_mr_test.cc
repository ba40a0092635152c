// TrackingResource. Built with the CCCL of the toolkit, which has the old concept, and with PyPI's, which has the new.
#include "hbmprof/adapters/cuda_mr.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "tests/adapters/adapter_tests.h"

namespace hbmprof::adapters {
namespace {

using adapter_tests::ExpectBeginsIn;
using adapter_tests::ExpectNoLosses;
using adapter_tests::InUse;
using adapter_tests::OperateAtRandom;
using adapter_tests::OutOfMemoryReports;
using adapter_tests::StackOf;

#if CCCL_VERSION >= 3002000
#define NEW_CONCEPT 1
#else
#define NEW_CONCEPT 0
#endif

// A resource of host memory that counts what is in use. Copies share the counter. `error`, if there is one, is thrown
// by each allocation; `free_fails` makes each free throw.
struct Counters {
  std::atomic<int64_t> bytes_in_use{0};
  std::atomic<bool> free_fails{false};
  void (*error)() = nullptr;
};
struct CountingResource {
  Counters* counters;

  void* Take(size_t bytes) {
    if (counters->error != nullptr) counters->error();
    counters->bytes_in_use += static_cast<int64_t>(bytes);
    return std::malloc(bytes);
  }
  void Return(void* memory, size_t bytes) {
    if (counters->free_fails) throw std::runtime_error("the free has failed");
    counters->bytes_in_use -= static_cast<int64_t>(bytes);
    std::free(memory);
  }
#if NEW_CONCEPT
  void* allocate(cuda::stream_ref, size_t bytes, size_t) { return Take(bytes); }
  void deallocate(cuda::stream_ref, void* memory, size_t bytes, size_t) { Return(memory, bytes); }
  void* allocate_sync(size_t bytes, size_t) { return Take(bytes); }
  void deallocate_sync(void* memory, size_t bytes, size_t) { Return(memory, bytes); }
#else
  void* allocate_async(size_t bytes, size_t, cuda::stream_ref) { return Take(bytes); }
  void deallocate_async(void* memory, size_t bytes, size_t, cuda::stream_ref) { Return(memory, bytes); }
  void* allocate(size_t bytes, size_t) { return Take(bytes); }
  void deallocate(void* memory, size_t bytes, size_t) { Return(memory, bytes); }
#endif
  friend bool operator==(const CountingResource& a, const CountingResource& b) { return a.counters == b.counters; }
  [[maybe_unused]] friend bool operator!=(const CountingResource& a, const CountingResource& b) { return !(a == b); }
  [[maybe_unused]] friend void get_property(const CountingResource&, cuda::mr::device_accessible) noexcept {}
};

using Tracker = TrackingResource<CountingResource>;
#if NEW_CONCEPT
static_assert(cuda::mr::resource_with<Tracker, cuda::mr::device_accessible>);
static_assert(cuda::mr::synchronous_resource<Tracker>);
#else
static_assert(cuda::mr::async_resource_with<Tracker, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource<Tracker>);
#endif
static_assert(!cuda::has_property<Tracker, cuda::mr::host_accessible>);

// The stream-ordered and the other functions, by the names of the concept.
template <typename Resource>
void* AllocateOnStream(Resource& resource, size_t bytes) {
  const cuda::stream_ref stream{cudaStream_t{}};
#if NEW_CONCEPT
  return resource.allocate(stream, bytes, 256);
#else
  return resource.allocate_async(bytes, 256, stream);
#endif
}
template <typename Resource>
void FreeOnStream(Resource& resource, void* memory, size_t bytes) {
  const cuda::stream_ref stream{cudaStream_t{}};
#if NEW_CONCEPT
  resource.deallocate(stream, memory, bytes, 256);
#else
  resource.deallocate_async(memory, bytes, 256, stream);
#endif
}
template <typename Resource>
void* AllocateNow(Resource& resource, size_t bytes) {
#if NEW_CONCEPT
  return resource.allocate_sync(bytes, 256);
#else
  return resource.allocate(bytes, 256);
#endif
}
template <typename Resource>
void FreeNow(Resource& resource, void* memory, size_t bytes) {
#if NEW_CONCEPT
  resource.deallocate_sync(memory, bytes, 256);
#else
  resource.deallocate(memory, bytes, 256);
#endif
}

class CudaMrTest : public testing::Test {
 protected:
  AdapterOptions Options(RecordAs record_as = RecordAs::kBuffers) {
    AdapterOptions options;
    options.profiler = &profiler_;
    options.record_as = record_as;
    return options;
  }

  Profiler profiler_;
  Counters counters_;
};

[[gnu::noinline]] uintptr_t UserOnStream(Tracker& tracker, size_t bytes, void** memory) {
  const cuda::stream_ref stream{cudaStream_t{}};
#if NEW_CONCEPT
  *memory = tracker.allocate(stream, bytes, 256);
#else
  *memory = tracker.allocate_async(bytes, 256, stream);
#endif
  return RETURNS_TO;
}
[[gnu::noinline]] uintptr_t User(Tracker& tracker, size_t bytes, void** memory) {
#if NEW_CONCEPT
  *memory = tracker.allocate_sync(bytes, 256);
#else
  *memory = tracker.allocate(bytes, 256);
#endif
  return RETURNS_TO;
}

TEST_F(CudaMrTest, StackBeginsAtTheCaller) {
  Tracker tracker(CountingResource{&counters_}, Options());
  void* on_stream = nullptr;
  const uintptr_t user_on_stream = UserOnStream(tracker, 100, &on_stream);
  ExpectBeginsIn(StackOf(profiler_, 100), user_on_stream);
  void* now = nullptr;
  const uintptr_t user = User(tracker, 200, &now);
  ExpectBeginsIn(StackOf(profiler_, 200), user);
  FreeOnStream(tracker, on_stream, 100);
  FreeNow(tracker, now, 200);
}

TEST_F(CudaMrTest, RandomOperationsAreExact) {
  Tracker tracker(CountingResource{&counters_}, Options());
  const auto live = OperateAtRandom(
      [&](size_t bytes) { return bytes % 2 == 0 ? AllocateOnStream(tracker, bytes) : AllocateNow(tracker, bytes); },
      [&](void* memory, size_t bytes) {
        bytes % 2 == 0 ? FreeOnStream(tracker, memory, bytes) : FreeNow(tracker, memory, bytes);
      });
  EXPECT_GT(counters_.bytes_in_use, 0);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), counters_.bytes_in_use);
  for (const auto& [memory, bytes] : live) FreeNow(tracker, memory, bytes);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
  ExpectNoLosses(profiler_);
}

TEST_F(CudaMrTest, TypeErasedResourceIsRecorded) {
  Tracker tracker(CountingResource{&counters_}, Options());
#if NEW_CONCEPT
  cuda::mr::any_resource<cuda::mr::device_accessible> erased(tracker);
#else
  cuda::mr::async_resource_ref<cuda::mr::device_accessible> erased = tracker;
#endif
  void* const memory = AllocateOnStream(erased, 4096);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 4096);
  // A copy of the tracker frees what the tracker has allocated.
  Tracker copy = tracker;
  EXPECT_EQ(copy, tracker);
  FreeOnStream(copy, memory, 4096);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
  ExpectNoLosses(profiler_);
}

TEST_F(CudaMrTest, SegmentsAndBlocksCountOnce) {
  Tracker segments(CountingResource{&counters_}, Options(RecordAs::kSegments));
  // A pool of one segment.
  struct Pool : CountingResource {
    char* free;
    void* Bump(size_t bytes) { return std::exchange(free, free + bytes); }
#if NEW_CONCEPT
    void* allocate_sync(size_t bytes, size_t) { return Bump(bytes); }
    void deallocate_sync(void*, size_t, size_t) {}
#else
    void* allocate(size_t bytes, size_t) { return Bump(bytes); }
    void deallocate(void*, size_t, size_t) {}
#endif
  };
  void* const segment = AllocateNow(segments, 1 << 20);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPool), 1 << 20);
  Pool pool{{&counters_}, static_cast<char*>(segment)};
  TrackingResource<Pool> blocks(pool, Options(RecordAs::kBlocks));
  void* const first = AllocateNow(blocks, 1000);
  AllocateNow(blocks, 24);
  EXPECT_EQ(first, segment);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kDevice), 1024);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 1 << 20);
  FreeNow(blocks, first, 1000);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kDevice), 24);
  FreeNow(segments, segment, 1 << 20);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
}

TEST_F(CudaMrTest, OnlyDeviceMemoryIsThatOfPools) {
  AdapterOptions options = Options(RecordAs::kSegments);
  options.kind = MemoryKind::kPinnedHost;
  Tracker segments(CountingResource{&counters_}, options);
  options.record_as = RecordAs::kBlocks;
  Tracker blocks(CountingResource{&counters_}, options);
  void* const segment = AllocateNow(segments, 4096);
  void* const block = AllocateNow(blocks, 100);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPinnedHost), 100);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
  FreeNow(blocks, block, 100);
  FreeNow(segments, segment, 4096);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPinnedHost), 0);
  ExpectNoLosses(profiler_);
}

TEST_F(CudaMrTest, FreeThatThrowsIsCounted) {
  Tracker tracker(CountingResource{&counters_}, Options());
  void* const memory = AllocateNow(tracker, 100);
  counters_.free_fails = true;
  EXPECT_THROW(FreeNow(tracker, memory, 100), std::runtime_error);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), 0);
  EXPECT_EQ(profiler_.GetTrackerStats().refused_frees, 1);
  counters_.free_fails = false;
  FreeNow(tracker, memory, 100);
}

struct PoolIsFull : std::bad_alloc {};
[[noreturn]] void ThrowBadAlloc() { throw PoolIsFull(); }
[[noreturn]] void ThrowCudaOutOfMemory() { throw cuda::cuda_error(cudaErrorMemoryAllocation, "cudaMalloc"); }
[[noreturn]] void ThrowCudaError() { throw cuda::cuda_error(cudaErrorIllegalAddress, "cudaMalloc"); }

TEST_F(CudaMrTest, OutOfMemoryIsReportedAndThrownUnchanged) {
  const auto reports = [&](const char* device, void (*error)(), RecordAs record_as) {
    AdapterOptions options = Options(record_as);
    options.device = device;
    Tracker tracker(CountingResource{&counters_}, options);
    counters_.error = error;
    return OutOfMemoryReports(device, [&] {
      if (error == &ThrowBadAlloc) {
        EXPECT_THROW(AllocateNow(tracker, 100), PoolIsFull);
      } else {
        EXPECT_THROW(AllocateNow(tracker, 100), cuda::cuda_error);
      }
    });
  };
  EXPECT_EQ(reports("mr:0", &ThrowBadAlloc, RecordAs::kBuffers), 1);
  EXPECT_EQ(reports("mr:1", &ThrowCudaOutOfMemory, RecordAs::kBlocks), 1);
  EXPECT_EQ(reports("mr:2", &ThrowCudaError, RecordAs::kBuffers), 0) << "another error";
  EXPECT_EQ(reports("mr:3", &ThrowBadAlloc, RecordAs::kSegments), 0) << "the pool may try a smaller segment";
}

}  // namespace
}  // namespace hbmprof::adapters
