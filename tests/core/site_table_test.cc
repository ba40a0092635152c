// Sites: one number per distinct call stack with its labels.

#include "src/core/tables/site_table.h"

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

std::vector<uintptr_t> Stack(uintptr_t base, size_t depth) {
  std::vector<uintptr_t> pcs;
  for (size_t i = 0; i < depth; ++i) pcs.push_back(base + i);
  return pcs;
}

StackRecord* Intern(SiteTable& table, const std::vector<uintptr_t>& pcs, bool truncated = false) {
  static constexpr uintptr_t kNone = 0;  // an empty stack has an address, too
  const CapturedStack stack{pcs.empty() ? &kNone : pcs.data(), static_cast<int>(pcs.size()), truncated};
  return table.InternStack(stack);
}

TEST(SiteTable, SameStackIsTheSameRecord) {
  SiteTable table(100);
  const StackRecord* stack = Intern(table, Stack(0x1000, 5));
  ASSERT_NE(stack, nullptr);
  EXPECT_EQ(Intern(table, Stack(0x1000, 5)), stack);
  EXPECT_EQ(stack->depth, 5u);
  EXPECT_FALSE(stack->truncated);
  EXPECT_EQ(table.PcsOf(*stack), Stack(0x1000, 5));
}

TEST(SiteTable, DistinguishesFramesDepthAndTruncation) {
  SiteTable table(100);
  std::set<const StackRecord*> stacks;
  stacks.insert(Intern(table, {}));
  stacks.insert(Intern(table, {0}));
  stacks.insert(Intern(table, {0, 0}));
  stacks.insert(Intern(table, {1, 2, 3, 4, 5}));
  stacks.insert(Intern(table, {1, 2, 3, 5, 4}));
  stacks.insert(Intern(table, {1, 2, 3, 4}));
  stacks.insert(Intern(table, {1, 2, 3, 4, 5}, true));
  EXPECT_EQ(stacks.size(), 7u);
  EXPECT_EQ(stacks.count(nullptr), 0u);
}

TEST(SiteTable, KeepsStacksOfTheGreatestDepth) {
  SiteTable table(100);
  const std::vector<uintptr_t> pcs = Stack(0x10000, 512);
  const StackRecord* stack = Intern(table, pcs);
  ASSERT_NE(stack, nullptr);
  EXPECT_EQ(table.PcsOf(*stack), pcs);
}

TEST(SiteTable, KeepsAsManyReturnAddressesAsStacksHave) {
  constexpr size_t kStacks = 100;
  SiteTable table(1000);
  std::vector<const StackRecord*> stacks;
  for (size_t i = 0; i < kStacks; ++i) stacks.push_back(Intern(table, Stack(0x7f0000000000 + i * 1000, 512)));
  for (size_t i = 0; i < kStacks; ++i) {
    const std::vector<uintptr_t> pcs = Stack(0x7f0000000000 + i * 1000, 512);
    ASSERT_NE(stacks[i], nullptr);
    EXPECT_EQ(table.PcsOf(*stacks[i]), pcs);
    EXPECT_EQ(Intern(table, pcs), stacks[i]);
  }
}

TEST(SiteTable, EveryPartOfTheKeyDistinguishesSites) {
  SiteTable table(100);
  const StackRecord* stack = Intern(table, {1});
  const StackRecord* other = Intern(table, {2});
  const struct {
    const StackRecord* stack;
    Attributes attributes;
    TagSetId tags;
    PoolNumber from;
  } keys[] = {
      {stack, {}, 0, 0},
      {other, {}, 0, 0},
      {stack, {DeviceId{1}, MemoryKind::kDevice, {}}, 0, 0},
      {stack, {DeviceId{0}, MemoryKind::kManaged, {}}, 0, 0},
      {stack, {DeviceId{0}, MemoryKind::kDevice, AllocatorId{1}}, 0, 0},
      {stack, {}, 1, 0},
      {stack, {}, 0, 1},
      {stack, {}, 0, kMaxPools},
  };
  std::set<SiteId> sites;
  for (const auto& key : keys) sites.insert(table.InternSite(key.stack, {key.attributes, key.tags, key.from}));
  EXPECT_EQ(sites.size(), 8u);
  EXPECT_EQ(table.size(), 8u);
  // Numbers are dense, do not change, and give the key.
  EXPECT_EQ(*sites.rbegin(), 7u);
  for (SiteId site = 0; site < 8; ++site) {
    const SiteLabels labels = table.At(site).labels;
    EXPECT_EQ(table.InternSite(keys[site].stack, labels), site);
    EXPECT_EQ(table.At(site).stack, keys[site].stack);
    EXPECT_EQ(labels.attributes().device, keys[site].attributes.device);
    EXPECT_EQ(labels.attributes().kind, keys[site].attributes.kind);
    EXPECT_EQ(labels.attributes().allocator, keys[site].attributes.allocator);
    EXPECT_EQ(labels.tags(), keys[site].tags);
    EXPECT_EQ(labels.from(), keys[site].from);
  }
}

