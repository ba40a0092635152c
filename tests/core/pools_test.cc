// Pools: segments that nest, grow, shrink, split, merge and are declared late, and blocks that lie across them, against
// a naive model of every byte.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "hbmprof/profiler.h"
#include "hbmprof/tag.h"
#include "tests/support/interval_model.h"
#include "tests/support/sanitized.h"

namespace hbmprof {
namespace {

using hbmprof_test::IntervalModel;
using Interval = IntervalModel::Interval;

constexpr uint64_t kBase = uint64_t{1} << 32;
constexpr int64_t kUnit = 256;
constexpr int64_t kMiB = 1 << 20;

BufferId At(int unit) { return BufferId(kBase + static_cast<uint64_t>(unit) * kUnit); }
size_t Bytes(int units) { return static_cast<size_t>(units) * kUnit; }
std::string TagName(int tag) { return "t" + std::to_string(tag); }

Options WithoutStacks() {
  Options options;
  options.unwinder = Unwinder::kNone;
  return options;
}

// In-use or peak bytes of the snapshot's samples, by tag, of kind kPool or of all others.
int64_t Sum(const Snapshot& snapshot, const std::string& tag, bool pool, int64_t Snapshot::Sample::*value) {
  int64_t sum = 0;
  for (const Snapshot::Sample& sample : snapshot.samples) {
    const std::string of_sample = sample.tags.empty() ? "" : sample.tags[0].second;
    if (of_sample == tag && (sample.kind == MemoryKind::kPool) == pool) sum += sample.*value;
  }
  return sum;
}

void ExpectSame(const Profiler& profiler, const IntervalModel& model) {
  const Snapshot snapshot = profiler.TakeSnapshot();
  for (const Snapshot::Sample& sample : snapshot.samples) {
    ASSERT_GE(sample.inuse_bytes, 0);
    ASSERT_GE(sample.peak_bytes, 0);
  }
  for (int tag = 0; tag < IntervalModel::kTags; ++tag) {
    SCOPED_TRACE("tag " + std::to_string(tag));
    const auto i = static_cast<size_t>(tag);
    ASSERT_EQ(Sum(snapshot, TagName(tag), false, &Snapshot::Sample::inuse_bytes), model.held().blocks[i] * kUnit);
    ASSERT_EQ(Sum(snapshot, TagName(tag), true, &Snapshot::Sample::inuse_bytes), model.held().idle[i] * kUnit);
    ASSERT_EQ(Sum(snapshot, TagName(tag), false, &Snapshot::Sample::peak_bytes),
              model.held_at_peak().blocks[i] * kUnit);
    ASSERT_EQ(Sum(snapshot, TagName(tag), true, &Snapshot::Sample::peak_bytes), model.held_at_peak().idle[i] * kUnit);
  }
  const DeviceStats stats = profiler.Stats(kDefaultDevice);
  ASSERT_EQ(stats.bytes_in_use, model.in_use() * kUnit);
  ASSERT_EQ(stats.peak_bytes_in_use, model.peak() * kUnit);
  ASSERT_EQ(stats.pool_bytes, model.pool_units() * kUnit);
  ASSERT_EQ(stats.bytes_reserved, model.idle_units() * kUnit);
  ASSERT_EQ(stats.num_live, static_cast<int64_t>(model.size()));
}

// --- One rule each --------------------------------------------------------------------------------------------------

class PoolsTest : public ::testing::Test {
 protected:
  DeviceStats Stats() const { return profiler_.Stats(kDefaultDevice); }
  void ExpectInUse(int64_t in_use, int64_t idle) const {
    EXPECT_EQ(Stats().bytes_in_use, in_use);
    EXPECT_EQ(Stats().bytes_reserved, idle);
  }
  Profiler profiler_{WithoutStacks()};
};

BufferId MiBAt(int64_t mib) { return BufferId(kBase + static_cast<uint64_t>(mib * kMiB)); }

TEST_F(PoolsTest, BlockAcrossAdjacentSegmentsCountsOnce) {
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 20 * kMiB));
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(20), 20 * kMiB));
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(5), 30 * kMiB));
  ExpectInUse(40 * kMiB, 10 * kMiB);
  EXPECT_EQ(profiler_.RecordBlockFree(MiBAt(5)), 30 * kMiB);
  ExpectInUse(40 * kMiB, 40 * kMiB);
}

