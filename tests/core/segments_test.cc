// The map of pools' segments.

#include "src/core/segments.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

SiteId SiteAt(const SegmentMap& map, uint64_t start, uint64_t bytes) {
  const SegmentMap::Found segment = map.Find(start, bytes);
  return segment ? segment.site() : kNoSite;
}

bool Add(SegmentMap& map, uint64_t start, uint64_t bytes, SiteId site) {
  SegmentMap::Found added;
  return map.Add(start, bytes, site, &added) == SegmentMap::Added::kAdded;
}

TEST(SegmentMap, FindsOnlyWhatLiesWhollyInside) {
  SegmentMap map;
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(SiteAt(map, 1000, 1), kNoSite);
  ASSERT_TRUE(Add(map, 1000, 100, 7));
  EXPECT_FALSE(map.empty());
  EXPECT_EQ(SiteAt(map, 1000, 100), 7u);
  EXPECT_EQ(SiteAt(map, 1000, 0), 7u);
  EXPECT_EQ(SiteAt(map, 1050, 50), 7u);
  EXPECT_EQ(SiteAt(map, 1099, 1), 7u);
  EXPECT_EQ(SiteAt(map, 999, 1), kNoSite);
  EXPECT_EQ(SiteAt(map, 999, 50), kNoSite);
  EXPECT_EQ(SiteAt(map, 1000, 101), kNoSite);
  EXPECT_EQ(SiteAt(map, 1050, 51), kNoSite);
  EXPECT_EQ(SiteAt(map, 1100, 0), kNoSite);
  EXPECT_EQ(SiteAt(map, 1050, ~uint64_t{0}), kNoSite);
  EXPECT_EQ(SiteAt(map, 0, ~uint64_t{0}), kNoSite);
}

TEST(SegmentMap, RefusesOverlapsEmptySegmentsAndTheEndOfTheAddressSpace) {
  SegmentMap map;
  ASSERT_TRUE(Add(map, 1000, 100, 1));
  EXPECT_FALSE(Add(map, 1000, 100, 2));
  EXPECT_FALSE(Add(map, 1000, 1, 2));
  EXPECT_FALSE(Add(map, 1099, 1, 2));
  EXPECT_FALSE(Add(map, 901, 100, 2));
  EXPECT_FALSE(Add(map, 500, 5000, 2));
  EXPECT_FALSE(Add(map, 2000, 0, 2));
  EXPECT_FALSE(Add(map, 2000, SegmentMap::kMaxBytes + 1, 2));
  EXPECT_FALSE(Add(map, ~uint64_t{0} - 10, 100, 2));
  EXPECT_EQ(SiteAt(map, 1000, 100), 1u);
  // Neighbours are no overlap.
  EXPECT_TRUE(Add(map, 1100, 100, 3));
  EXPECT_TRUE(Add(map, 900, 100, 4));
  EXPECT_EQ(SiteAt(map, 1000, 100), 1u);
  EXPECT_EQ(SiteAt(map, 1050, 100), kNoSite) << "a block across two segments lies in neither";
}

TEST(SegmentMap, RemovesByExactStartAndSaysWhetherThereWereBlocks) {
  SegmentMap map;
  bool had_blocks = true;
  EXPECT_FALSE(map.Remove(1000, &had_blocks));
  ASSERT_TRUE(Add(map, 1000, 100, 1));
  EXPECT_FALSE(map.Remove(1001, &had_blocks));
  EXPECT_FALSE(map.Remove(999, &had_blocks));
  EXPECT_TRUE(map.Remove(1000, &had_blocks));
  EXPECT_FALSE(had_blocks);
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(SiteAt(map, 1000, 1), kNoSite);

  ASSERT_TRUE(Add(map, 1000, 100, 2));
  ASSERT_TRUE(map.Find(1000, 10).Reserve(10));
  EXPECT_TRUE(map.Remove(1000, &had_blocks));
  EXPECT_TRUE(had_blocks);
}

TEST(SegmentMap, ReservesNoMoreThanIsIdle) {
  SegmentMap map;
  ASSERT_TRUE(Add(map, 1000, 100, 1));
  const SegmentMap::Found segment = map.Find(1000, 1);
  ASSERT_TRUE(segment);
  EXPECT_TRUE(segment.Reserve(60));
  EXPECT_FALSE(segment.Reserve(41));
  EXPECT_TRUE(segment.Reserve(40));
  EXPECT_TRUE(segment.Reserve(0));
  EXPECT_FALSE(segment.Reserve(1));
  segment.Return(60);
  EXPECT_TRUE(segment.Reserve(60));
  // A new segment in the same place begins idle.
  bool had_blocks;
  map.Remove(1000, &had_blocks);
  ASSERT_TRUE(Add(map, 1000, 100, 1));
  EXPECT_TRUE(map.Find(1000, 1).Reserve(100));
}