TEST(SiteTable, AtItsLimitNewSitesShareOneForEachKindOfMemory) {
  SiteTable table(3);
  const StackRecord* stack = Intern(table, {1});
  for (uint32_t tags = 0; tags < 3; ++tags) EXPECT_EQ(table.InternSite(stack, {Attributes{}, tags, 0}), tags);
  EXPECT_EQ(Intern(table, {2}), nullptr) << "a stack without a site";
  EXPECT_EQ(Intern(table, {1}), stack);
  EXPECT_EQ(table.InternSite(stack, {Attributes{}, 7, 0}), 3u);
  EXPECT_EQ(table.InternSite(stack, {Attributes{}, 8, 0}), 3u);
  EXPECT_EQ(table.InternSite(stack, {Attributes{}, 1, 0}), 1u) << "a known one";
  EXPECT_TRUE(table.At(3).stack->is_other);
  EXPECT_EQ(table.At(3).labels.tags(), 0u);
  EXPECT_EQ(table.InternSite(stack, {Attributes{}, 0, 1}), 4u) << "memory of a pool";
  const Attributes managed = {DeviceId{1}, MemoryKind::kManaged, AllocatorId{2}};
  const SiteId other = table.OtherSite({managed, 9, 0});
  EXPECT_EQ(other, 5u);
  EXPECT_EQ(table.At(other).labels.attributes().device, DeviceId{1});
  EXPECT_EQ(table.At(other).labels.attributes().kind, MemoryKind::kManaged);
  EXPECT_EQ(table.At(other).labels.attributes().allocator, AllocatorId{2});
  EXPECT_EQ(table.InternSite(table.At(other).stack, table.At(other).labels), other);
  EXPECT_EQ(table.size(), 6u);
  EXPECT_EQ(SiteTable::PcsOf(*table.At(other).stack).size(), 1u);
}

TEST(SiteTable, SharedSitesAreLimited) {
  SiteTable table(1);
  ASSERT_EQ(table.InternSite(Intern(table, {1}), {Attributes{}, 0, 0}), 0u);
  SiteId made = 0;
  for (int i = 0; i < 2000; ++i) {
    const Attributes attributes = {DeviceId(i % 50), MemoryKind::kDevice, AllocatorId(i / 50)};
    if (table.OtherSite({attributes, 0, 0}) != kNoSite) ++made;
  }
  EXPECT_EQ(made + 1, table.capacity());
  EXPECT_EQ(table.size(), table.capacity());
}

TEST(SiteTable, LimitsOutOfRangeAreClamped) {
  EXPECT_EQ(SiteTable(-5).max_sites(), 1u);
  EXPECT_EQ(SiteTable(0).max_sites(), 1u);
  EXPECT_EQ(SiteTable(INT64_MAX).max_sites(), SiteId{1} << 22);
}

TEST(SiteTable, ThreadsAgreeOnSiteNumbers) {
  constexpr int kThreads = 8;
  constexpr uintptr_t kStacks = 5000;  // several growths of both tables
  SiteTable table(1 << 16);
  std::vector<std::vector<SiteId>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uintptr_t i = 0; i < kStacks; ++i) {
        const StackRecord* stack = Intern(table, {i * 16, 7, i});
        ASSERT_NE(stack, nullptr);
        ASSERT_EQ(table.PcsOf(*stack)[2], i);
        const SiteId site = table.InternSite(stack, {Attributes{}, static_cast<uint32_t>(i), 0});
        ASSERT_EQ(table.At(site).labels.tags(), i);
        seen[t].push_back(site);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table.size(), kStacks);
  EXPECT_EQ(std::set<SiteId>(seen[0].begin(), seen[0].end()).size(), kStacks);
  for (const std::vector<SiteId>& others : seen) EXPECT_EQ(others, seen[0]);
}

}  // namespace
}  // namespace hbmprof::internal