TEST_F(PoolsTest, BlockPartlyOutsideCountsThatPart) {
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 10 * kMiB));
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(8), 5 * kMiB));
  ExpectInUse(13 * kMiB, 8 * kMiB);
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 20 * kMiB));
  ExpectInUse(20 * kMiB, 15 * kMiB);
}

TEST_F(PoolsTest, LateSegmentTakesItsBlocks) {
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(0), 1 * kMiB));
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(4), 2 * kMiB));
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 20 * kMiB));
  ExpectInUse(20 * kMiB, 17 * kMiB);
  profiler_.RecordBlockFree(MiBAt(0));
  profiler_.RecordBlockFree(MiBAt(4));
  ExpectInUse(20 * kMiB, 20 * kMiB);
}

TEST_F(PoolsTest, NestedPoolsCountEachByteOnce) {
  {
    const ScopedTag tag("pool", "rmm");
    ASSERT_TRUE(profiler_.RecordAlloc(MiBAt(0), 100 * kMiB));  // the driver's
    ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 100 * kMiB));
  }
  {
    const ScopedTag tag("pool", "arena");
    ASSERT_TRUE(profiler_.RecordBlock(MiBAt(0), 40 * kMiB));
    ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 40 * kMiB));
  }
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(0), 8 * kMiB)) << "begins where all around it begin";
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(8), 2 * kMiB));
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(40), 5 * kMiB));
  ExpectInUse(100 * kMiB, 85 * kMiB);
  const Snapshot snapshot = profiler_.TakeSnapshot();
  EXPECT_EQ(Sum(snapshot, "rmm", true, &Snapshot::Sample::inuse_bytes), 55 * kMiB);
  EXPECT_EQ(Sum(snapshot, "arena", true, &Snapshot::Sample::inuse_bytes), 30 * kMiB);
  EXPECT_EQ(Stats().pool_bytes, 100 * kMiB);
  EXPECT_EQ(Stats().num_live, 5);
  EXPECT_EQ(profiler_.RecordBlockFree(MiBAt(0)), 8 * kMiB);
  EXPECT_EQ(profiler_.RecordBlockFree(MiBAt(0)), 40 * kMiB) << "with the block that is in it";
  ExpectInUse(100 * kMiB, 95 * kMiB);
  EXPECT_FALSE(profiler_.RecordBlockFree(MiBAt(8)));
  EXPECT_EQ(profiler_.RecordFree(MiBAt(0)), 100 * kMiB);
  ExpectInUse(0, 0);
  EXPECT_EQ(Stats().num_live, 0);
}

// The id of a block has no space for a deeper level.
TEST_F(PoolsTest, SegmentsNestNoDeeperFromInsideOut) {
  ASSERT_TRUE(profiler_.RecordSegment(At(1000), Bytes(2)));
  ASSERT_TRUE(profiler_.RecordSegment(At(1000), Bytes(1)));
  int deepest = 1;
  for (; deepest < 126; ++deepest) {
    ASSERT_TRUE(profiler_.RecordSegment(At(1000 - deepest), Bytes(2 + 2 * deepest))) << deepest;
  }
  const auto expect_same = [&] {
    EXPECT_EQ(Stats().num_live, 127);
    ExpectInUse(2 * deepest * kUnit, 2 * deepest * kUnit);
  };
  expect_same();
  for (int more = 0; more < 4; ++more) {
    EXPECT_FALSE(profiler_.RecordSegment(At(800 - more), Bytes(400 + 2 * more))) << "around all of them";
  }
  EXPECT_FALSE(profiler_.RecordSegment(At(1000), kUnit / 2)) << "inside all of them";
  expect_same();
  ASSERT_TRUE(profiler_.RecordAlloc(At(800), Bytes(400)));
  EXPECT_FALSE(profiler_.RecordSegment(At(800), Bytes(400))) << "a live buffer around all of them";
  EXPECT_EQ(profiler_.RecordFree(At(800)), 400 * kUnit);
  ASSERT_TRUE(profiler_.RecordBlock(At(1000), Bytes(1)));
  ExpectInUse(2 * deepest * kUnit, (2 * deepest - 1) * kUnit);
  EXPECT_TRUE(profiler_.RecordBlockFree(At(1000)));
  EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 0);
  expect_same();
  profiler_.DropDevice(kDefaultDevice);
  ExpectInUse(0, 0);
}

