// The site cache: each site that it finds is the right one, also after it has replaced entries.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "src/core/site_finder.h"

namespace hbmprof::internal {
namespace {

Hash128 StackHash(uint64_t stack) {
  const uint64_t words[] = {0x55d000001000 + stack, 0x55d000002000};
  return HashWords128(words, 2);
}
SiteCache::Key KeyOf(uint64_t stack, SiteLabels labels = SiteLabels(0)) { return {StackHash(stack), labels}; }

TEST(SiteCache, FindsStoredSites) {
  SiteCache cache;
  EXPECT_EQ(cache.Find(KeyOf(1)), kNoSite);
  cache.Store(KeyOf(1), 0);
  cache.Store(KeyOf(2), SiteTable::kMaxSites - 1);
  EXPECT_EQ(cache.Find(KeyOf(1)), 0u);
  EXPECT_EQ(cache.Find(KeyOf(2)), SiteTable::kMaxSites - 1);
}

TEST(SiteCache, DistinguishesEveryPartOfTheKey) {
  SiteCache cache;
  cache.Store(KeyOf(1), 1);
  EXPECT_EQ(cache.Find(KeyOf(2)), kNoSite);
  const Attributes another_device = {DeviceId{1}};
  const Attributes another_kind = {DeviceId{0}, MemoryKind::kManaged};
  const Attributes another_allocator = {DeviceId{0}, MemoryKind::kDevice, AllocatorId{1}};
  const Attributes same;
  for (const SiteLabels other : {SiteLabels{another_device, 0, 0},
                                 {another_kind, 0, 0},
                                 {another_allocator, 0, 0},
                                 {same, 1, 0},
                                 {same, 0, 1}}) {
    EXPECT_EQ(cache.Find(KeyOf(1, other)), kNoSite);
  }
}

TEST(SiteCache, KeepsTenThousandStacksAndReplacesTheOldest) {
  SiteCache cache;
  for (SiteId site = 0; site < 10000; ++site) cache.Store(KeyOf(site), site);
  int found = 0;
  for (SiteId site = 0; site < 10000; ++site) {
    const SiteId answer = cache.Find(KeyOf(site));
    EXPECT_TRUE(answer == site || answer == kNoSite) << answer << " for " << site;
    found += answer == site;
  }
  EXPECT_GT(found, 9900);
  for (SiteId site = 10000; site < 1000000; ++site) cache.Store(KeyOf(site), site);
  for (SiteId site = 0; site < 1000000; ++site) {
    const SiteId answer = cache.Find(KeyOf(site));
    ASSERT_TRUE(answer == site || answer == kNoSite) << answer << " for " << site;
  }
  EXPECT_EQ(cache.Find(KeyOf(999999)), 999999u);
}

//   thread 1   Find: reads the first word of an entry ................. and the second word
//   thread 2            Store: moves the entry, writes both words of a new one
// `sites`: so many that entries are replaced all the time, so few that some are found.
void ReplaceInFourThreads(SiteId sites, SiteCache::Key (*key_of)(SiteId site)) {
  SiteCache cache;
  std::atomic<int64_t> hits{0};
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      uint64_t random = thread + 1;
      for (int i = 0; i < 500000; ++i) {
        random = HashWord(random);
        const auto site = static_cast<SiteId>(random % sites);
        const SiteId found = cache.Find(key_of(site));
        if (found == kNoSite) {
          cache.Store(key_of(site), site);
        } else {
          hits.fetch_add(1, std::memory_order_relaxed);
          if (found != site) wrong.fetch_add(1, std::memory_order_relaxed);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(hits.load(), 10000);
}

TEST(SiteCache, ReturnsNoWrongSiteDuringReplacement) {
  ReplaceInFourThreads(1 << 18, [](SiteId site) { return KeyOf(site); });
}

TEST(SiteCache, ReturnsNoWrongSiteOfOneStackDuringReplacement) {
  // The keys of words that are multiples of a large Fibonacci number are in one bucket, because the factor in a key is
  // the golden ratio.
  ReplaceInFourThreads(64, [](SiteId site) { return KeyOf(1, {site * uint64_t{2971215073}, 0, 0}); });
}

}  // namespace
}  // namespace hbmprof::internal
