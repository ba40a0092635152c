// Pools: the rules of their records, one by one, and random programs against a naive model.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "src/core/injected/injected.h"
#include "src/core/profiler_impl.h"
#include "src/core/snapshot_builder.h"
#include "tests/support/pools_model.h"
#include "tests/support/sanitized.h"

namespace hbmprof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kBase = uint64_t{1} << 32;
constexpr int64_t kMiB = 1 << 20;

BufferId MiBAt(int64_t mib) { return BufferId(kBase + static_cast<uint64_t>(mib * kMiB)); }

Options WithoutStacks() {
  Options options;
  options.unwinder = Unwinder::kNone;
  return options;
}

class PoolsTest : public ::testing::Test {
 protected:
  // For each device and at each test's end: samples and totals are sound (two sums are equal, no value is negative).
  ~PoolsTest() override {
    const Snapshot snapshot = profiler_.TakeSnapshot();
    for (uint32_t device = 0; device < snapshot.devices.size(); ++device) {
      Snapshot::Sample sum;
      int64_t excess = 0;
      for (const Snapshot::Sample& sample : snapshot.samples) {
        if (sample.device != device || SpaceOf(sample.kind) != MemorySpace::kDevice) continue;
        EXPECT_GE(sample.inuse_bytes, 0);
        EXPECT_GE(sample.peak_bytes, 0);
        EXPECT_GE(sample.pool_peak_bytes, 0);
        EXPECT_GE(sample.reserved_bytes, 0);
        sum.inuse_bytes += sample.inuse_bytes;
        sum.reserved_bytes += sample.reserved_bytes;
      }
      for (const PoolStats& pool : snapshot.devices[device].pools) {
        excess += std::max<int64_t>(pool.bytes_allocated - pool.bytes_reserved, 0);
      }
      EXPECT_EQ(sum.inuse_bytes, snapshot.devices[device].spaces[0].bytes_in_use + excess);
      EXPECT_EQ(sum.reserved_bytes, snapshot.devices[device].spaces[0].bytes_in_use);
    }
  }

  DeviceStats Stats() const { return profiler_.Stats(kDefaultDevice); }
  // Bytes in MiB.
  void ExpectInUse(int64_t in_use, int64_t idle) const {
    EXPECT_EQ(Stats().bytes_in_use, in_use * kMiB);
    EXPECT_EQ(Stats().idle_bytes, idle * kMiB);
  }
  bool Segment(const Pool& pool, int64_t at, int64_t mib) {
    return profiler_.RecordSegment(pool, MiBAt(at), static_cast<size_t>(mib * kMiB));
  }
  bool Block(const Pool& pool, int64_t at, int64_t mib) {
    return profiler_.RecordBlock(pool, MiBAt(at), static_cast<size_t>(mib * kMiB));
  }
  bool Buffer(int64_t at, int64_t mib) { return profiler_.RecordAlloc(MiBAt(at), static_cast<size_t>(mib * kMiB), {}); }
  int64_t EndBlock(const Pool& pool, int64_t at) {
    return profiler_.RecordBlockFree(pool, MiBAt(at)).value_or(-kMiB) / kMiB;
  }
  int64_t EndSegment(const Pool& pool, int64_t at) {
    return profiler_.RecordSegmentFree(pool, MiBAt(at)).value_or(-kMiB) / kMiB;
  }
  int64_t End(int64_t at) { return profiler_.RecordFree(MiBAt(at)).value_or(-kMiB) / kMiB; }
  PoolStats StatsOf(const Pool& pool) { return Impl().StatsOf(pool); }
  internal::ProfilerImpl& Impl() { return internal::ProfilerAccess::ImplOf(profiler_); }

  // The row of a pool's idle memory; one without values if there is none.
  static Snapshot::Sample IdleRow(const Snapshot& snapshot, const std::string& name) {
    for (const Snapshot::Sample& sample : snapshot.samples) {
      const std::vector<uint64_t>& frames = snapshot.stacks[sample.stack].return_addresses;
      if (frames.size() != 1 || !Snapshot::IsNamedFrame(frames[0])) continue;
      const Snapshot::NamedFrame& frame = snapshot.named_frames[frames[0] & 0xffffffff];
      if (frame.function == "[idle memory of " + name + "]") return sample;
    }
    return {};
  }
  // The sum of a value over the samples with the tag "t" `tag`.
  static int64_t Sum(const Snapshot& snapshot, const std::string& tag, int64_t Snapshot::Sample::*value) {
    int64_t sum = 0;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      if (!sample.tags.empty() && sample.tags[0].second == tag) sum += sample.*value;
    }
    return sum;
  }

  Profiler profiler_{WithoutStacks()};
  const Pool outer_ = {kDefaultDevice, profiler_.Allocator("outer")};
  const Pool middle_ = {kDefaultDevice, profiler_.Allocator("middle")};
  const Pool inner_ = {kDefaultDevice, profiler_.Allocator("inner")};
};