TEST_F(PoolsTest, FreedBytesServeBlocksOfOtherThreads) {
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 256 * kMiB));
  std::thread([&] {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(profiler_.RecordBlock(MiBAt(0), 1 * kMiB));
      ASSERT_EQ(profiler_.RecordBlockFree(MiBAt(0)), 1 * kMiB);
    }
  }).join();
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(0), 256 * kMiB));
  ExpectInUse(256 * kMiB, 0);
}

TEST_F(PoolsTest, ResizeKeepsSiteAndCountsTheDifference) {
  ASSERT_TRUE(profiler_.RecordAlloc(MiBAt(0), 10 * kMiB));
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 15 * kMiB));
  EXPECT_EQ(Stats().bytes_in_use, 15 * kMiB);
  EXPECT_EQ(Stats().num_allocs, 1);
  EXPECT_EQ(Stats().largest_alloc_size, 15 * kMiB);
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(0), 5 * kMiB));
  EXPECT_EQ(Stats().bytes_in_use, 5 * kMiB);
  EXPECT_EQ(Stats().peak_bytes_in_use, 15 * kMiB);
  EXPECT_FALSE(profiler_.RecordResize(MiBAt(1), 5 * kMiB)) << "nothing is there";
  int64_t allocated = 0;
  for (const Snapshot::Sample& sample : profiler_.TakeSnapshot().samples) allocated += sample.alloc_bytes;
  EXPECT_EQ(allocated, 15 * kMiB);
  EXPECT_EQ(profiler_.RecordFree(MiBAt(0)), 5 * kMiB);
  EXPECT_EQ(Stats().bytes_in_use, 0);
}

TEST_F(PoolsTest, BlockOfKindPoolIsABlock) {
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(0), 1 * kMiB, {kDefaultDevice, MemoryKind::kPool}));
  ExpectInUse(1 * kMiB, 0);
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 10 * kMiB));
  ExpectInUse(10 * kMiB, 9 * kMiB);
  EXPECT_EQ(profiler_.RecordBlockFree(MiBAt(0)), 1 * kMiB);
  ExpectInUse(10 * kMiB, 10 * kMiB);
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(20), 1 * kMiB, {kDefaultDevice, MemoryKind::kPool}));
  profiler_.DropDevice(kDefaultDevice);
  ExpectInUse(0, 0);
  EXPECT_EQ(Stats().pool_bytes, 0);
}

TEST_F(PoolsTest, SplitAtTheIdOfALiveSegmentIsRefused) {
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 20 * kMiB));
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(4), 4 * kMiB));  // its id is its address
  EXPECT_FALSE(profiler_.SplitSegment(MiBAt(0), 4 * kMiB));
  ExpectInUse(20 * kMiB, 20 * kMiB);
  EXPECT_TRUE(profiler_.SplitSegment(MiBAt(0), 8 * kMiB)) << "the end of the inner segment";
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(12), 4 * kMiB));
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(12), 4 * kMiB));  // it was a block
  EXPECT_TRUE(profiler_.SplitSegment(MiBAt(8), 4 * kMiB));
  ExpectInUse(20 * kMiB, 20 * kMiB);
}

TEST_F(PoolsTest, MergeBeyondTheLargestSizeIsRefused) {
  const int64_t size = int64_t{600} << 10;  // in MiB
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), static_cast<size_t>(size * kMiB)));
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(size), static_cast<size_t>(size * kMiB)));
  EXPECT_FALSE(profiler_.MergeSegments(MiBAt(0), MiBAt(size)));
  EXPECT_EQ(profiler_.RecordFree(MiBAt(0)), size * kMiB);
  EXPECT_EQ(profiler_.RecordFree(MiBAt(size)), size * kMiB);
  ExpectInUse(0, 0);
}

