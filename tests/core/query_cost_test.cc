// What a query reads: the memory that it takes on the host shows whether it is for each site.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/core/snapshot_builder.h"

namespace {

std::atomic<size_t> allocated{0};

}  // namespace

void* operator new(size_t bytes) {
  allocated.fetch_add(bytes, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocated.fetch_add(bytes, std::memory_order_relaxed);
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace hbmprof {
namespace {

using internal::SnapshotOf;
using internal::SnapshotParts;

// Makes `count` sites of the caller's stack: sets of tags times allocators.
void MakeSites(Profiler& profiler, uint64_t count) {
  for (int i = 0; i < 200; ++i) profiler.Allocator("allocator " + std::to_string(i));
  for (uint64_t i = 0; i < count; ++i) {
    const ScopedTag tag("step", std::to_string(i / 200));
    const AllocatorId allocator = profiler.Allocator("allocator " + std::to_string(i % 200));
    ASSERT_TRUE(
        profiler.RecordAlloc(BufferId(0x10000 + i * 256), 100, {kDefaultDevice, MemoryKind::kDevice, allocator}));
  }
  ASSERT_EQ(profiler.GetTrackerStats().sites, static_cast<int64_t>(count));
}

template <typename Query>
size_t AllocatedBy(const Query& query) {
  const size_t before = allocated.load();
  query();
  return allocated.load() - before;
}

TEST(QueryCost, OfDevicesIsThatOfNoSites) {
  Profiler few;
  Profiler many;
  MakeSites(few, 1);
  MakeSites(many, 20'000);
  const auto cost = [](Profiler& profiler, SnapshotParts parts) {
    return AllocatedBy([&] { SnapshotOf(profiler, parts); });
  };
  const auto with_devices = [&](Profiler& profiler) { return cost(profiler, SnapshotParts::kDevices); };
  with_devices(few);
  EXPECT_LE(with_devices(many), with_devices(few) + 100);
  EXPECT_GT(cost(many, SnapshotParts::kAll), 20'000u * sizeof(Snapshot::Sample));
  EXPECT_LT(cost(many, SnapshotParts::kSums), cost(many, SnapshotParts::kAll));
}

TEST(QueryCost, PartsHaveTheSameTotals) {
  Profiler profiler;
  MakeSites(profiler, 1000);
  EXPECT_TRUE(internal::HasRecorded(profiler));
  const Snapshot all = SnapshotOf(profiler, SnapshotParts::kAll);
  const Snapshot sums = SnapshotOf(profiler, SnapshotParts::kSums);
  const Snapshot devices = SnapshotOf(profiler, SnapshotParts::kDevices);
  EXPECT_EQ(sums.samples.size(), 5u) << "one for each set of tags";
  EXPECT_TRUE(devices.samples.empty());
  int64_t in_use = 0;
  for (const Snapshot::Sample& sample : sums.samples) in_use += sample.inuse_bytes;
  EXPECT_EQ(in_use, 1000 * 100);
  for (const Snapshot* const snapshot : {&all, &sums, &devices}) {
    ASSERT_EQ(snapshot->devices.size(), 1u);
    EXPECT_EQ(snapshot->devices[0].spaces[0].bytes_in_use, 1000 * 100);
    EXPECT_EQ(snapshot->devices[0].spaces[0].num_live, 1000);
    EXPECT_EQ(snapshot->tracker.live_records, 1000);
  }
  Profiler empty;
  EXPECT_FALSE(internal::HasRecorded(empty));
}

}  // namespace
}  // namespace hbmprof