// --- A pause --------------------------------------------------------------------------------------------------------

// As SetTracking (live.h) does.
TEST_F(PoolsTest, NothingCountsTwiceAfterAPauseAndTheProfileSaysWhen) {
  ASSERT_TRUE(Segment(outer_, 0, 100) && Block(outer_, 0, 10));
  EXPECT_THAT(profiler_.TakeSnapshot().warnings, testing::IsEmpty());
  profiler_.SetEnabled(false);
  EXPECT_FALSE(Block(outer_, 10, 10));
  EXPECT_EQ(EndBlock(outer_, 0), -1);
  EXPECT_THAT(profiler_.TakeSnapshot().warnings,
              testing::ElementsAre(testing::StartsWith("Recording has been off since 20")));
  ExpectInUse(100, 90);
  profiler_.DropDevice(kDefaultDevice);
  profiler_.SetEnabled(true);
  ExpectInUse(0, 0);
  // A block from before, and one in a segment from before; then a new segment.
  EXPECT_EQ(EndBlock(outer_, 10), -1);
  ASSERT_TRUE(Block(outer_, 20, 10));
  ExpectInUse(10, 0);
  ASSERT_TRUE(Segment(outer_, 200, 100) && Block(outer_, 200, 30));
  ExpectInUse(110, 70);
  EXPECT_EQ(EndBlock(outer_, 20), 10);
  EXPECT_EQ(EndSegment(outer_, 0), -1);
  ExpectInUse(100, 70);
  EXPECT_EQ(StatsOf(outer_).bytes_allocated, 30 * kMiB);
  const std::vector<std::string> warnings = profiler_.TakeSnapshot().warnings;
  EXPECT_THAT(warnings, testing::ElementsAre(testing::ContainsRegex("^Recording was off from 20.*Z to 20.*Z: .*g$")));
  profiler_.SetEnabled(false);
  EXPECT_THAT(profiler_.TakeSnapshot().warnings,
              testing::ElementsAre(
                  testing::ContainsRegex("^Recording has been off since 20.*; it was off before, first at 20")));
}

TEST(PauseTest, ProfilerThatIsOffFromItsStartSaysSo) {
  Options options;
  options.enabled = false;
  EXPECT_THAT(Profiler(options).TakeSnapshot().warnings,
              testing::ElementsAre(testing::StartsWith("Recording has been off since 20")));
}

// --- Segments and blocks --------------------------------------------------------------------------------------------

TEST_F(PoolsTest, BufferBecomesASegment) {
  {
    const ScopedTag tag("t", "driver");
    ASSERT_TRUE(Buffer(0, 100));
  }
  ASSERT_TRUE(Segment(outer_, 0, 90)) << "the record keeps its size";
  ExpectInUse(100, 100);
  EXPECT_EQ(Stats().pool_bytes, 100 * kMiB);
  EXPECT_EQ(Stats().num_allocs, 1);
  ASSERT_TRUE(Block(outer_, 0, 30));
  ASSERT_TRUE(Block(outer_, 30, 10));
  ExpectInUse(100, 60);
  EXPECT_EQ(Stats().num_live, 3);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  EXPECT_EQ(Sum(snapshot, "driver", &Snapshot::Sample::inuse_bytes), 0) << "never under the line of the driver's call";
  EXPECT_EQ(Sum(snapshot, "driver", &Snapshot::Sample::reserved_bytes), 100 * kMiB);
  EXPECT_EQ(Sum(snapshot, "driver", &Snapshot::Sample::reserved_objects), 1);
  EXPECT_EQ(IdleRow(snapshot, "outer").inuse_bytes, 60 * kMiB);
  EXPECT_EQ(IdleRow(snapshot, "outer").inuse_objects, 1) << "segments";
  EXPECT_EQ(IdleRow(snapshot, "outer").kind, MemoryKind::kPool);
  ASSERT_EQ(snapshot.devices.at(0).pools.size(), 1u);
  const PoolStats& pool = snapshot.devices[0].pools[0];
  EXPECT_EQ(pool.name, "outer");
  EXPECT_EQ(pool.bytes_reserved, 100 * kMiB);
  EXPECT_EQ(pool.bytes_allocated, 40 * kMiB);
  EXPECT_EQ(pool.idle_bytes, 60 * kMiB);
  EXPECT_EQ(pool.segments, 1);
  EXPECT_EQ(End(0), 100);
  ExpectInUse(0, 0);
  EXPECT_EQ(Stats().num_live, 0);
}