TEST_F(PoolsTest, BlockReplacesTheStaleBlockOfAnotherDevice) {
  const DeviceId other = profiler_.Device("other");
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(10), 10 * kMiB));
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(8), 4 * kMiB)) << "partly in the segment";
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(8), 1 * kMiB, {other}));
  EXPECT_EQ(profiler_.GetTrackerStats().replaced_records, 1);
  ExpectInUse(10 * kMiB, 10 * kMiB);
  EXPECT_EQ(profiler_.Stats(other).bytes_in_use, 1 * kMiB);
  profiler_.RecordFree(MiBAt(10));
  profiler_.RecordBlockFree(MiBAt(8));
  ExpectInUse(0, 0);
  EXPECT_EQ(profiler_.Stats(other).bytes_in_use, 0);
}

TEST_F(PoolsTest, ResizeThatCutsAnInnerSegmentIsRefused) {
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 23 * kMiB));
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 16 * kMiB)) << "begins where the outer one begins";
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(7), 1 * kMiB));
  EXPECT_FALSE(profiler_.RecordResize(MiBAt(0), 9 * kMiB));
  ExpectInUse(23 * kMiB, 22 * kMiB);
  EXPECT_TRUE(profiler_.RecordResize(MiBAt(0), 16 * kMiB));
  profiler_.RecordBlockFree(MiBAt(7));
  profiler_.RecordFree(MiBAt(0));
  ExpectInUse(0, 0);
  EXPECT_EQ(Stats().num_live, 0);
}

TEST_F(PoolsTest, SegmentWithOverlappingBlocksCanShrink) {
  ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 21 * kMiB));
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(0), 4 * kMiB));
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(1), 4 * kMiB)) << "the free of the first was not recorded";
  EXPECT_TRUE(profiler_.RecordResize(MiBAt(0), 5 * kMiB));
  for (const Snapshot::Sample& sample : profiler_.TakeSnapshot().samples) EXPECT_GE(sample.inuse_bytes, 0);
  EXPECT_GE(Stats().bytes_reserved, 0);
  profiler_.RecordFree(MiBAt(0));
  profiler_.RecordBlockFree(MiBAt(0));
  profiler_.RecordBlockFree(MiBAt(1));
  ExpectInUse(0, 0);
}

// A block whose segments have too few idle bytes counts all of its bytes itself. It is found by its address also after
// its inner segment has ended, or no longer reaches to it.
class BlockThatCountsItselfTest : public PoolsTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(profiler_.RecordSegment(MiBAt(0), 20 * kMiB));
    ASSERT_TRUE(profiler_.RecordSegment(MiBAt(4), 4 * kMiB));
    ASSERT_TRUE(profiler_.RecordBlock(MiBAt(4), 3 * kMiB));
    ASSERT_TRUE(profiler_.RecordBlock(MiBAt(6), 2 * kMiB));  // only 1 MiB is idle
    ExpectInUse(22 * kMiB, 17 * kMiB);
    profiler_.RecordBlockFree(MiBAt(4));
    ExpectInUse(22 * kMiB, 20 * kMiB);
  }
  void ExpectTaken() {
    ExpectInUse(20 * kMiB, 18 * kMiB);
    EXPECT_EQ(profiler_.RecordBlockFree(MiBAt(6)), 2 * kMiB);
    ExpectInUse(20 * kMiB, 20 * kMiB);
    EXPECT_EQ(profiler_.GetTrackerStats().foreign_frees, 0);
  }
};
TEST_F(BlockThatCountsItselfTest, InnerSegmentEnds) {
  ASSERT_TRUE(profiler_.RecordFree(MiBAt(4)));
  ExpectTaken();
}
TEST_F(BlockThatCountsItselfTest, InnerSegmentShrinks) {
  ASSERT_TRUE(profiler_.RecordResize(MiBAt(4), 1 * kMiB));
  ExpectTaken();
}
TEST_F(BlockThatCountsItselfTest, AllSegmentsEnd) {
  ASSERT_TRUE(profiler_.RecordFree(MiBAt(0)));
  ExpectInUse(2 * kMiB, 0);
  EXPECT_EQ(profiler_.RecordBlockFree(MiBAt(6)), 2 * kMiB);
  ExpectInUse(0, 0);
}

TEST_F(PoolsTest, ResizedAliasStaysAtZeroBytes) {
  ASSERT_TRUE(profiler_.RecordAlloc(MiBAt(0), 100, {kDefaultDevice, MemoryKind::kAlias}));
  ASSERT_TRUE(profiler_.RecordBlock(MiBAt(0), 100, {kDefaultDevice, MemoryKind::kAlias}));
  EXPECT_TRUE(profiler_.RecordResize(MiBAt(0), 1 * kMiB));
  EXPECT_TRUE(profiler_.RecordBlockResize(MiBAt(0), 1 * kMiB));
  ExpectInUse(0, 0);
}

