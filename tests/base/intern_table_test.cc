// InternTable: growth in small steps, and searches during growth.

#include "src/base/intern_table.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "src/base/hash.h"
#include "src/base/pages.h"

namespace hbmprof::internal {
namespace {

// The payloads are numbers above 0; their hash is HashWord.
bool Contains(const InternTable& table, uint64_t number) {
  return table.Find(HashWord(number), [&](uint64_t payload) { return payload == number; }) == number;
}

// Adds a number that is not in the table. Returns how many hashes that took, or -1 if there was no memory.
int Add(InternTable& table, uint64_t number) {
  SpinLockHolder hold(table.lock());
  int hashes = 0;
  const bool has_space = table.Reserve([&](uint64_t payload) {
    ++hashes;
    return HashWord(payload);
  });
  if (!has_space) return -1;
  table.Insert(HashWord(number), number);
  return hashes;
}

TEST(InternTableTest, FindsNothingWhenEmpty) {
  const InternTable table;
  EXPECT_FALSE(Contains(table, 1));
}

TEST(InternTableTest, NoInsertionRehashesMoreThanAFewPayloads) {
  constexpr uint64_t kNumbers = 300000;
  InternTable table;
  int most = 0;
  for (uint64_t number = 1; number <= kNumbers; ++number) {
    const int hashes = Add(table, number);
    ASSERT_GE(hashes, 0);
    most = std::max(most, hashes);
    // While an array is being replaced, too.
    ASSERT_TRUE(Contains(table, number / 2 + 1)) << number;
  }
  EXPECT_GT(most, 0);
  EXPECT_LE(most, 16);
  for (uint64_t number = 1; number <= kNumbers; ++number) ASSERT_TRUE(Contains(table, number)) << number;
  EXPECT_FALSE(Contains(table, kNumbers + 1));
}

TEST(InternTableTest, FreesOldArrays) {
  constexpr int64_t kNumbers = 250000;
  const int64_t before = HostBytes();
  {
    InternTable table;
    for (uint64_t number = 1; number <= kNumbers; ++number) ASSERT_GE(Add(table, number), 0);
    EXPECT_LE((HostBytes() - before) / kNumbers, 22);
  }
  EXPECT_EQ(HostBytes(), before);
}

TEST(InternTableTest, MissDuringGrowthIsFoundUnderTheLock) {
  constexpr uint64_t kNumbers = 200000;
  InternTable table;
  std::atomic<uint64_t> added{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      uint64_t number = t;
      for (uint64_t last = 0; last < kNumbers;) {
        last = added.load(std::memory_order_acquire);
        if (last == 0) continue;
        number = (number + 7919) % last;
        if (Contains(table, number + 1)) continue;
        SpinLockHolder hold(table.lock());
        ASSERT_TRUE(Contains(table, number + 1));
      }
    });
  }
  for (uint64_t number = 1; number <= kNumbers; ++number) {
    if (Add(table, number) < 0) ADD_FAILURE() << "no memory";
    added.store(number, std::memory_order_release);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace hbmprof::internal