TEST_F(PoolsTest, BlockMayLieAcrossSegments) {
  ASSERT_TRUE(Segment(outer_, 0, 20));
  ASSERT_TRUE(Segment(outer_, 20, 20));
  ASSERT_TRUE(Block(outer_, 5, 30));
  ExpectInUse(40, 10);
  EXPECT_EQ(EndBlock(outer_, 5), 30);
  ExpectInUse(40, 40);
}

TEST_F(PoolsTest, ThreePoolsInsideEachOtherAtOneAddress) {
  ASSERT_TRUE(Buffer(0, 100));
  ASSERT_TRUE(Segment(outer_, 0, 100));
  ASSERT_TRUE(Block(outer_, 0, 40));
  ASSERT_TRUE(Segment(middle_, 0, 40));
  ASSERT_TRUE(Block(middle_, 0, 20));
  ASSERT_TRUE(Segment(inner_, 0, 20));
  ASSERT_TRUE(Block(inner_, 0, 8));
  ASSERT_TRUE(Block(middle_, 20, 5));
  ASSERT_TRUE(Block(outer_, 40, 7));
  ExpectInUse(100, 53 + 15 + 12);
  EXPECT_EQ(Stats().pool_bytes, 100 * kMiB);
  EXPECT_EQ(StatsOf(outer_).idle_bytes, 53 * kMiB);
  EXPECT_EQ(StatsOf(middle_).idle_bytes, 15 * kMiB);
  EXPECT_EQ(StatsOf(inner_).idle_bytes, 12 * kMiB);
  for (const Pool& pool : {outer_, middle_, inner_})
    EXPECT_TRUE(Segment(pool, 0,
                        pool.allocator == outer_.allocator    ? 100
                        : pool.allocator == middle_.allocator ? 40
                                                              : 20))
        << "it is one already";
  ExpectInUse(100, 80);
  EXPECT_EQ(EndBlock(middle_, 0), 20) << "with the block that is in it";
  ExpectInUse(100, 53 + 35);
  EXPECT_EQ(EndBlock(inner_, 0), -1);
  EXPECT_EQ(End(0), 100);
  ExpectInUse(0, 0);
  EXPECT_EQ(Stats().num_live, 0);
}

TEST_F(PoolsTest, EndedNestedSegmentIsABlockAgain) {
  {
    const ScopedTag tag("t", "block");
    ASSERT_TRUE(Segment(outer_, 0, 100));
    ASSERT_TRUE(Block(outer_, 10, 40));
  }
  ASSERT_TRUE(Segment(inner_, 10, 30)) << "with the size of the block";
  ASSERT_TRUE(Block(inner_, 12, 5));
  EXPECT_EQ(Sum(profiler_.TakeSnapshot(), "block", &Snapshot::Sample::inuse_bytes), 0);
  EXPECT_EQ(EndSegment(outer_, 10), -1) << "a segment of another pool";
  EXPECT_EQ(EndSegment(inner_, 10), 40);
  ExpectInUse(100, 60);
  EXPECT_EQ(Sum(profiler_.TakeSnapshot(), "block", &Snapshot::Sample::inuse_bytes), 40 * kMiB);
  EXPECT_EQ(EndBlock(inner_, 12), -1) << "it has ended with its segment";
  EXPECT_EQ(EndBlock(outer_, 10), 40);
  ExpectInUse(100, 100);
}

TEST_F(PoolsTest, BlocksOfAPoolWithoutSegmentsCountInUse) {
  ASSERT_TRUE(Block(outer_, 0, 1));
  ExpectInUse(1, 0);
  EXPECT_THAT(profiler_.TakeSnapshot().warnings, IsEmpty());
  ASSERT_TRUE(Segment(outer_, 10, 10));
  ASSERT_TRUE(Block(outer_, 10, 4));
  ExpectInUse(11, 6);
  EXPECT_EQ(EndBlock(outer_, 0), 1);
  EXPECT_EQ(EndBlock(outer_, 10), 4);
  ExpectInUse(10, 10);
}

TEST_F(PoolsTest, WhatCannotBeASegment) {
  const DeviceId other = profiler_.Device("other");
  ASSERT_TRUE(profiler_.RecordAlloc(MiBAt(0), 100, {kDefaultDevice, MemoryKind::kManaged, {}}));
  EXPECT_FALSE(Segment(outer_, 0, 1)) << "not in MemorySpace::kDevice";
  ASSERT_TRUE(Buffer(1, 1));
  EXPECT_FALSE(profiler_.RecordSegment({other, outer_.allocator}, MiBAt(1), 1)) << "of another device";
  ASSERT_TRUE(Segment(outer_, 1, 1));
  EXPECT_FALSE(Segment(inner_, 1, 1)) << "a segment of another pool";
  EXPECT_EQ(EndSegment(inner_, 1), -1);
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 1);
  ExpectInUse(1, 1);
}