TEST_F(PoolsTest, BlockAddressBeyondTheLimitIsDropped) {
  EXPECT_FALSE(profiler_.RecordBlock(BufferId(uint64_t{1} << 50), 100));
  EXPECT_EQ(profiler_.GetTrackerStats().dropped_records, 1);
}

// --- Random operations ----------------------------------------------------------------------------------------------

class RandomPools {
 public:
  RandomPools(Profiler* profiler, uint64_t seed) : profiler_(*profiler), random_(seed) {}

  const IntervalModel& model() const { return model_; }
  // Makes one random operation. Does nothing if a correct program could not make the operation that was drawn.
  void Step() {
    IntervalModel changed = model_;
    bool recorded = false;
    const int kind = Below(100);
    if (kind < 30) {
      const Interval block = Draw(6, false);
      changed.Add(block);
      if (!changed.IsSound()) return;
      ScopedTag tag("t", TagName(block.tag));
      recorded = profiler_.RecordBlock(At(block.start), Bytes(block.end - block.start));
    } else if (kind < 45) {
      recorded = Segment(&changed);
      if (!recorded) return;
    } else if (kind < 75) {
      if (model_.size() == 0) return;
      const size_t i = Any();
      if (model_[i].is_segment && Below(4) != 0) return;
      const Interval gone = model_[i];
      if (gone.is_segment && gone.has_block_id && !IsInnermostBlock(i)) return;
      changed.Remove(i);
      if (!changed.IsSound()) return;
      const bool as_block = !gone.is_segment || gone.has_block_id;
      const std::optional<int64_t> freed =
          as_block ? profiler_.RecordBlockFree(At(gone.start)) : profiler_.RecordFree(At(gone.start));
      ASSERT_EQ(freed, static_cast<int64_t>(Bytes(gone.end - gone.start)))
          << "free of " << gone.start << " before: " << Describe(model_);
      recorded = true;
    } else if (kind < 88) {
      if (model_.size() == 0) return;
      const size_t i = Any();
      const Interval was = model_[i];
      const int end = was.start + 1 + Below(was.is_segment ? 24 : 6);
      if (was.is_segment && was.has_block_id && !IsInnermostBlock(i)) return;
      if (was.is_segment && !CanSetEnd(i, end)) {
        if (!was.has_block_id) {
          EXPECT_FALSE(profiler_.RecordResize(At(was.start), Bytes(end - was.start)));
        }
        return;
      }
      changed.SetEnd(i, end);
      if (!changed.IsSound() || changed.EqualSegments() > model_.EqualSegments()) return;
      const bool as_block = !was.is_segment || was.has_block_id;
      recorded = as_block ? profiler_.RecordBlockResize(At(was.start), Bytes(end - was.start))
                          : profiler_.RecordResize(At(was.start), Bytes(end - was.start));
    } else if (kind < 93) {
      recorded = Split(&changed);
      if (!recorded) return;
    } else if (kind < 97) {
      recorded = Merge(&changed);
      if (!recorded) return;
    } else if (kind < 99) {
      profiler_.ResetPeak(kDefaultDevice);
      changed.ResetPeak();
      recorded = true;
    } else {
      if (Below(10) != 0) return;
      profiler_.DropDevice(kDefaultDevice);
      changed = IntervalModel(kUnits);
      // The peak stays.
      if (profiler_.Stats(kDefaultDevice).bytes_in_use == 0) profiler_.ResetPeak(kDefaultDevice);
      recorded = true;
    }
    ASSERT_TRUE(recorded) << "operation " << kind << "\nbefore: " << Describe(model_)
                          << "\nafter: " << Describe(changed);
    last_ = "operation " + std::to_string(kind) + "\nbefore: " + Describe(model_) + "\nafter: " + Describe(changed);
    model_ = changed;
  }
  // Describes the last operation.
  const std::string& last() const { return last_; }

