// TrackingResource under and on top of a real pool of RMM: segments upstream, blocks on top. The memory is the host's,
// and RMM's events are those of the fake runtime.
#include <cstdint>
#include <cstdlib>
#include <new>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include "gtest/gtest.h"
#include "hbmprof/adapters/cuda_mr.h"
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

constexpr size_t kMiB = 1 << 20;

struct HostMemory {
  void* allocate(cuda::stream_ref, size_t bytes, size_t alignment) { return allocate_sync(bytes, alignment); }
  void deallocate(cuda::stream_ref, void* memory, size_t, size_t) noexcept { std::free(memory); }
  void* allocate_sync(size_t bytes, size_t) { return std::aligned_alloc(256, bytes); }
  void deallocate_sync(void* memory, size_t, size_t) noexcept { std::free(memory); }
  bool operator==(const HostMemory&) const { return true; }
  bool operator!=(const HostMemory&) const { return false; }
  [[maybe_unused]] friend void get_property(const HostMemory&, cuda::mr::device_accessible) noexcept {}
};

using AnyResource = cuda::mr::any_resource<cuda::mr::device_accessible>;

// The memory resources of a program: a pool on recorded memory, RMM's own counters on top of it, and the recorded
// blocks.
class RmmTest : public testing::Test {
 protected:
  AdapterOptions Options(RecordAs record_as) {
    AdapterOptions options;
    options.allocator = "rmm";
    options.record_as = record_as;
    options.profiler = &profiler_;
    return options;
  }

  Profiler profiler_;
  TrackingResource<HostMemory> segments_{HostMemory(), Options(RecordAs::kSegments)};
  rmm::mr::pool_memory_resource pool_{AnyResource(segments_), 4 * kMiB, 512 * kMiB};
  rmm::mr::statistics_resource_adaptor counted_{AnyResource(pool_)};
  TrackingResource<rmm::mr::statistics_resource_adaptor> blocks_{counted_, Options(RecordAs::kBlocks)};
  const cuda::stream_ref stream_{cudaStream_t{}};
};

[[gnu::noinline]] uintptr_t User(TrackingResource<rmm::mr::statistics_resource_adaptor>& resource, size_t bytes) {
  EXPECT_NE(resource.allocate(cuda::stream_ref(cudaStream_t{}), bytes, 256), nullptr);
  return RETURNS_TO;
}

TEST_F(RmmTest, RandomOperationsAreExact) {
  const auto live =
      OperateAtRandom([&](size_t bytes) { return blocks_.allocate(stream_, bytes, 256); },
                      [&](void* memory, size_t bytes) { blocks_.deallocate(stream_, memory, bytes, 256); }, 400000);
  const int64_t blocks = counted_.get_bytes_counter().value;
  const auto pool = static_cast<int64_t>(pool_.pool_size());
  EXPECT_GT(blocks, 0);
  EXPECT_GT(pool, static_cast<int64_t>(4 * kMiB)) << "the pool has grown";
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kDevice), blocks);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPool), pool - blocks);
  EXPECT_EQ(InUse(profiler_, "GPU:0"), pool);
  for (const auto& [memory, bytes] : live) blocks_.deallocate(stream_, memory, bytes, 256);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kDevice), 0);
  EXPECT_EQ(InUse(profiler_, "GPU:0", MemoryKind::kPool), pool);
  ExpectNoLosses(profiler_);
}

TEST_F(RmmTest, BlockAndItsNewSegmentHaveTheUsersStack) {
  const uintptr_t user = User(blocks_, 100 * kMiB);  // more than the pool has
  ExpectBeginsIn(StackOf(profiler_, 100 * kMiB), user);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  bool has_segment = false;
  for (const auto& sample : snapshot.samples) {
    const auto& stack = snapshot.stacks[sample.stack].return_addresses;
    has_segment = has_segment || (sample.kind == MemoryKind::kPool && stack.size() > 1 && stack[1] == user);
  }
  EXPECT_TRUE(has_segment);
}

TEST_F(RmmTest, FullPoolIsReported) {
  AdapterOptions options = Options(RecordAs::kBlocks);
  options.device = "rmm:0";
  TrackingResource<rmm::mr::pool_memory_resource> blocks(pool_, options);
  const int reports =
      OutOfMemoryReports("rmm:0", [&] { EXPECT_THROW(blocks.allocate(stream_, 600 * kMiB, 256), rmm::out_of_memory); });
  EXPECT_EQ(reports, 1);
}

}  // namespace
}  // namespace hbmprof::adapters