TEST_F(PoolsTest, RefusedIdsDoNothing) {
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(Buffer(i, 1));  // in all buckets of the live table
  const BufferId bad(uint64_t{1} << 63 | 4096);
  const BufferId too_high(uint64_t{1} << 50);
  EXPECT_FALSE(profiler_.RecordFree(bad));
  EXPECT_FALSE(profiler_.RecordBlockFree(outer_, too_high));
  EXPECT_FALSE(profiler_.RecordSegmentFree(outer_, bad));
  EXPECT_FALSE(profiler_.RecordBlockResize(outer_, too_high, 1));
  EXPECT_FALSE(profiler_.RecordResize(bad, 1));
  EXPECT_FALSE(Impl().Reattribute(Caller::OfThisFunction(), BufferId(), {}));
  EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 3);
  EXPECT_FALSE(profiler_.RecordBlock(outer_, too_high, 100));
  EXPECT_EQ(profiler_.GetTrackerStats().dropped_records, 1);
  EXPECT_EQ(Stats().num_live, 300);
  ExpectInUse(300, 0);
}

TEST_F(PoolsTest, ReplacedRecordsEndFirst) {
  ASSERT_TRUE(Segment(outer_, 0, 20));
  ASSERT_TRUE(Block(outer_, 0, 4));
  ASSERT_TRUE(Block(outer_, 0, 6)) << "the free of the first was not recorded";
  ExpectInUse(20, 14);
  EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 1);
  ASSERT_TRUE(Segment(inner_, 0, 6));
  ASSERT_TRUE(Block(inner_, 2, 1));
  ASSERT_TRUE(Block(outer_, 0, 5)) << "in place of a nested segment";
  ExpectInUse(20, 15);
  EXPECT_EQ(StatsOf(inner_).bytes_allocated, 0);
  ASSERT_TRUE(Buffer(0, 30)) << "in place of a segment";
  ExpectInUse(30, 0);
  EXPECT_EQ(Stats().num_live, 1);
  EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 3);
}

TEST_F(PoolsTest, ResizeKeepsTheSiteAndCountsTheDifference) {
  ASSERT_TRUE(Buffer(0, 10));
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 15 * kMiB));
  EXPECT_EQ(Stats().bytes_in_use, 15 * kMiB);
  EXPECT_EQ(Stats().num_allocs, 1);
  EXPECT_EQ(Stats().largest_alloc_size, 15 * kMiB);
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 5 * kMiB));
  EXPECT_EQ(Stats().peak_bytes_in_use, 15 * kMiB);
  EXPECT_FALSE(profiler_.RecordResize(MiBAt(1), 5 * kMiB)) << "nothing is there";
  int64_t allocated = 0;
  for (const Snapshot::Sample& sample : profiler_.TakeSnapshot().samples) allocated += sample.alloc_bytes;
  EXPECT_EQ(allocated, 15 * kMiB);
  ASSERT_TRUE(Segment(outer_, 0, 5));
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 20 * kMiB));
  ASSERT_TRUE(Block(outer_, 8, 8));
  ASSERT_TRUE(Segment(inner_, 8, 8));
  ASSERT_TRUE(Block(inner_, 8, 2));
  ExpectInUse(20, 12 + 6);
  ASSERT_TRUE(profiler_.RecordBlockResize(outer_, MiBAt(8), 10 * kMiB));
  ExpectInUse(20, 10 + 8);
  EXPECT_EQ(StatsOf(inner_).bytes_reserved, 10 * kMiB);
  EXPECT_EQ(End(0), 20);
  ExpectInUse(0, 0);
}

TEST_F(PoolsTest, ShrunkSegmentEndsTheBlocksThatBeganBeyondIt) {
  ASSERT_TRUE(Segment(outer_, 0, 20));
  ASSERT_TRUE(Block(outer_, 2, 3));
  ASSERT_TRUE(Block(outer_, 12, 3));
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 10 * kMiB));
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 20 * kMiB));
  ExpectInUse(20, 17);
  EXPECT_EQ(EndBlock(outer_, 12), -1);
}

TEST_F(PoolsTest, ResizedAliasStaysAtZeroBytes) {
  ASSERT_TRUE(profiler_.RecordAlloc(MiBAt(0), 100, {kDefaultDevice, MemoryKind::kAlias}));
  EXPECT_TRUE(profiler_.RecordResize(MiBAt(0), 1 * kMiB));
  ExpectInUse(0, 0);
}

