// The functions of core by which the injected library records what the program and frameworks hand out of the driver's
// memory. Tests with a program's copy of the library in the same process: tests/inject/joined_test.cc.
#include "src/core/injected/injected.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/core/profiler_impl.h"

namespace hbmprof::internal {
namespace {

constexpr uint64_t kAddress = uint64_t{1} << 40;

[[gnu::noinline]] bool DriverAllocates(Profiler& profiler, uint64_t address, size_t bytes) {
  return profiler.RecordAlloc(BufferId(address), bytes, {profiler.Device("GPU:0"), MemoryKind::kDevice, {}});
}
[[gnu::noinline]] bool ProgramRefines(Profiler& profiler, uint64_t address, AllocatorId allocator) {
  const Caller caller = Caller::OfThisFunction();
  return ProfilerAccess::ImplOf(profiler).Reattribute(caller, BufferId(address), allocator);
}

TEST(MakeSegmentTest, TakesAHandleAndChangesNoTotal) {
  Profiler profiler;
  const DeviceId gpu = profiler.Device("GPU:0");
  const Pool pool = {gpu, profiler.Allocator("pool")};
  const BufferId physical = BufferId::Handle(34, 1);
  ASSERT_TRUE(profiler.RecordAlloc(physical, 4096, {gpu, MemoryKind::kVmm, {}}));
  const DeviceStats before = profiler.Stats(gpu);
  ProfilerImpl& impl = ProfilerAccess::ImplOf(profiler);
  EXPECT_FALSE(impl.MakeSegment(BufferId::Handle(34, 2), pool)) << "it is not live";
  EXPECT_FALSE(impl.MakeSegment(physical, {profiler.Device("GPU:1"), pool.allocator})) << "another device";
  EXPECT_TRUE(impl.MakeSegment(physical, pool));
  EXPECT_TRUE(impl.MakeSegment(physical, pool)) << "it is one already";
  EXPECT_FALSE(impl.MakeSegment(physical, {gpu, profiler.Allocator("other")}));
  EXPECT_EQ(impl.FindBuffer(physical)->attributes.kind, MemoryKind::kPool);
  EXPECT_EQ(impl.ReservedBytes(pool), 4096);
  const DeviceStats after = profiler.Stats(gpu);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  EXPECT_EQ(after.num_allocs, before.num_allocs);
  EXPECT_EQ(after.num_live, before.num_live);
  EXPECT_EQ(after.idle_bytes, 4096);
  EXPECT_TRUE(profiler.RecordFree(physical));
  EXPECT_EQ(impl.ReservedBytes(pool), 0);
}

TEST(EndBlocksTest, EndsOnlyBlocksThatThePoolHandedOut) {
  Profiler profiler;
  const Pool ours = {kDefaultDevice, profiler.Allocator("ours")};
  const Pool theirs = {kDefaultDevice, profiler.Allocator("theirs")};
  const Pool elsewhere = {profiler.Device("other"), ours.allocator};
  ProfilerImpl& impl = ProfilerAccess::ImplOf(profiler);
  const Caller caller = Caller::OfThisFunction();
  for (const Pool& pool : {ours, theirs, elsewhere}) {
    const BufferId address((static_cast<uint64_t>(pool.device) * 16 + static_cast<uint64_t>(pool.allocator)) << 40);
    ASSERT_TRUE(profiler.RecordSegment(pool, address, 4096));
    ASSERT_TRUE(profiler.RecordBlock(pool, address, 512));
  }
  ASSERT_TRUE(impl.RecordBlock(caller, {kDefaultDevice, {}}, BufferId(kAddress / 2), 64, &ours)) << "a pool inside it";
  impl.EndBlocks(ours);
  EXPECT_EQ(impl.StatsOf(ours).bytes_allocated, 0);
  EXPECT_EQ(impl.StatsOf(ours).bytes_reserved, 4096);
  EXPECT_EQ(impl.StatsOf(theirs).bytes_allocated, 512);
  EXPECT_EQ(impl.StatsOf(elsewhere).bytes_allocated, 512);
  EXPECT_EQ(profiler.Stats(kDefaultDevice).bytes_in_use, 2 * 4096);
  EXPECT_EQ(profiler.Stats(kDefaultDevice).idle_bytes, 2 * 4096 - 512);

  ASSERT_TRUE(profiler.RecordBlock(ours, BufferId(kAddress), 64));
  ASSERT_TRUE(profiler.RecordBlock(ours, BufferId(kAddress + 1024), 64));
  impl.EndBlocks(ours, kAddress + 1024, 1024);
  EXPECT_TRUE(impl.FindBlock(ours, BufferId(kAddress)).has_value());
  EXPECT_FALSE(impl.FindBlock(ours, BufferId(kAddress + 1024)).has_value());
  EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
}

TEST(Reattribute, ReplacesStackTagsAllocatorAndKeepsSums) {
  Profiler profiler;
  ASSERT_TRUE(DriverAllocates(profiler, kAddress, 1000));
  const DeviceId gpu = profiler.Device("GPU:0");
  const DeviceStats before = profiler.Stats(gpu);
  {
    const ScopedTag tag("phase", "load");
    ASSERT_TRUE(ProgramRefines(profiler, kAddress, profiler.Allocator("pages")));
    ASSERT_TRUE(ProgramRefines(profiler, kAddress, {})) << "the allocator stays";
  }
  const DeviceStats after = profiler.Stats(gpu);
  EXPECT_EQ(after.bytes_in_use, 1000);
  EXPECT_EQ(after.peak_bytes_in_use, 1000);
  EXPECT_EQ(after.num_allocs, before.num_allocs);
  EXPECT_EQ(after.pool_bytes, 0);
  const Snapshot snapshot = profiler.TakeSnapshot();
  int64_t peak = 0;
  int64_t allocated = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    peak += sample.peak_bytes;
    allocated += sample.alloc_bytes;
    if (sample.inuse_bytes == 0) continue;
    EXPECT_EQ(sample.inuse_bytes, 1000);
    EXPECT_EQ(sample.alloc_objects, 1);
    EXPECT_EQ(snapshot.allocators[sample.allocator], "pages");
    ASSERT_EQ(sample.tags.size(), 1u);
    EXPECT_EQ(sample.tags[0].second, "load");
  }
  EXPECT_EQ(peak, 1000);
  EXPECT_EQ(allocated, 1000);
  EXPECT_TRUE(profiler.RecordFree(BufferId(kAddress)));
  EXPECT_FALSE(ProgramRefines(profiler, kAddress, {})) << "it is not live";
  EXPECT_EQ(profiler.GetTrackerStats().replaced_records, 0);
}

}  // namespace
}  // namespace hbmprof::internal
