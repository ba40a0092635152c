// IdTable, compared with a map, and StringTable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "src/base/hash.h"
#include "src/export/id_table.h"
#include "src/export/string_table.h"

namespace hbmprof::internal {
namespace {

void ExpectNumberedLikeAMap(int keys, uint64_t (*hash)(uint64_t)) {
  IdTable table;
  std::vector<uint64_t> things;
  std::map<uint64_t, uint32_t> model;
  std::mt19937_64 random(1);
  for (int i = 0; i < 5 * keys; ++i) {
    const uint64_t key = random() % keys;
    const uint32_t id = table.IdOf(hash(key), [&](uint32_t candidate) { return things[candidate] == key; });
    if (id == things.size()) things.push_back(key);
    ASSERT_EQ(id, model.try_emplace(key, model.size()).first->second) << "key " << key;
  }
}

TEST(IdTable, EqualObjectsHaveOneId) { ExpectNumberedLikeAMap(20000, &HashWord); }

TEST(IdTable, DistinguishesEqualHashes) {
  ExpectNumberedLikeAMap(2000, [](uint64_t key) { return key % 3; });
}

TEST(StringTable, KeepsEachStringOnce) {
  StringTable table;
  EXPECT_EQ(table.Intern(""), 0);
  EXPECT_EQ(table.Intern("b"), 1);
  EXPECT_EQ(table.Intern("a longer one"), 2);
  EXPECT_EQ(table.Intern("b"), 1);
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(table.bytes(), 13u);
  EXPECT_EQ(table.At(0), "");
  EXPECT_EQ(table.At(1), "b");
  EXPECT_EQ(table.At(2), "a longer one");
}

TEST(StringTable, ReplacesBadBytes) {
  for (size_t length = 1; length <= 20; ++length) {
    for (size_t bad = 0; bad < length; ++bad) {
      std::string text(length, 'x');
      text[bad] = '\xFF';
      StringTable table;
      EXPECT_EQ(table.At(static_cast<size_t>(table.Intern(text))),
                std::string(bad, 'x') + "\xEF\xBF\xBD" + std::string(length - bad - 1, 'x'));
    }
  }
}

TEST(StringTable, KeepsMultibyteCharacters) {
  for (size_t before = 0; before <= 10; ++before) {
    const std::string text = std::string(before, 'x') + "\xF0\x9F\x98\x80" + std::string(10, 'x');
    StringTable table;
    EXPECT_EQ(table.At(static_cast<size_t>(table.Intern(text))), text);
  }
}

}  // namespace
}  // namespace hbmprof::internal