TEST_F(PoolsTest, ThereAreAtMost127Pools) {
  std::vector<Pool> pools;
  for (int i = 0; i < 127; ++i) {
    pools.push_back({profiler_.Device("GPU:" + std::to_string(i % 2)), profiler_.Allocator(std::to_string(i))});
    ASSERT_TRUE(Segment(pools.back(), 10 * i, 10)) << i;
    ASSERT_TRUE(Block(pools.back(), 10 * i, 1 + i % 9));
  }
  const Pool more = {kDefaultDevice, profiler_.Allocator("more")};
  EXPECT_FALSE(Segment(more, 5000, 1));
  EXPECT_FALSE(Block(more, 5000, 1));
  EXPECT_FALSE(profiler_.RecordBlockFree(more, MiBAt(5000)));
  EXPECT_FALSE(profiler_.RecordBlockResize(more, MiBAt(5000), 1));
  EXPECT_EQ(profiler_.GetTrackerStats().dropped_records, 2);
  for (int i = 0; i < 127; ++i) {
    EXPECT_EQ(StatsOf(pools[static_cast<size_t>(i)]).idle_bytes, (9 - i % 9) * kMiB);
    EXPECT_EQ(EndBlock(pools[static_cast<size_t>(i)], 10 * i), 1 + i % 9);
  }
}

TEST_F(PoolsTest, BlocksWithoutTheirSegmentsAreInAWarning) {
  ASSERT_TRUE(Segment(outer_, 0, 10));
  ASSERT_TRUE(Block(outer_, 0, 8));
  ASSERT_TRUE(Block(outer_, 50, 5)) << "its segment was not recorded";
  ExpectInUse(10, 0);
  EXPECT_THAT(profiler_.TakeSnapshot().warnings, ElementsAre(HasSubstr("pool outer on GPU:0 have 3145728 bytes more")));
  EXPECT_EQ(EndBlock(outer_, 50), 5);
  ExpectInUse(10, 2);
  EXPECT_THAT(profiler_.TakeSnapshot().warnings, IsEmpty());
}

TEST_F(PoolsTest, AllocatorsThatWereNotNamed) {
  const Pool one = {kDefaultDevice, AllocatorId{100}};
  const Pool other = {kDefaultDevice, AllocatorId{101}};
  ASSERT_TRUE(Segment(one, 0, 10));
  ASSERT_TRUE(Block(one, 0, 4));
  ASSERT_TRUE(Segment(other, 0, 4));
  ASSERT_TRUE(Block(other, 1, 1));
  ExpectInUse(10, 9);
  for (const internal::SnapshotParts parts : {internal::SnapshotParts::kAll, internal::SnapshotParts::kSums}) {
    const Snapshot snapshot = internal::SnapshotOf(profiler_, parts);
    EXPECT_EQ(snapshot.devices[0].spaces[0].idle_bytes, 9 * kMiB);
    for (const PoolStats& pool : snapshot.devices[0].pools) EXPECT_EQ(pool.name, "");
    EXPECT_THAT(snapshot.warnings, IsEmpty());
  }
}

// --- Segments that end while blocks in them are live ----------------------------------------------------------------

class EndedSegmentTest : public PoolsTest {
 protected:
  // Two segments, of which the one with a block of 4 MiB ends. There is no check at once.
  void SetUp() override {
    ASSERT_TRUE(Segment(outer_, 0, 10));
    ASSERT_TRUE(Segment(outer_, 20, 10));
    ASSERT_TRUE(Block(outer_, 20, 1));
    ASSERT_TRUE(Block(outer_, 0, 4));
    ASSERT_EQ(Live(), 4);
    ASSERT_EQ(End(0), 10);
    ASSERT_EQ(Live(), 3) << "the block is still there";
  }
  // The records in the live table, also those that are to end before totals are read.
  int64_t Live() {
    int64_t count = 0;
    Impl().live().ForEach([&](uint64_t, const internal::LiveRecord&) { ++count; });
    return count;
  }
};

TEST_F(EndedSegmentTest, AtOnceIfThePoolHasMoreAllocatedThanReserved) {
  ASSERT_EQ(End(20), 10);
  EXPECT_EQ(Live(), 0);
}

TEST_F(EndedSegmentTest, BeforeASegmentBegins) {
  ASSERT_TRUE(Segment(inner_, 0, 3)) << "at the same address";
  EXPECT_EQ(Live(), 3);
  EXPECT_EQ(StatsOf(inner_).bytes_reserved, 3 * kMiB);
  ASSERT_TRUE(Segment(outer_, 3, 3));
  ASSERT_TRUE(Block(outer_, 4, 1));
  ExpectInUse(16, 9 + 3 + 2);
}