 private:
  static std::string Describe(const IntervalModel& model) {
    std::string text;
    for (size_t i = 0; i < model.size(); ++i) {
      const Interval& interval = model[i];
      text += std::string(interval.is_segment ? interval.has_block_id ? " inner" : " segment" : " block") + "[" +
              std::to_string(interval.start) + "," + std::to_string(interval.end) + ")t" + std::to_string(interval.tag);
    }
    return text;
  }

  static constexpr int kUnits = 64;

  int Below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }
  size_t Any() { return static_cast<size_t>(Below(static_cast<int>(model_.size()))); }
  Interval Draw(int most, bool is_segment) {
    const int start = Below(kUnits);
    return {start, start + 1 + Below(most), Below(IntervalModel::kTags), is_segment, !is_segment};
  }
  // Returns whether RecordBlockFree of its address frees this one.
  bool IsInnermostBlock(size_t i) const {
    for (size_t j = 0; j < model_.size(); ++j) {
      if (j == i || model_[j].start != model_[i].start) continue;
      if (!model_[j].is_segment || (model_[j].has_block_id && model_.IsInside(j, i))) return false;
    }
    return true;
  }
  // Returns whether the added part contains no other segment, no segment is cut in two, and the segment stays inside
  // the one around it.
  bool CanSetEnd(size_t i, int end) const {
    const Interval& segment = model_[i];
    const int low = std::min(end, segment.end);
    const int high = std::max(end, segment.end);
    for (size_t j = 0; j < model_.size(); ++j) {
      const Interval& other = model_[j];
      if (j == i || !other.is_segment) continue;
      if (model_.IsInside(i, j)) {
        if (end > other.end) return false;
      } else if (other.start < high && low < other.end && (end > segment.end || other.start < end)) {
        return false;
      }
    }
    return true;
  }

  bool Segment(IntervalModel* changed) {
    Interval segment = Draw(24, true);
    // A block in a pool becomes a segment now and then.
    if (model_.size() > 0 && Below(3) == 0) {
      const size_t i = Any();
      if (model_[i].is_segment) return false;
      changed->MakeSegment(i);
      // All of it lies in the segment that it begins in.
      int around = 0;
      for (size_t j = 0; j < model_.size(); ++j) around += model_.IsInside(i, j) ? 1 : 0;
      if (around == 0 || around != model_.LevelOf(i) || !changed->IsSound()) return false;
      EXPECT_TRUE(profiler_.RecordSegment(At(model_[i].start), Bytes(model_[i].end - model_[i].start)));
      return true;
    }
    for (size_t i = 0; i < model_.size(); ++i) {
      const Interval& other = model_[i];
      if (other.start != segment.start) continue;
      if (other.end == segment.end) return false;
      if (other.is_segment && !other.has_block_id) segment.has_block_id = true;
    }
    changed->Add(segment);
    if (!changed->IsSound()) return false;
    // As a block of the segment around it, it must be the only one of that level there.
    const size_t last = changed->size() - 1;
    for (size_t i = 0; i < last; ++i) {
      const Interval& other = (*changed)[i];
      if (other.start != segment.start || !segment.has_block_id) continue;
      if (!changed->IsInside(last, i)) return false;
    }
    ScopedTag tag("t", TagName(segment.tag));
    EXPECT_TRUE(profiler_.RecordSegment(At(segment.start), Bytes(segment.end - segment.start)));
    return true;
  }

  bool Split(IntervalModel* changed) {
    if (model_.size() == 0) return false;
    const size_t i = Any();
    const Interval segment = model_[i];
    if (!segment.is_segment || segment.has_block_id || segment.end - segment.start < 2) return false;
    const int at = segment.start + 1 + Below(segment.end - segment.start - 1);
    for (size_t j = 0; j < model_.size(); ++j) {
      const Interval& other = model_[j];
      if (other.is_segment && !other.has_block_id && other.start == at) return false;
      if (other.is_segment && model_.IsInside(j, i) && other.start < at && at < other.end) return false;
    }
    changed->Split(i, at);
    if (!changed->IsSound() || changed->EqualSegments() > model_.EqualSegments()) return false;
    EXPECT_TRUE(profiler_.SplitSegment(At(segment.start), Bytes(at - segment.start)));
    return true;
  }

  bool Merge(IntervalModel* changed) {
    for (size_t i = 0; i < model_.size(); ++i) {
      for (size_t j = 0; j < model_.size(); ++j) {
        const Interval& first = model_[i];
        const Interval& second = model_[j];
        if (!first.is_segment || !second.is_segment || first.end != second.start) continue;
        if (first.has_block_id || second.has_block_id || model_.DepthOf(i) != model_.DepthOf(j)) continue;
        bool is_same_outer = true;
        for (size_t k = 0; k < model_.size(); ++k) {
          is_same_outer = is_same_outer && model_.IsInside(i, k) == model_.IsInside(j, k);
        }
        if (!is_same_outer || Below(2) == 0) continue;
        changed->Merge(i, j);
        if (!changed->IsSound() || changed->EqualSegments() > model_.EqualSegments()) return false;
        EXPECT_TRUE(profiler_.MergeSegments(At(first.start), At(second.start)));
        return true;
      }
    }
    return false;
  }

  Profiler& profiler_;
  std::mt19937_64 random_;
  IntervalModel model_{kUnits};
  std::string last_;
};

