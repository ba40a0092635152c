// The live table against std::unordered_map, and from many threads at once.

#include "src/core/tables/live_table.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"
#include "src/base/pages.h"
#include "tests/support/resident_bytes.h"

namespace hbmprof::internal {
namespace {

using hbmprof_test::ResidentBytes;
using Inserted = LiveTable::Inserted;
using Then = LiveTable::Then;

bool operator==(const LiveRecord& a, const LiveRecord& b) {
  return a.site == b.site && a.birth == b.birth && a.bytes == b.bytes;
}

// Printed with every failure; HBMPROF_TEST_SEED repeats a run.
uint64_t Seed() {
  const char* seed = std::getenv("HBMPROF_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device()();
}

// Keys as an allocator makes them: aligned, dense.
uint64_t Address(uint64_t i) { return 0x7f0000000000 + i * 256; }

// A record that only its own key can have. Half of them are born in the present generation.
LiveRecord RecordOf(uint64_t key, uint64_t version = 0) {
  const uint64_t hash = HashWord(key + version);
  return {static_cast<SiteId>(hash % LiveTable::kMaxSites),
          hash % 2 == 0 ? PresentGeneration() : static_cast<Generation>(hash >> 32), static_cast<int64_t>(hash >> 24)};
}

void ExpectSame(const LiveTable& table, const std::unordered_map<uint64_t, LiveRecord>& model) {
  for (const auto& [id, expected] : model) {
    LiveRecord found;
    ASSERT_TRUE(table.Find(id, &found)) << "lost " << id;
    ASSERT_TRUE(found == expected) << "wrong record at " << id;
  }
}

size_t Count(const LiveTable& table) {
  size_t count = 0;
  table.ForEach([&](uint64_t, const LiveRecord&) { ++count; });
  return count;
}

void GrowFully(LiveTable& table, int64_t records) {
  for (int i = 0; i < 20000; ++i) table.Grow(records);
}

// Inserts and erases as the profiler does.
Inserted InsertInSteps(LiveTable& table, uint64_t id, LiveRecord record) {
  return table.TryInsert(id, record) ? Inserted::kNew : table.Insert(id, record);
}
// Inserts `id`, or updates its record. Returns the record that it has then. `known`: the record before, null if there
// is none.
LiveRecord InsertOrUpdate(LiveTable& table, uint64_t id, const LiveRecord& fresh, const LiveRecord* known) {
  EXPECT_EQ(InsertInSteps(table, id, fresh), known == nullptr ? Inserted::kNew : Inserted::kTaken);
  if (known == nullptr) return fresh;
  EXPECT_TRUE(table.Change(id, [&](LiveRecord* record) {
    EXPECT_EQ(record->bytes, known->bytes);
    record->site = fresh.site;
    record->bytes = fresh.bytes;
    return Then::kKeep;
  }));
  return {fresh.site, known->birth, fresh.bytes};
}
bool Erase(LiveTable& table, uint64_t id, LiveRecord* record) {
  const auto agrees = [] { return true; };
  return table.TryErase(id, record, agrees) || table.Change(id, [&](LiveRecord* found) {
    *record = *found;
    return Then::kErase;
  });
}

TEST(LiveTable, EraseAsksBeforeItErases) {
  LiveTable table;
  const auto other = static_cast<Generation>(PresentGeneration() + 1);
  ASSERT_EQ(table.Insert(Address(1), {1, other, 8}), Inserted::kNew);
  ASSERT_EQ(table.Insert(Address(2), {2, PresentGeneration(), 16}), Inserted::kNew);
  LiveRecord record;
  const auto refuses = [&] {
    EXPECT_EQ(record.site, 1u);
    EXPECT_EQ(record.birth, other);
    EXPECT_EQ(record.bytes, 8);
    return false;
  };
  EXPECT_FALSE(table.TryErase(Address(1), &record, refuses));
  EXPECT_FALSE(table.TryErase(Address(3), &record, refuses));
  EXPECT_TRUE(Erase(table, Address(2), &record));
  EXPECT_EQ(record.bytes, 16);
  EXPECT_FALSE(table.Find(Address(2), &record));
  EXPECT_TRUE(table.Find(Address(1), &record));
  EXPECT_FALSE(table.Change(Address(2), [](LiveRecord*) { return Then::kErase; })) << "no record";
}

TEST(LiveTable, FindsNothingBeforeTheFirstInsert) {
  LiveTable table;
  LiveRecord record;
  table.Grow(1000);
  EXPECT_FALSE(table.Find(Address(1), &record));
  EXPECT_FALSE(Erase(table, Address(1), &record));
  EXPECT_EQ(Count(table), 0u);
}

TEST(LiveTable, AcceptsANegativeNumberOfRecords) {
  LiveTable table;
  GrowFully(table, -64);
  LiveRecord record;
  ASSERT_EQ(InsertInSteps(table, Address(1), RecordOf(Address(1))), Inserted::kNew);
  GrowFully(table, -64);
  ASSERT_TRUE(table.Find(Address(1), &record));
  EXPECT_EQ(Count(table), 1u);
}

TEST(LiveTable, KeepsTheLargestAndSmallestRecordsWhole) {
  LiveTable table;
  const LiveRecord records[] = {{0, 0, 0},
                                {0, 0xffff, LiveTable::kMaxBytes},
                                {LiveTable::kMaxSites - 1, 1, 0},
                                {LiveTable::kMaxSites - 1, 0xffff, LiveTable::kMaxBytes}};
  const uint64_t ids[] = {1, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{127} << 57};
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(InsertInSteps(table, ids[i], records[i]), Inserted::kNew);
  }
  for (int i = 0; i < 4; ++i) {
    LiveRecord found;
    ASSERT_TRUE(Erase(table, ids[i], &found));
    EXPECT_TRUE(found == records[i]);
    EXPECT_FALSE(table.Find(ids[i], &found));
  }
}

TEST(LiveTable, AgreesWithAMapOverRandomEvents) {
  const uint64_t seed = Seed();
  SCOPED_TRACE("HBMPROF_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  LiveTable table;
  std::unordered_map<uint64_t, LiveRecord> model;
  for (int phase = 0; phase < 12; ++phase) {
    // Phases with more and with fewer records. The first ones are without Grow, so that chains of overflow buckets
    // become long.
    const uint64_t keys = uint64_t{1} << (6 + random() % 12);
    const uint64_t insert_percent = phase % 2 == 0 ? 70 : 25;
    const bool grows = phase >= 6;
    for (int i = 0; i < 40000; ++i) {
      const uint64_t id = Address(random() % keys);
      const auto known = model.find(id);
      LiveRecord record;
      if (random() % 100 < insert_percent) {
        const LiveRecord fresh = RecordOf(id, random() % 4);
        model[id] = InsertOrUpdate(table, id, fresh, known == model.end() ? nullptr : &known->second);
      } else {
        ASSERT_EQ(Erase(table, id, &record), known != model.end());
        if (known != model.end()) {
          ASSERT_TRUE(record == known->second);
          model.erase(known);
        }
      }
      if (grows) table.Grow(static_cast<int64_t>(model.size()));
    }
    ExpectSame(table, model);
    ASSERT_EQ(Count(table), model.size());
  }
}

TEST(LiveTable, KeepsEveryRecordAtAnySize) {
  LiveTable table;
  std::unordered_map<uint64_t, LiveRecord> model;
  for (uint64_t i = 0; i < 3000; ++i) {
    model[Address(i)] = RecordOf(Address(i));
    ASSERT_EQ(InsertInSteps(table, Address(i), RecordOf(Address(i))), Inserted::kNew);
  }
  // 64 buckets for 3,000 records: chains of overflow buckets; then 100,000 buckets.
  ExpectSame(table, model);
  for (const int64_t records : {1000, 5000, 150000}) {
    GrowFully(table, records);
    ExpectSame(table, model);
  }
  EXPECT_EQ(Count(table), model.size());
}

// Inserts records with the ids, while the table grows with them. Returns how many of them did not find space in the
// bucket of their id.
int64_t InsertGrowing(LiveTable& table, const std::vector<uint64_t>& ids) {
  int64_t crowded = 0;
  int64_t records = 0;
  for (const uint64_t id : ids) {
    while (!table.Grow(++records)) --records;
    if (table.TryInsert(id, RecordOf(id))) continue;
    EXPECT_EQ(table.Insert(id, RecordOf(id)), Inserted::kNew);
    ++crowded;
  }
  return crowded;
}

TEST(LiveTable, BuffersOfEqualSizeFillBucketsMoreEvenlyThanRandomIds) {
  constexpr uint64_t kRecords = 10000;
  constexpr int kSizes = 15;
  LiveTable random_table;
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < kRecords; ++i) ids.push_back(HashWord(i));
  const int64_t of_random = InsertGrowing(random_table, ids);
  int64_t of_all = 0;
  for (int bits = 8; bits < 8 + kSizes; ++bits) {
    LiveTable table;
    for (uint64_t i = 0; i < kRecords; ++i) ids[i] = 0x7f0000000000 + (i << bits);
    const int64_t of_size = InsertGrowing(table, ids);
    EXPECT_LT(of_size, of_random * 3 / 2) << (1 << bits);
    of_all += of_size;
  }
  EXPECT_LT(of_all / kSizes, of_random / 2);
}

TEST(LiveTable, HandlesOfManyNameSpacesFillBucketsEvenly) {
  constexpr uint64_t kRecords = 200;
  LiveTable table;
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < kRecords; ++i) {
    for (uint64_t space = 1; space <= 63; ++space) ids.push_back(Address(i) ^ space << 57);
  }
  EXPECT_LT(InsertGrowing(table, ids), static_cast<int64_t>(ids.size() / 4));
}

TEST(LiveTable, MemoryFollowsTheLargestNumberOfRecords) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory hides the table's own";
#endif
  constexpr uint64_t kRecords = 1 << 20;
  LiveTable table;
  const int64_t before = ResidentBytes();
  for (uint64_t i = 0; i < kRecords; ++i) {
    InsertInSteps(table, Address(i), RecordOf(Address(i)));
    table.Grow(static_cast<int64_t>(i));
  }
  const int64_t full = ResidentBytes() - before;
  EXPECT_LT(full, static_cast<int64_t>(kRecords * 64));
  EXPECT_GT(full, static_cast<int64_t>(kRecords * 16));
}