TEST_F(EndedSegmentTest, BeforeABufferBecomesASegment) {
  ASSERT_TRUE(Buffer(0, 10));
  ASSERT_TRUE(Segment(outer_, 0, 10));
  EXPECT_EQ(Live(), 3);
  ExpectInUse(20, 19);
}

TEST_F(EndedSegmentTest, BeforeANewPeakOfThePool) {
  ASSERT_TRUE(Block(outer_, 25, 5));
  EXPECT_EQ(Live(), 3);
  EXPECT_EQ(StatsOf(outer_).peak_bytes_allocated, 6 * kMiB) << "not 10";
}

TEST_F(EndedSegmentTest, BeforeABlockGrowsToANewPeakOfThePool) {
  ASSERT_TRUE(profiler_.RecordBlockResize(outer_, MiBAt(20), 6 * kMiB));
  EXPECT_EQ(StatsOf(outer_).peak_bytes_allocated, 6 * kMiB) << "not 10";
}

// The values of every site at the peak are those of that instant.
TEST_F(EndedSegmentTest, BeforeANewPeakOfTheDevice) {
  ASSERT_TRUE(Buffer(100, 90));
  EXPECT_EQ(Stats().peak_bytes_in_use, 100 * kMiB);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  EXPECT_EQ(IdleRow(snapshot, "outer").peak_bytes, 9 * kMiB) << "not 5";
}

TEST_F(EndedSegmentTest, BeforeANewPeakBegins) {
  profiler_.ResetPeak(kDefaultDevice);
  EXPECT_EQ(StatsOf(outer_).peak_bytes_allocated, 1 * kMiB) << "not 5";
  EXPECT_EQ(IdleRow(profiler_.TakeSnapshot(), "outer").peak_bytes, 9 * kMiB);
}

TEST_F(EndedSegmentTest, BeforeASnapshotAndBeforeTotals) {
  EXPECT_EQ(IdleRow(profiler_.TakeSnapshot(), "outer").inuse_bytes, 9 * kMiB);
  EXPECT_EQ(Live(), 2);
  ASSERT_TRUE(Segment(outer_, 0, 10));
  ASSERT_TRUE(Block(outer_, 0, 4));
  ASSERT_EQ(EndSegment(outer_, 0), 10);
  ASSERT_EQ(Live(), 3);
  ExpectInUse(10, 9);
  EXPECT_EQ(Live(), 2);
}

TEST_F(EndedSegmentTest, ManySegmentsAtOnce) {
  constexpr int kSegments = 3000;  // more than are kept
  for (int i = 0; i < kSegments; ++i) {
    ASSERT_TRUE(Segment(outer_, 1000 + 2 * i, 2));
    ASSERT_TRUE(Block(outer_, 1000 + 2 * i, 1));
  }
  ASSERT_TRUE(Segment(outer_, 0, 100));
  for (int i = 0; i < kSegments; ++i) ASSERT_EQ(End(1000 + 2 * i), 2);
  ExpectInUse(110, 109);
  EXPECT_EQ(Live(), 3);
}

TEST_F(EndedSegmentTest, WithThePoolsInsideIt) {
  ASSERT_TRUE(Segment(outer_, 40, 10));
  ASSERT_TRUE(Segment(middle_, 60, 10));
  ASSERT_TRUE(Segment(inner_, 80, 10));
  ASSERT_TRUE(Block(outer_, 40, 8));
  ASSERT_TRUE(Segment(middle_, 40, 8));
  ASSERT_TRUE(Block(middle_, 41, 4));
  ASSERT_TRUE(Segment(inner_, 41, 4));
  ASSERT_TRUE(Block(inner_, 42, 2));
  ASSERT_EQ(End(40), 10);
  ExpectInUse(30, 9 + 10 + 10);
  EXPECT_EQ(Stats().num_live, 4);
}

TEST_F(PoolsTest, DropDeviceEndsAllButTheKept) {
  const Pool elsewhere = {profiler_.Device("other"), outer_.allocator};
  const AllocatorId survivor = profiler_.Allocator("survivor");
  ASSERT_TRUE(Segment(outer_, 0, 10));
  ASSERT_TRUE(Block(outer_, 0, 4));
  ASSERT_TRUE(Segment(inner_, 0, 4));
  ASSERT_TRUE(Block(inner_, 0, 1));
  ASSERT_TRUE(Segment({kDefaultDevice, survivor}, 20, 10));
  ASSERT_TRUE(Block({kDefaultDevice, survivor}, 20, 3));
  ASSERT_TRUE(Segment(outer_, 40, 10));
  ASSERT_TRUE(Block(outer_, 40, 5));
  ASSERT_TRUE(Segment(elsewhere, 60, 10));
  ASSERT_TRUE(Block(elsewhere, 60, 5));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Block(outer_, 41 + i, 1));
  profiler_.DropDevice(kDefaultDevice, survivor, {MiBAt(40)});
  ExpectInUse(20, 20);
  EXPECT_EQ(Stats().num_live, 2);
  EXPECT_EQ(profiler_.Stats(elsewhere.device).idle_bytes, 5 * kMiB);
  profiler_.DropDevice(kDefaultDevice);
  ExpectInUse(0, 0);
  EXPECT_EQ(Stats().pool_bytes, 0);
}

