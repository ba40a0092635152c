// The map of segments alone. pools_test tests the bytes that blocks take from segments.

#include "src/core/pools/segments.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

// Adds [start, start + bytes) as a program would: only if it fits.
Segment* Add(SegmentMap& map, uint64_t start, uint64_t bytes, SiteId site) {
  return map.Fits(start, start + bytes) ? map.Add(start, start + bytes, start, site, 0) : nullptr;
}

SiteId SiteAt(const SegmentMap& map, uint64_t address) {
  const Segment* segment = map.At(address);
  return segment == nullptr ? kNoSite : segment->site;
}

// "site:bytes" of each part of a block of this level.
std::string Parts(const SegmentMap& map, uint64_t start, uint64_t end, int level) {
  std::string parts;
  map.ForEachPart(start, end, level, [&](const Segment* segment, int64_t bytes) {
    parts += std::to_string(segment->site) + ":" + std::to_string(bytes) + " ";
    return true;
  });
  return parts;
}

TEST(SegmentMapTest, FindsTheInnermostSegmentAtAnAddress) {
  SegmentMap map;
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(SiteAt(map, 1000), kNoSite);
  ASSERT_NE(Add(map, 1000, 100, 1), nullptr);
  ASSERT_NE(Add(map, 1020, 40, 2), nullptr);
  ASSERT_NE(Add(map, 1020, 10, 3), nullptr);
  EXPECT_FALSE(map.empty());
  const std::map<uint64_t, SiteId> expected = {{999, kNoSite}, {1000, 1}, {1019, 1}, {1020, 3}, {1029, 3},
                                               {1030, 2},      {1059, 2}, {1060, 1}, {1099, 1}, {1100, kNoSite}};
  for (const auto& [address, site] : expected) EXPECT_EQ(SiteAt(map, address), site) << address;
  EXPECT_EQ(map.At(1020)->depth, 2);
  EXPECT_EQ(map.Around(1025, 1035)->site, 2u);
  EXPECT_EQ(map.Around(1025, 1061)->site, 1u);
  EXPECT_EQ(map.Around(1090, 1101), nullptr);
  EXPECT_EQ(map.Find(1020, 1020)->site, 3u) << "the innermost of this id";
}

TEST(SegmentMapTest, SegmentDeclaredAroundOthersContainsThem) {
  SegmentMap map;
  ASSERT_NE(Add(map, 1010, 10, 1), nullptr);
  ASSERT_NE(Add(map, 1040, 10, 2), nullptr);
  ASSERT_NE(Add(map, 1000, 100, 3), nullptr);
  EXPECT_EQ(map.At(1010)->outer, map.At(1000));
  EXPECT_EQ(map.At(1040)->depth, 1);
  EXPECT_EQ(map.At(1000)->depth, 0);
  EXPECT_EQ(Parts(map, 1005, 1045, 2), "3:5 1:10 3:20 2:5 ");
  EXPECT_EQ(Parts(map, 1005, 1045, 1), "3:5 3:10 3:20 3:5 ") << "a block of the outer one";
}

TEST(SegmentMapTest, RefusesPartialOverlap) {
  SegmentMap map;
  ASSERT_NE(Add(map, 1000, 100, 1), nullptr);
  EXPECT_FALSE(map.Fits(1099, 1101));
  EXPECT_FALSE(map.Fits(901, 1001));
  EXPECT_FALSE(map.Fits(2000, 2000));
  EXPECT_FALSE(map.Fits(~uint64_t{0} - 10, 5));
  EXPECT_TRUE(map.Fits(1100, 1200)) << "neighbours do not overlap";
  EXPECT_TRUE(map.Fits(900, 1000));
  EXPECT_TRUE(map.Fits(500, 5000));
  EXPECT_TRUE(map.Fits(1010, 1020));
}

