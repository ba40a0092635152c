// The properties of hashes and comparisons that tables need. The low bits of a hash select a slot; the high bits
// distinguish the keys in neighbouring slots.

#include "src/base/hash.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace hbmprof::internal {
namespace {

// Returns how many of `count` slots are empty. With as many keys as slots, a random hash leaves 37 % empty.
int EmptySlots(const std::vector<uint64_t>& slots, int count) {
  return count - static_cast<int>(std::set<uint64_t>(slots.begin(), slots.end()).size());
}

TEST(HashTest, AlignedAddressesHaveDifferentLowAndHighBits) {
  constexpr int kSlots = 4096;
  for (const uint64_t step : {uint64_t{16}, uint64_t{256}, uint64_t{4096}, uint64_t{2} << 20}) {
    std::vector<uint64_t> low;
    std::vector<uint64_t> high;
    for (uint64_t i = 0; i < kSlots; ++i) {
      const uint64_t hash = HashWord(uint64_t{0x7f0000000000} + i * step);
      low.push_back(hash % kSlots);
      high.push_back(hash >> 52);
    }
    EXPECT_LT(EmptySlots(low, kSlots), kSlots * 45 / 100) << "step " << step;
    EXPECT_LT(EmptySlots(high, kSlots), kSlots * 45 / 100) << "step " << step;
  }
}

TEST(HashTest, EveryInputBitChangesLowAndHighBits) {
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t change = HashWord(0x7f1234567000) ^ HashWord(0x7f1234567000 ^ uint64_t{1} << bit);
    EXPECT_NE(change & 0xffff, 0u) << "bit " << bit;
    EXPECT_NE(change >> 48, 0u) << "bit " << bit;
  }
}

TEST(HashTest, WordsHashDependsOnWordsOrderAndCount) {
  std::set<uint64_t> hashes;
  int inputs = 0;
  for (size_t count = 0; count <= 9; ++count) {
    const std::vector<uint64_t> zeros(count, 0);
    hashes.insert(HashWords(zeros.data(), count));
    ++inputs;
    for (size_t i = 0; i < count; ++i) {
      std::vector<uint64_t> words = zeros;
      words[i] = 1;
      hashes.insert(HashWords(words.data(), count));
      ++inputs;
    }
  }
  EXPECT_EQ(hashes.size(), static_cast<size_t>(inputs));
}

TEST(HashTest, EachHalfOfHash128DependsOnEveryBit) {
  std::set<uint64_t> low;
  std::set<uint64_t> high;
  size_t inputs = 0;
  const auto add = [&](const std::vector<uint64_t>& words) {
    const Hash128 hash = HashWords128(words.data(), words.size());
    EXPECT_EQ(hash.low, HashWords(words.data(), words.size()));
    EXPECT_NE(hash.low, hash.high);
    low.insert(hash.low);
    high.insert(hash.high);
    ++inputs;
  };
  for (size_t count = 1; count <= 9; ++count) {
    const std::vector<uint64_t> code(count, 0x55d012345678);
    add(code);
    for (size_t i = 0; i < count; ++i) {
      for (int bit = 0; bit < 48; ++bit) {
        std::vector<uint64_t> words = code;
        words[i] ^= uint64_t{1} << bit;
        add(words);
      }
    }
  }
  EXPECT_EQ(low.size(), inputs);
  EXPECT_EQ(high.size(), inputs);
}

TEST(HashTest, BytesHashDependsOnBytesOrderCountAndSeed) {
  std::set<uint64_t> hashes;
  int inputs = 0;
  for (const uint64_t seed : {HashWord(0), HashWord(1)}) {
    for (size_t count = 0; count <= 20; ++count) {
      hashes.insert(HashBytes(std::string(count, '\0').data(), count, seed));
      ++inputs;
      for (size_t i = 0; i < count; ++i) {
        std::string text(count, '\0');
        text[i] = 1;
        hashes.insert(HashBytes(text.data(), count, seed));
        ++inputs;
      }
    }
  }
  EXPECT_EQ(hashes.size(), static_cast<size_t>(inputs));
}

}  // namespace
}  // namespace hbmprof::internal