TEST_F(PoolsTest, EndBlocksInARange) {
  ASSERT_TRUE(Segment(outer_, 0, 100));
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Block(outer_, 2 * i, 2));
  ASSERT_TRUE(Segment(inner_, 20, 2));
  ASSERT_TRUE(Block(inner_, 20, 1));
  Impl().EndBlocks(outer_, MiBAt(10).value(), 40 * kMiB);
  ExpectInUse(100, 40);
  EXPECT_EQ(StatsOf(inner_).bytes_allocated, 0);
  EXPECT_EQ(EndBlock(outer_, 8), 2);
  EXPECT_EQ(EndBlock(outer_, 10), -1);
  Impl().EndBlocks(outer_);
  ExpectInUse(100, 100);
  EXPECT_EQ(Stats().num_live, 1);
}

// --- Peaks ----------------------------------------------------------------------------------------------------------

TEST_F(PoolsTest, TwoPeaksEachWithItsOwnValues) {
  const auto tagged = [&](const char* name, const auto& call) {
    const ScopedTag tag("t", name);
    ASSERT_TRUE(call());
  };
  ASSERT_TRUE(Segment(outer_, 0, 100));
  tagged("a", [&] { return Block(outer_, 0, 60); });
  tagged("b", [&] { return Block(outer_, 60, 30); });  // the pool's peak: 90
  ASSERT_EQ(EndBlock(outer_, 0), 60);
  tagged("buffer", [&] { return Buffer(200, 50); });  // the device's peak: 150
  ASSERT_EQ(End(200), 50);
  ASSERT_EQ(EndBlock(outer_, 60), 30);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  EXPECT_EQ(Stats().peak_bytes_in_use, 150 * kMiB);
  EXPECT_EQ(Sum(snapshot, "a", &Snapshot::Sample::peak_bytes), 0);
  EXPECT_EQ(Sum(snapshot, "b", &Snapshot::Sample::peak_bytes), 30 * kMiB);
  EXPECT_EQ(Sum(snapshot, "buffer", &Snapshot::Sample::peak_bytes), 50 * kMiB);
  EXPECT_EQ(IdleRow(snapshot, "outer").peak_bytes, 70 * kMiB);
  EXPECT_EQ(IdleRow(snapshot, "outer").peak_objects, 1);
  EXPECT_EQ(StatsOf(outer_).peak_bytes_allocated, 90 * kMiB);
  EXPECT_EQ(StatsOf(outer_).peak_bytes_reserved, 100 * kMiB);
  EXPECT_EQ(Sum(snapshot, "a", &Snapshot::Sample::pool_peak_bytes), 60 * kMiB);
  EXPECT_EQ(Sum(snapshot, "b", &Snapshot::Sample::pool_peak_bytes), 30 * kMiB);
  EXPECT_EQ(Sum(snapshot, "b", &Snapshot::Sample::pool_peak_objects), 1);
  EXPECT_EQ(Sum(snapshot, "buffer", &Snapshot::Sample::pool_peak_bytes), 0);

  profiler_.ResetPeak(kDefaultDevice);
  EXPECT_EQ(Stats().peak_bytes_in_use, 100 * kMiB);
  EXPECT_EQ(StatsOf(outer_).peak_bytes_allocated, 0);
  tagged("b", [&] { return Block(outer_, 0, 10); });
  const Snapshot after = profiler_.TakeSnapshot();
  EXPECT_EQ(IdleRow(after, "outer").peak_bytes, 90 * kMiB) << "the device's peak is shown with this block";
  EXPECT_EQ(Sum(after, "b", &Snapshot::Sample::peak_bytes), 10 * kMiB);
  EXPECT_EQ(Sum(after, "b", &Snapshot::Sample::pool_peak_bytes), 10 * kMiB);
}