TEST(SegmentMapTest, SplitAndMergeKeepInnerSegments) {
  SegmentMap map;
  Segment* low = Add(map, 1000, 100, 1);
  ASSERT_NE(Add(map, 1010, 10, 2), nullptr);
  ASSERT_NE(Add(map, 1060, 10, 3), nullptr);
  Segment* high = map.Split(low, 1050, 1050, 4);
  ASSERT_NE(high, nullptr);
  EXPECT_EQ(map.At(1060)->outer, high);
  EXPECT_EQ(map.At(1010)->outer, low);
  EXPECT_EQ(SiteAt(map, 1050), 4u);
  EXPECT_EQ(low->idle_bytes.load(), 50);
  ASSERT_TRUE(SegmentMap::Take(*high, 20));
  ASSERT_TRUE(map.Merge(low, high));
  EXPECT_EQ(map.At(1060)->outer, low);
  EXPECT_EQ(SiteAt(map, 1099), 1u);
  EXPECT_EQ(low->idle_bytes.load(), 80);
}

TEST(SegmentMapTest, TakesOnlyIdleBytes) {
  SegmentMap map;
  Segment* segment = Add(map, 1000, 100, 1);
  EXPECT_TRUE(SegmentMap::Take(*segment, 60));
  EXPECT_FALSE(SegmentMap::Take(*segment, 41));
  EXPECT_TRUE(SegmentMap::Take(*segment, 40));
  EXPECT_TRUE(SegmentMap::Take(*segment, 0));
  EXPECT_FALSE(SegmentMap::Take(*segment, 1));
  SegmentMap::Return(*segment, 60);
  EXPECT_TRUE(SegmentMap::Take(*segment, 60));
  map.Remove(segment);
  EXPECT_TRUE(SegmentMap::Take(*Add(map, 1000, 100, 1), 100)) << "a new segment in the same place begins idle";
}

TEST(SegmentMapTest, ReportsTheOnlyAccount) {
  SegmentMap map;
  Segment* first = map.Add(1000, 1100, 1000, 1, 3);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(map.only_account(), 3);
  Segment* same = map.Add(2000, 2100, 2000, 1, 3);
  EXPECT_EQ(map.only_account(), 3);
  Segment* other = map.Add(3000, 3100, 3000, 1, 4);
  EXPECT_EQ(map.only_account(), -1);
  map.Remove(other);
  EXPECT_EQ(map.only_account(), -1);
  map.Remove(first);
  map.Remove(same);
  ASSERT_NE(map.Add(1000, 1100, 1000, 1, 5), nullptr);
  EXPECT_EQ(map.only_account(), 5);
}

TEST(SegmentMapTest, AgreesWithAMapOverRandomEvents) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  SegmentMap map;
  struct Entry {
    uint64_t end;
    Segment* segment;
  };
  std::map<uint64_t, Entry> model;  // of segments side by side, by start
  for (int i = 0; i < 40000; ++i) {
    const uint64_t start = 1 + random() % 100000;
    const uint64_t end = start + 1 + random() % 40;
    if (random() % 3 != 0) {
      const auto next = model.lower_bound(start);
      const bool is_free = (next == model.end() || next->first >= end) &&
                           (next == model.begin() || std::prev(next)->second.end <= start);
      if (!is_free) continue;
      Segment* segment = Add(map, start, end - start, static_cast<SiteId>(i));
      ASSERT_NE(segment, nullptr);
      model[start] = {end, segment};
    } else if (!model.empty()) {
      auto gone = model.lower_bound(start);
      if (gone == model.end()) gone = model.begin();
      map.Remove(gone->second.segment);
      model.erase(gone);
    }
    const uint64_t address = random() % 100100;
    const auto after = model.upper_bound(address);
    const bool inside = after != model.begin() && std::prev(after)->second.end > address;
    ASSERT_EQ(map.At(address), inside ? std::prev(after)->second.segment : nullptr);
  }
}

}  // namespace
}  // namespace hbmprof::internal