TEST(SegmentMap, ARemovedSegmentGivesAndTakesNoBytesThoughItsRecordIsUsedAgain) {
  SegmentMap map;
  ASSERT_TRUE(Add(map, 1000, 100, 1));
  const SegmentMap::Found gone = map.Find(1000, 1);
  EXPECT_TRUE(gone.IsThere());
  EXPECT_TRUE(gone.Reserve(100));
  bool had_blocks = false;
  ASSERT_TRUE(map.Remove(1000, &had_blocks));
  EXPECT_TRUE(had_blocks);
  EXPECT_FALSE(gone.IsThere());
  EXPECT_FALSE(gone.Reserve(0));
  ASSERT_TRUE(Add(map, 1000, 100, 1));
  EXPECT_FALSE(gone.IsThere());
  EXPECT_FALSE(gone.Reserve(1));
  const SegmentMap::Found present = map.Find(1000, 1);
  EXPECT_TRUE(present.Reserve(60));
  gone.Return(50);
  EXPECT_FALSE(present.Reserve(41));
  present.Return(61);
  EXPECT_FALSE(present.Reserve(41)) << "more than was taken does not come back";
  map.Remove(gone);
  EXPECT_TRUE(present.IsThere());
  map.Remove(present);
  EXPECT_TRUE(map.empty());
}

TEST(SegmentMap, RemovesByTheirSites) {
  SegmentMap map;
  for (uint64_t i = 1; i <= 100; ++i) ASSERT_TRUE(Add(map, i * 100, 100, static_cast<SiteId>(i)));
  const SegmentMap::Found gone = map.Find(200, 1);
  map.RemoveIf([](SiteId site) { return site % 2 == 0; });
  EXPECT_FALSE(gone.IsThere());
  for (uint64_t i = 1; i <= 100; ++i) EXPECT_EQ(SiteAt(map, i * 100, 100), i % 2 == 0 ? kNoSite : i);
}

TEST(SegmentMap, ClearForgetsAllAndTheMapGoesOn) {
  SegmentMap map;
  for (uint64_t i = 1; i <= 1000; ++i) ASSERT_TRUE(Add(map, i * 100, 100, static_cast<SiteId>(i)));
  map.Clear();
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(SiteAt(map, 500, 1), kNoSite);
  EXPECT_TRUE(Add(map, 450, 100, 3));
  EXPECT_EQ(SiteAt(map, 500, 1), 3u);
}

TEST(SegmentMap, AgreesWithAMapOverRandomEvents) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  SegmentMap map;
  std::map<uint64_t, std::pair<uint64_t, SiteId>> model;  // start -> end, site
  for (int i = 0; i < 40000; ++i) {
    const uint64_t start = 1 + random() % 100000;
    const uint64_t end = start + 1 + random() % 40;
    if (random() % 3 != 0) {
      const auto next = model.lower_bound(start);
      const bool free = (next == model.end() || next->first >= end) &&
                        (next == model.begin() || std::prev(next)->second.first <= start);
      ASSERT_EQ(Add(map, start, end - start, static_cast<SiteId>(i)), free);
      if (free) model[start] = {end, static_cast<SiteId>(i)};
    } else if (!model.empty()) {
      auto gone = model.lower_bound(start);
      if (gone == model.end()) gone = model.begin();
      bool had_blocks;
      ASSERT_TRUE(map.Remove(gone->first, &had_blocks));
      ASSERT_FALSE(had_blocks);
      model.erase(gone);
    }
    const uint64_t address = random() % 100100;
    const auto after = model.upper_bound(address);
    const bool inside = after != model.begin() && std::prev(after)->second.first > address;
    ASSERT_EQ(SiteAt(map, address, 1), inside ? std::prev(after)->second.second : kNoSite);
  }
}

TEST(SegmentMap, AStableSegmentIsFoundAtAnyTimeWhileOthersComeAndGo) {
  SegmentMap map;
  constexpr uint64_t kStable = 1 << 20;
  ASSERT_TRUE(Add(map, kStable, 100, 42));
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  std::atomic<int64_t> finds{0};
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        ASSERT_EQ(SiteAt(map, kStable + 50, 50), 42u);
        ASSERT_EQ(SiteAt(map, kStable + 50, 51), kNoSite);
        ++finds;
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    // Segments on both sides move the stable one within the array, and outgrow it.
    for (uint64_t i = 1; i <= 300; ++i) {
      ASSERT_TRUE(Add(map, kStable - i * 200, 100, 1));
      ASSERT_TRUE(Add(map, kStable + i * 200, 100, 2));
    }
    bool had_blocks;
    for (uint64_t i = 1; i <= 300; ++i) {
      ASSERT_TRUE(map.Remove(kStable + i * 200, &had_blocks));
      ASSERT_TRUE(map.Remove(kStable - i * 200, &had_blocks));
    }
  }
  while (finds.load() == 0) std::this_thread::yield();
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace hbmprof::internal