class PeakRecordTest : public PoolsTest {
 protected:
  void SetUp() override {
    const ScopedTag tag("t", "driver");
    ASSERT_TRUE(Buffer(0, 100));
  }
  // Where the peak counts the 100 MiB.
  void ExpectPeak(int64_t of_leaf, int64_t idle) {
    const Snapshot snapshot = profiler_.TakeSnapshot();
    int64_t leaves = 0;
    for (const Snapshot::Sample& sample : snapshot.samples) {
      EXPECT_GE(sample.peak_bytes, 0);
      EXPECT_GE(sample.peak_objects, 0);
      if (sample.kind != MemoryKind::kPool) leaves += sample.peak_bytes;
    }
    EXPECT_EQ(leaves, of_leaf * kMiB);
    EXPECT_EQ(IdleRow(snapshot, "outer").peak_bytes, idle * kMiB);
  }
};
TEST_F(PeakRecordTest, BecomesASegment) {
  ASSERT_TRUE(Segment(outer_, 0, 100));
  ExpectPeak(0, 100);
}
TEST_F(PeakRecordTest, BecomesASegmentInAnotherThread) {
  std::thread([&] { ASSERT_TRUE(Segment(outer_, 0, 100)); }).join();
  ExpectPeak(0, 100);
}
TEST_F(PeakRecordTest, ShrinksBeforeItBecomesASegment) {
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 10 * kMiB));
  ASSERT_TRUE(Segment(outer_, 0, 10));
  ExpectPeak(100, 0);
}
TEST_F(PeakRecordTest, EndsBeforeAnotherAtItsAddressBecomesASegment) {
  ASSERT_EQ(End(0), 100);
  ASSERT_TRUE(Buffer(0, 10));
  ASSERT_TRUE(Segment(outer_, 0, 10));
  ExpectPeak(100, 0);
}
TEST_F(PeakRecordTest, ChangesItsSiteBeforeItBecomesASegment) {
  ASSERT_TRUE(Impl().Reattribute(Caller::OfThisFunction(), MiBAt(0), profiler_.Allocator("program")));
  ASSERT_TRUE(Segment(outer_, 0, 100));
  ExpectPeak(100, 0);
}
TEST_F(PeakRecordTest, ResetBeforeItBecomesASegment) {
  profiler_.ResetPeak(kDefaultDevice);
  ASSERT_TRUE(Segment(outer_, 0, 100));
  ExpectPeak(100, 0);
}

// --- Random programs ------------------------------------------------------------------------------------------------

using hbmprof_test::ModeledPools;
using hbmprof_test::PoolOperation;
using hbmprof_test::PoolsModel;
using hbmprof_test::RandomPools;

// HBMPROF_TEST_SEED: the first seed. HBMPROF_TEST_ROUNDS: their number.
TEST(RandomPoolsTest, EqualTheNaiveModel) {
  const char* chosen = std::getenv("HBMPROF_TEST_SEED");
  const char* rounds = std::getenv("HBMPROF_TEST_ROUNDS");
  const uint64_t first = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : std::random_device()();
  const uint64_t count = rounds != nullptr ? std::strtoull(rounds, nullptr, 10) : hbmprof_test::kSanitized ? 6 : 30;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("HBMPROF_TEST_SEED=" + std::to_string(seed));
    Profiler profiler(WithoutStacks());
    const ModeledPools pools(&profiler);
    PoolsModel model;
    RandomPools program(
        pools, seed, 0, 200, [&](const PoolOperation& operation) { operation.Apply(&model); },
        [&](const PoolsModel::Key& key) { model.End(key); });
    std::mt19937_64 random(seed);
    // Rare snapshots: the profiler does not end at once what is in ended segments.
    const uint64_t period = std::vector<uint64_t>{1, 7, 60}[seed % 3];
    for (int i = 0; i < 1200 && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      if (random() % 100 == 0) {
        const int device = static_cast<int>(random() % PoolsModel::kDevices);
        if (random() % 4 == 0) {
          profiler.DropDevice(pools.device(device));
          program.Forget(device);
          const std::map<PoolsModel::Key, PoolsModel::Record> records = model.records();
          for (const auto& [key, record] : records) {
            if (record.device == device) model.End(key);
          }
        } else {
          profiler.ResetPeak(pools.device(device));
          model.ResetPeak(device);
        }
      } else {
        program.Step();
      }
      if (random() % period == 0) ModeledPools::ExpectSame(profiler.TakeSnapshot(), model);
    }
    program.Finish();
    ModeledPools::ExpectSame(profiler.TakeSnapshot(), model);
    ASSERT_FALSE(::testing::Test::HasFailure());
    EXPECT_EQ(profiler.GetTrackerStats().live_records, 0);
    EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 0);
    EXPECT_EQ(profiler.GetTrackerStats().replaced_records, 0);
    EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
  }
}

}  // namespace
}  // namespace hbmprof