uint64_t Seed() {
  const char* seed = std::getenv("HBMPROF_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device()();
}

TEST(RandomPoolsTest, EqualTheNaiveModelAfterEveryOperation) {
  const char* rounds = std::getenv("HBMPROF_TEST_ROUNDS");
  const uint64_t first = Seed();
  const uint64_t count = rounds != nullptr ? std::strtoull(rounds, nullptr, 10) : hbmprof_test::kSanitized ? 5 : 20;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("HBMPROF_TEST_SEED=" + std::to_string(seed));
    Profiler profiler(WithoutStacks());
    RandomPools pools(&profiler, seed);
    for (int i = 0; i < 2000; ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      pools.Step();
      ASSERT_FALSE(::testing::Test::HasFailure());
      ExpectSame(profiler, pools.model());
      ASSERT_FALSE(::testing::Test::HasFailure()) << pools.last();
    }
    EXPECT_EQ(profiler.GetTrackerStats().dropped_records, 0);
    EXPECT_EQ(profiler.GetTrackerStats().replaced_records, 0);
    EXPECT_EQ(profiler.GetTrackerStats().foreign_frees, 0);
  }
}

// Blocks may overlap here, as they do if frees were not recorded. Whatever happens to the segments around a block, it
// is found by its address as long as it is live.
TEST(RandomPoolsTest, EachRecordIsFoundByItsAddress) {
  constexpr int kUnits = 24;
  const uint64_t first = Seed();
  const uint64_t count = hbmprof_test::kSanitized ? 500 : 5000;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("HBMPROF_TEST_SEED=" + std::to_string(seed));
    Profiler profiler(WithoutStacks());
    std::mt19937_64 random(seed);
    const auto below = [&random](int limit) { return static_cast<int>(random() % static_cast<uint64_t>(limit)); };
    for (int i = 0; i < 60; ++i) {
      const BufferId address = At(below(kUnits));
      const size_t bytes = Bytes(1 + below(kUnits / 2));
      switch (below(10)) {
        case 0:
          profiler.RecordSegment(address, bytes);
          break;
        case 1:
          profiler.RecordFree(address);
          break;
        case 2:
          profiler.RecordResize(address, bytes);
          break;
        case 3:
          profiler.SplitSegment(address, bytes);
          break;
        case 4:
          profiler.RecordBlockFree(address);
          break;
        case 5:
          profiler.RecordBlockResize(address, bytes);
          break;
        case 6:
          profiler.MergeSegments(address, BufferId(address.value() + bytes));
          break;
        default:
          profiler.RecordBlock(address, bytes);
          break;
      }
    }
    const bool blocks_first = below(2) == 0;
    for (const bool blocks : {blocks_first, !blocks_first}) {
      for (int unit = 0; unit < 2 * kUnits; ++unit) {
        while (blocks ? profiler.RecordBlockFree(At(unit)) : profiler.RecordFree(At(unit))) {
        }
      }
    }
    for (int unit = 0; unit < 2 * kUnits; ++unit) profiler.RecordBlockFree(At(unit));
    const DeviceStats stats = profiler.Stats(kDefaultDevice);
    ASSERT_EQ(stats.num_live, 0);
    ASSERT_EQ(stats.bytes_in_use, 0);
    ASSERT_EQ(stats.pool_bytes, 0);
  }
}

}  // namespace
}  // namespace hbmprof