TEST(LiveTable, CountsTheMemoryOfAllItsBuckets) {
  const int64_t before = HostBytes();
  {
    const LiveTable table;
    EXPECT_EQ(HostBytes() - before, 64 * 64) << "64 buckets of a cache line";
  }
  EXPECT_EQ(HostBytes(), before);
}

TEST(LiveTable, GrowReportsWhetherThereAreEnoughBuckets) {
  LiveTable table;
  EXPECT_TRUE(table.Grow(0));
  int steps = 0;
  while (!table.Grow(100000)) ++steps;
  EXPECT_GT(steps, 100) << "in steps that hold nobody up";
  EXPECT_TRUE(table.Grow(100000));
  EXPECT_TRUE(table.Grow(1));
}

// Lets the table grow, in many steps, until it is destroyed.
class Grower {
 public:
  explicit Grower(LiveTable& table)
      : thread_([this, &table] {
          for (int64_t records = 0; !stop_.load(); records = std::min<int64_t>(records + 10, 200000)) {
            table.Grow(records);
            std::this_thread::yield();
          }
        }) {}
  ~Grower() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

constexpr int kThreads = 8;

TEST(LiveTable, ThreadsWithOwnKeysLoseNothingWhileItGrows) {
  LiveTable table;
  {
    Grower grower(table);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&table, t] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        std::unordered_map<uint64_t, LiveRecord> model;
        for (int i = 0; i < 30000; ++i) {
          const uint64_t id = Address(random() % 500 * kThreads + static_cast<uint64_t>(t));
          const auto known = model.find(id);
          LiveRecord record;
          switch (random() % 3) {
            case 0: {
              const LiveRecord fresh = RecordOf(id, random());
              model[id] = InsertOrUpdate(table, id, fresh, known == model.end() ? nullptr : &known->second);
              break;
            }
            case 1:
              ASSERT_EQ(Erase(table, id, &record), known != model.end());
              if (known != model.end()) {
                ASSERT_TRUE(record == known->second);
                model.erase(known);
              }
              break;
            default:
              ASSERT_EQ(table.Find(id, &record), known != model.end());
              if (known != model.end()) {
                ASSERT_TRUE(record == known->second);
              }
          }
        }
        ExpectSame(table, model);
        for (const auto& [id, expected] : model) {
          LiveRecord record;
          ASSERT_TRUE(Erase(table, id, &record));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(Count(table), 0u);
}

TEST(LiveTable, ThreadsOnTheSameKeysLoseNoRecord) {
  constexpr uint64_t kKeys = 64;
  LiveTable table;
  std::atomic<int64_t> entered{0};
  std::atomic<int64_t> left{0};
  {
    Grower grower(table);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        for (int i = 0; i < 30000; ++i) {
          const uint64_t id = Address(random() % kKeys);
          LiveRecord record;
          switch (random() % 4) {
            case 0:
            case 1:
              if (InsertInSteps(table, id, RecordOf(id)) == Inserted::kNew) ++entered;
              continue;
            case 2:
              if (!Erase(table, id, &record)) continue;
              ++left;
              break;
            default:
              if (!table.Find(id, &record)) continue;
          }
          ASSERT_TRUE(record == RecordOf(id)) << "another key's record";
        }
      });
    }
    // Records that agree also leave meanwhile.
    for (uint64_t i = 0; i < 10000; ++i) {
      bool erases = false;
      table.Change(Address(i % kKeys), [&](LiveRecord* record) {
        erases = record->site % 2 == 0;
        return erases ? Then::kErase : Then::kKeep;
      });
      if (erases) ++left;
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(static_cast<int64_t>(Count(table)), entered - left);
}

// Another thread changes the number of buckets between all steps of a visit, and records come and go.
TEST(LiveTable, VisitInStepsFindsEachLastingRecordOnce) {
  constexpr uint64_t kLasting = 20000;
  LiveTable table;
  for (uint64_t i = 0; i < kLasting; ++i) {
    ASSERT_EQ(table.Insert(Address(i), {static_cast<SiteId>(i), static_cast<Generation>(i), 1}), Inserted::kNew);
    table.Grow(static_cast<int64_t>(i));
  }
  std::mt19937_64 random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<int> visits(kLasting);
    uint64_t next = LiveTable::kFirstHash;
    size_t most = 0;
    uint64_t passing = kLasting;
    for (bool more = true; more;) {
      size_t count = 0;
      more = table.VisitSome(&next, [&](uint64_t, const LiveRecord& record) {
        ++count;
        if (record.site >= kLasting) return;
        ++visits[record.site];
        ASSERT_EQ(record.birth, static_cast<Generation>(record.site));
      });
      most = std::max(most, count);
      for (int i = 0; i < 20; ++i) table.Insert(Address(passing++), {LiveTable::kMaxSites - 1, 0, 1});
      LiveRecord erased;
      if (passing > kLasting + 5000) {
        for (int i = 0; i < 30; ++i) Erase(table, Address(kLasting + random() % (passing - kLasting)), &erased);
      }
      table.Grow(static_cast<int64_t>(kLasting) + 40000 * round);
    }
    EXPECT_LE(most, LiveTable::kMostVisited);
    EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), static_cast<std::ptrdiff_t>(kLasting));
  }
}

}  // namespace
}  // namespace hbmprof::internal
