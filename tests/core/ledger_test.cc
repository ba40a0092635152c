// The ledger against a naive model: every total, the peak, and what each site held at the peak, after every event.
//
// Events come from one thread at a time, so that the model knows their order; which thread it is decides through which
// shard an event goes. Events that truly race are in tests/stress.

#include "src/core/ledger/ledger.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "src/base/pages.h"

namespace hbmprof::internal {
namespace {

using Event = Ledger::Event;
constexpr uint64_t kBuffer = 4096;  // the id in all events: the ledger has no ids

uint64_t Seed() {
  const char* seed = std::getenv("HBMPROF_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device()();
}

// The record of a stack of one frame.
const StackRecord* StackAt(SiteTable& sites, const uintptr_t* pc) {
  const CapturedStack stack{pc, 1, false};
  return sites.InternStack(stack, SiteTable::HashOf(stack));
}

// Enters an event on the fast path. Does not call CountRecords.
Ledger::Entered TryEnter(Ledger& ledger, Event event, SiteId site, int64_t bytes) {
  Ledger::OwnShard own(ledger);
  if (!own.is_usable()) return Ledger::kNotEntered;
  const auto cell = own.CellOfPlain(site);
  if (cell == nullptr || (event == Event::kAlloc && !own.Admits(bytes))) return Ledger::kNotEntered;
  return own.Enter(event, cell, bytes);
}

// Enters an event of one site that is no segment and no block, in the way that takes it. Returns false if the host has
// no memory.
bool EnterEvent(Ledger& ledger, const SiteTable& sites, Event event, SiteId site, int64_t bytes) {
  const Ledger::Entered entered = TryEnter(ledger, event, site, bytes);
  if (entered == Ledger::kEnteredAndCounted) ledger.CountRecords();
  if (entered != Ledger::kNotEntered) return true;
  const Site& record = sites.At(site);
  const int64_t added = event == Event::kFree ? -bytes : bytes;
  bool is_entered = false;
  ledger.InChange([&](Ledger::Change& change) {
    is_entered = change.is_usable() && change.Admits(record.account, added) && change.Prepare(site);
    if (!is_entered) return false;
    change.Enter(event, kBuffer, site, bytes);
    if (record.kind == SiteKind::kPool) change.AddPoolBytes(added);
    return true;
  });
  return is_entered;
}

// Threads that run given functions, one at a time. Each of the first eight has a shard of its own.
class Workers {
 public:
  explicit Workers(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, i] {
        std::unique_lock<std::mutex> hold(mutex_);
        for (;;) {
          changed_.wait(hold, [&] { return turn_ == i || turn_ == kEnd; });
          if (turn_ == kEnd) return;
          (*task_)();
          turn_ = kNobody;
          changed_.notify_all();
        }
      });
    }
  }
  ~Workers() {
    {
      std::lock_guard<std::mutex> hold(mutex_);
      turn_ = kEnd;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  size_t size() const { return threads_.size(); }

  // Returns when `task` has run on thread `thread`; without threads, it runs on the caller's.
  void Run(size_t thread, const std::function<void()>& task) {
    if (threads_.empty()) return task();
    std::unique_lock<std::mutex> hold(mutex_);
    task_ = &task;
    turn_ = static_cast<int>(thread);
    changed_.notify_all();
    changed_.wait(hold, [&] { return turn_ == kNobody; });
  }

 private:
  static constexpr int kNobody = -1;
  static constexpr int kEnd = -2;
  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = kNobody;
  const std::function<void()>* task_ = nullptr;
  std::vector<std::thread> threads_;
};

// Computes the expected values of the ledger in a simple and slow way.
class Model {
 public:
  explicit Model(const SiteTable& table) : table_(table) {}

  // `segment` is the site of the segment that a block lies in.
  void Enter(Event event, SiteId site, int64_t bytes, SiteId segment = kNoSite) {
    const SiteKey key = table_.Key(site);
    AccountTotals& account = accounts_[AccountOf(key.attributes)];
    SiteTotals& totals = sites_[site];
    const int64_t sign = event == Event::kFree ? -1 : 1;
    totals.inuse_objects += sign;
    totals.inuse_bytes += sign * bytes;
    account.num_live += sign;
    live_ += sign;
    if (event == Event::kAlloc) {
      ++totals.alloc_objects;
      totals.alloc_bytes += bytes;
      ++account.num_allocs;
      account.largest_alloc = std::max(account.largest_alloc, bytes);
    }
    if (segment != kNoSite) {
      sites_[segment].inuse_bytes -= sign * bytes;
      account.block_bytes += sign * bytes;
      return;
    }
    account.bytes_in_use += sign * bytes;
    if (key.attributes.kind == MemoryKind::kPool) account.pool_bytes += sign * bytes;
    if (account.bytes_in_use > account.peak_bytes_in_use) TakePeak(AccountOf(key.attributes));
  }

  void MoveToPool(SiteId from, SiteId to, int64_t bytes) {
    for (const auto& [site, sign] : {std::pair(from, -1), std::pair(to, 1)}) {
      SiteTotals& totals = sites_[site];
      totals.alloc_objects += sign;
      totals.inuse_objects += sign;
      totals.alloc_bytes += sign * bytes;
      totals.inuse_bytes += sign * bytes;
    }
    accounts_[AccountOf(table_.Key(to).attributes)].pool_bytes += bytes;
  }

  void TakePeak(AccountId account) {
    accounts_[account].peak_bytes_in_use = accounts_[account].bytes_in_use;
    for (auto& [site, totals] : sites_) {
      if (AccountOf(table_.Key(site).attributes) != account) continue;
      totals.peak_objects = totals.inuse_objects;
      totals.peak_bytes = totals.inuse_bytes;
    }
  }

  int64_t live() const { return live_; }

  void ExpectSame(const Ledger& ledger) {
    std::vector<SiteTotals> sites;
    std::vector<AccountTotals> accounts;
    ledger.Snapshot(&sites, &accounts);
    ASSERT_EQ(sites.size(), table_.size());
    ASSERT_EQ(accounts.size(), static_cast<size_t>(kAccounts));
    for (SiteId site = 0; site < sites.size(); ++site) {
      SCOPED_TRACE("site " + std::to_string(site));
      const SiteTotals& expected = sites_[site];
      ASSERT_EQ(sites[site].inuse_objects, expected.inuse_objects);
      ASSERT_EQ(sites[site].inuse_bytes, expected.inuse_bytes);
      ASSERT_EQ(sites[site].alloc_objects, expected.alloc_objects);
      ASSERT_EQ(sites[site].alloc_bytes, expected.alloc_bytes);
      ASSERT_EQ(sites[site].peak_objects, expected.peak_objects);
      ASSERT_EQ(sites[site].peak_bytes, expected.peak_bytes);
    }
    for (AccountId account = 0; account < kAccounts; ++account) {
      SCOPED_TRACE("account " + std::to_string(account));
      ExpectSame(accounts[account], accounts_[account]);
    }
  }
  static void ExpectSame(const AccountTotals& totals, const AccountTotals& expected) {
    ASSERT_EQ(totals.bytes_in_use, expected.bytes_in_use);
    ASSERT_EQ(totals.peak_bytes_in_use, expected.peak_bytes_in_use);
    ASSERT_EQ(totals.num_allocs, expected.num_allocs);
    ASSERT_EQ(totals.num_live, expected.num_live);
    ASSERT_EQ(totals.largest_alloc, expected.largest_alloc);
    ASSERT_EQ(totals.pool_bytes, expected.pool_bytes);
    ASSERT_EQ(totals.block_bytes, expected.block_bytes);
  }
  AccountTotals account(AccountId account) { return accounts_[account]; }

 private:
  const SiteTable& table_;
  std::map<SiteId, SiteTotals> sites_;
  std::map<AccountId, AccountTotals> accounts_;
  int64_t live_ = 0;
};

class LedgerTest : public ::testing::Test {
 protected:
  SiteId NewSite(DeviceId device, MemoryKind kind = MemoryKind::kDevice, bool in_pool = false) {
    const uintptr_t pc = 0x400000 + sites_.size();
    return sites_.InternSite({StackAt(sites_, &pc), {device, kind, {}}, 0, in_pool});
  }
  void Enter(Event event, SiteId site, int64_t bytes) {
    ASSERT_TRUE(EnterEvent(ledger_, sites_, event, site, bytes));
    model_.Enter(event, site, bytes);
  }
  // A block that lies wholly in a segment of `segment`.
  void EnterBlock(Event event, SiteId block, int64_t bytes, SiteId segment) {
    {
      Ledger::Change change(ledger_, Ledger::Change::Scope::kOwnShard);
      ASSERT_TRUE(change.is_usable() && change.Prepare(block) && change.Prepare(segment));
      const int64_t charged = event == Event::kFree ? -bytes : bytes;
      change.Enter(event, kBuffer, block, bytes);
      change.Charge(segment, charged);
      change.AddBlockBytes(charged);
    }
    model_.Enter(event, block, bytes, segment);
  }
  void MoveToPool(SiteId from, SiteId to, int64_t bytes) {
    {
      Ledger::Change change(ledger_, Ledger::Change::Scope::kAllShards);
      ASSERT_TRUE(change.is_usable() && change.Prepare(from) && change.Prepare(to));
      change.Move(kBuffer, from, to, bytes, bytes);
      change.AddPoolBytes(bytes);
    }
    model_.MoveToPool(from, to, bytes);
  }
  void ResetPeak(AccountId account) {
    ledger_.ResetPeak(account);
    model_.TakePeak(account);
  }
  void ExpectSame() { model_.ExpectSame(ledger_); }

  SiteTable sites_{4096};
  Ledger ledger_{sites_, 1};
  Model model_{sites_};
};

constexpr AccountId kAccount0 = AccountOf(kDefaultDevice, MemorySpace::kDevice);

TEST_F(LedgerTest, IsAllZeroBeforeTheFirstEvent) {
  NewSite(kDefaultDevice);
  ExpectSame();
  EXPECT_EQ(ledger_.live_records(), 0);
}

TEST_F(LedgerTest, EqualPeakKeepsTheFirstComposition) {
  const SiteId first = NewSite(kDefaultDevice);
  const SiteId second = NewSite(kDefaultDevice);
  Enter(Event::kAlloc, first, 100);
  Enter(Event::kFree, first, 100);
  Enter(Event::kAlloc, second, 100);
  ExpectSame();
  Enter(Event::kAlloc, second, 1);
  ExpectSame();
}

TEST_F(LedgerTest, ZeroBytesCountAsObjectsAndMakeNoPeak) {
  const SiteId site = NewSite(kDefaultDevice);
  for (int i = 0; i < 3; ++i) {
    Enter(Event::kAlloc, site, 0);
    ExpectSame();
  }
  Enter(Event::kAlloc, site, 1);
  Enter(Event::kFree, site, 0);
  ExpectSame();
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 1);
}

TEST_F(LedgerTest, FreeByAnotherThreadLeavesTotalsAtZero) {
  const SiteId site = NewSite(kDefaultDevice);
  Workers workers(2);
  for (int i = 0; i < 10; ++i) {
    workers.Run(0, [&] { Enter(Event::kAlloc, site, 1000); });
    ExpectSame();
    workers.Run(1, [&] { Enter(Event::kFree, site, 1000); });
    ExpectSame();
  }
  // Thread 1's own part is -10,000 now, and it may use the headroom that its frees gave it.
  workers.Run(1, [&] { Enter(Event::kAlloc, site, 1000); });
  workers.Run(0, [&] { Enter(Event::kAlloc, site, 1000); });
  ExpectSame();
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 2000);
}

TEST_F(LedgerTest, BlocksNeverChangeTheTotal) {
  const SiteId segment = NewSite(kDefaultDevice, MemoryKind::kPool);
  const SiteId block = NewSite(kDefaultDevice, MemoryKind::kDevice, true);
  Enter(Event::kAlloc, segment, 1000);
  EnterBlock(Event::kAlloc, block, 300, segment);
  EnterBlock(Event::kAlloc, block, 200, segment);
  ExpectSame();
  const AccountTotals totals = ledger_.Totals(kAccount0);
  EXPECT_EQ(totals.bytes_in_use, 1000);
  EXPECT_EQ(totals.pool_bytes, 1000);
  EXPECT_EQ(totals.block_bytes, 500);
  EXPECT_EQ(totals.num_live, 3);
  EnterBlock(Event::kFree, block, 300, segment);
  ExpectSame();
}

TEST_F(LedgerTest, ChangePeaksOnlyWithItsSum) {
  const SiteId old_site = NewSite(kDefaultDevice);
  const SiteId new_site = NewSite(kDefaultDevice);
  Enter(Event::kAlloc, old_site, 100);
  {
    Ledger::Change change(ledger_, Ledger::Change::Scope::kAllShards);
    ASSERT_TRUE(change.Prepare(new_site));
    change.Enter(Event::kAlloc, kBuffer, new_site, 80);
    change.Enter(Event::kFree, kBuffer, old_site, 100);
  }
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 100);
  EXPECT_EQ(ledger_.Totals(kAccount0).bytes_in_use, 80);
  {
    Ledger::Change change(ledger_, Ledger::Change::Scope::kAllShards);
    change.Enter(Event::kAlloc, kBuffer, old_site, 50);
  }
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 130);
  std::vector<SiteTotals> sites;
  std::vector<AccountTotals> accounts;
  ledger_.Snapshot(&sites, &accounts);
  EXPECT_EQ(sites[old_site].peak_bytes, 50);
  EXPECT_EQ(sites[new_site].peak_bytes, 80);
}

TEST_F(LedgerTest, ResetPeakChangesOneAccount) {
  const SiteId here = NewSite(kDefaultDevice);
  const SiteId other = NewSite(DeviceId{1});
  const SiteId pinned = NewSite(kDefaultDevice, MemoryKind::kPinnedHost);
  for (const SiteId site : {here, other, pinned}) {
    Enter(Event::kAlloc, site, 100);
    Enter(Event::kAlloc, site, 50);
    Enter(Event::kFree, site, 100);
  }
  ResetPeak(kAccount0);
  ExpectSame();
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 50);
  EXPECT_EQ(ledger_.Totals(AccountOf(DeviceId{1}, MemorySpace::kDevice)).peak_bytes_in_use, 150);
  Enter(Event::kAlloc, here, 1);
  ExpectSame();
}

TEST(LedgerLiveRecords, LagByLessThanTheFlushInterval) {
  constexpr int kFlushEvery = 64;
  SiteTable sites(16);
  Ledger ledger(sites, kFlushEvery);
  const uintptr_t pc = 1;
  const SiteId site = sites.InternSite({StackAt(sites, &pc), {}, 0, false});
  Workers workers(4);
  for (int64_t i = 1; i <= 5000; ++i) {
    workers.Run(static_cast<size_t>(i) % workers.size(), [&] { EnterEvent(ledger, sites, Event::kAlloc, site, 1); });
    ASSERT_GT(ledger.live_records(), i - 4 * kFlushEvery);
    ASSERT_LE(ledger.live_records(), i);
  }
}

TEST(LedgerLiveRecords, AreExactIfEachEventIsFlushed) {
  SiteTable sites(16);
  Ledger ledger(sites, 1);
  const uintptr_t pc = 1;
  const SiteId site = sites.InternSite({StackAt(sites, &pc), {}, 0, false});
  for (int64_t live = 1; live <= 100; ++live) {
    EXPECT_TRUE(EnterEvent(ledger, sites, Event::kAlloc, site, 1));
    EXPECT_EQ(ledger.live_records(), live);
  }
  EXPECT_TRUE(EnterEvent(ledger, sites, Event::kFree, site, 1));
  EXPECT_EQ(ledger.live_records(), 99);
}

// The fast path enters what the other path would enter, and refuses what needs more than its own shard.
TEST(LedgerFastPath, EntersOnlyWhatItsShardAlonePermits) {
  SiteTable sites(16);
  Ledger ledger(sites, 2);
  const uintptr_t pcs[] = {1, 2};
  const SiteId site = sites.InternSite({StackAt(sites, &pcs[0]), {}, 0, false});
  const SiteId pool = sites.InternSite({StackAt(sites, &pcs[1]), {kDefaultDevice, MemoryKind::kPool, {}}, 0, false});
  EXPECT_FALSE(Ledger::OwnShard(ledger).is_usable()) << "this thread has no shard in this ledger";
  ASSERT_TRUE(EnterEvent(ledger, sites, Event::kAlloc, site, 100));
  ASSERT_TRUE(EnterEvent(ledger, sites, Event::kAlloc, pool, 100));
  EXPECT_EQ(TryEnter(ledger, Event::kFree, site, 40), Ledger::kNotEntered)
      << "the cell is of the epoch before the peak";
  ASSERT_TRUE(EnterEvent(ledger, sites, Event::kFree, site, 40));
  EXPECT_EQ(TryEnter(ledger, Event::kAlloc, site, 41), Ledger::kNotEntered) << "a new peak";
  EXPECT_EQ(TryEnter(ledger, Event::kFree, pool, 1), Ledger::kNotEntered) << "not plain";
  EXPECT_NE(TryEnter(ledger, Event::kAlloc, site, 40), Ledger::kNotEntered);
  ledger.CountRecords();
  EXPECT_EQ(ledger.Totals(kAccount0).bytes_in_use, 200);
  EXPECT_EQ(ledger.Totals(kAccount0).peak_bytes_in_use, 200);
  EXPECT_EQ(ledger.CountLive(), 2);
}

TEST(LedgerMemory, OfASiteIsACellInEachShardThatUsesIt) {
  constexpr int kThreads = 64;  // they share the shards
  constexpr SiteId kSites = 10000;
  SiteTable sites(1 << 14);
  for (uintptr_t pc = 1; pc <= kSites; ++pc) sites.InternSite({StackAt(sites, &pc), {}, 0, false});
  Ledger ledger(sites, 64);
  const int64_t before = HostBytes();
  Workers workers(kThreads);
  for (size_t thread = 0; thread < kThreads; ++thread) {
    workers.Run(thread, [&] {
      for (SiteId site = 0; site < kSites; ++site) ASSERT_TRUE(EnterEvent(ledger, sites, Event::kAlloc, site, site));
    });
    // 64 bytes, and the rest of the last chunk.
    EXPECT_LE((HostBytes() - before) / kSites,
              66 * std::min<int64_t>(Ledger::kShards, static_cast<int64_t>(thread) + 1));
  }
  std::vector<SiteTotals> totals;
  std::vector<AccountTotals> accounts;
  ledger.Snapshot(&totals, &accounts);
  for (SiteId site = 0; site < kSites; ++site) {
    ASSERT_EQ(totals[site].inuse_objects, kThreads);
    ASSERT_EQ(totals[site].inuse_bytes, int64_t{kThreads} * site);
    ASSERT_EQ(totals[site].peak_bytes, totals[site].inuse_bytes);
  }
}

// A site that was made can always be entered, also by a thread whose shard gets no memory for the site's cell.
TEST(LedgerMemory, EventsUseAnotherShardsCellIfThereIsNoMore) {
  constexpr SiteId kSites = 1000;
  SiteTable sites(1 << 14);
  for (uintptr_t pc = 1; pc <= kSites; ++pc) sites.InternSite({StackAt(sites, &pc), {}, 0, false});
  Ledger ledger(sites, 64);
  Workers workers(2);
  workers.Run(0, [&] {
    for (SiteId site = 0; site < kSites / 2; ++site) ASSERT_TRUE(ledger.MakeCells(site));
  });
  const int64_t limit = MaxHostBytes();
  SetMaxHostBytes(HostBytes());
  workers.Run(1, [&] {
    EXPECT_FALSE(ledger.MakeCells(kSites - 1));
    EXPECT_FALSE(EnterEvent(ledger, sites, Event::kAlloc, kSites - 1, 1));
    for (int round = 0; round < 2; ++round) {
      for (SiteId site = 0; site < kSites / 2; ++site)
        ASSERT_TRUE(EnterEvent(ledger, sites, Event::kAlloc, site, site));
    }
    for (SiteId site = 0; site < kSites / 2; ++site) ASSERT_TRUE(EnterEvent(ledger, sites, Event::kFree, site, site));
  });
  workers.Run(0, [&] {
    for (SiteId site = 0; site < kSites / 2; ++site) ASSERT_TRUE(EnterEvent(ledger, sites, Event::kAlloc, site, site));
  });
  SetMaxHostBytes(limit);
  std::vector<SiteTotals> totals;
  std::vector<AccountTotals> accounts;
  ledger.Snapshot(&totals, &accounts);
  int64_t sum = 0;
  for (SiteId site = 0; site < kSites / 2; ++site) {
    ASSERT_EQ(totals[site].inuse_objects, 2);
    ASSERT_EQ(totals[site].inuse_bytes, 2 * site);
    ASSERT_EQ(totals[site].peak_bytes, 2 * site);
    sum += 2 * site;
  }
  EXPECT_EQ(accounts[kAccount0].bytes_in_use, sum);
  EXPECT_EQ(accounts[kAccount0].peak_bytes_in_use, sum);
}

// Random events on several devices, spaces and pools; `workers` threads take turns at random.
class RandomLedgerTest : public LedgerTest, public ::testing::WithParamInterface<int> {
 protected:
  struct Live {
    SiteId site;
    int64_t bytes;
    int64_t idle;  // of a segment: the bytes that no block covers
    int segment;   // of a block: the key of its segment in live_; else -1
  };

  void MakeSites() {
    // More than one chunk of cells, and events that touch cells of different chunks.
    for (int i = 0; i < 700; ++i) {
      const auto device = DeviceId(i % 3 == 2 ? 63 : i % 3);
      switch (i % 7) {
        case 0: {
          const SiteId segment = NewSite(device, MemoryKind::kPool);
          segments_.push_back(segment);
          blocks_[segment] = {NewSite(device, MemoryKind::kDevice, true), NewSite(device, MemoryKind::kArray, true)};
          break;
        }
        case 1:
          plain_.push_back(NewSite(device, MemoryKind::kManaged));
          break;
        case 2:
          plain_.push_back(NewSite(device, MemoryKind::kPinnedHost));
          break;
        default:
          plain_.push_back(NewSite(device));
      }
    }
  }

  size_t Below(size_t limit) { return random_() % limit; }
  int64_t Bytes() { return Below(10) == 0 ? 0 : static_cast<int64_t>(Below(1000)) << Below(12); }

  void EnterAny(Event event, const Live& live) {
    if (live.segment < 0) return Enter(event, live.site, live.bytes);
    EnterBlock(event, live.site, live.bytes, live_[live.segment].site);
    live_[live.segment].idle += event == Event::kFree ? live.bytes : -live.bytes;
  }
  void Add(Event event, const Live& live) {
    EnterAny(event, live);
    live_[next_key_++] = live;
  }
  void Remove(std::map<int, Live>::iterator entry) {
    const Live live = entry->second;
    EnterAny(Event::kFree, live);
    live_.erase(entry);
  }
  std::map<int, Live>::iterator AnyLive() { return std::next(live_.begin(), static_cast<long>(Below(live_.size()))); }
  bool HasBlocks(int key) const {
    return std::any_of(live_.begin(), live_.end(), [&](const auto& entry) { return entry.second.segment == key; });
  }

  void AnyEvent(size_t add_percent) {
    const size_t choice = Below(100);
    if (choice < add_percent || live_.empty()) {
      const size_t what = Below(10);
      if (what == 0) {
        const int64_t bytes = Bytes();
        Add(Event::kAlloc, {segments_[Below(segments_.size())], bytes, bytes, -1});
        return;
      }
      if (what < 5) {
        // A block of any live segment with room.
        for (auto& [key, live] : live_) {
          if (live.idle < 0 || Below(3) != 0) continue;
          const std::vector<SiteId>& sites = blocks_[live.site];
          if (sites.empty()) continue;
          const auto bytes = static_cast<int64_t>(Below(static_cast<size_t>(live.idle) + 1));
          Add(Event::kAlloc, {sites[Below(sites.size())], bytes, -1, key});
          return;
        }
      }
      Add(Event::kAlloc, {plain_[Below(plain_.size())], Bytes(), -1, -1});
    } else if (choice < 97) {
      const auto entry = AnyLive();
      if (entry->second.idle >= 0 && HasBlocks(entry->first)) return;
      Remove(entry);
    } else if (choice < 99) {
      ResetPeak(static_cast<AccountId>(Below(kAccounts)));
    } else {
      const auto entry = AnyLive();
      Live& live = entry->second;
      const SiteKey key = sites_.Key(live.site);
      if (live.idle >= 0 || live.segment >= 0 || key.attributes.kind != MemoryKind::kDevice) return;
      SiteKey pool = key;
      pool.attributes.kind = MemoryKind::kPool;
      const SiteId to = sites_.InternSite(pool);
      MoveToPool(live.site, to, live.bytes);
      live = {to, live.bytes, live.bytes, -1};
    }
  }

  std::mt19937_64 random_;
  std::vector<SiteId> plain_;
  std::vector<SiteId> segments_;
  std::map<SiteId, std::vector<SiteId>> blocks_;
  std::map<int, Live> live_;
  int next_key_ = 0;
};

TEST_P(RandomLedgerTest, AgreesWithTheNaiveModelAfterEveryEvent) {
  const uint64_t seed = Seed();
  SCOPED_TRACE("HBMPROF_TEST_SEED=" + std::to_string(seed));
  random_.seed(seed);
  MakeSites();
  Workers workers(GetParam());
  for (int phase = 0; phase < 6; ++phase) {
    for (int i = 0; i < 500 && !HasFatalFailure(); ++i) {
      workers.Run(Below(std::max<size_t>(workers.size(), 1)), [&] { AnyEvent(phase % 2 == 0 ? 65 : 35); });
      ASSERT_EQ(ledger_.live_records(), model_.live());
      if (i % 8 == 0 || i < 40) ExpectSame();
    }
    ASSERT_FALSE(HasFatalFailure());
    for (AccountId account = 0; account < kAccounts; ++account) {
      Model::ExpectSame(ledger_.Totals(account), model_.account(account));
    }
  }
}

std::string ThreadsName(const ::testing::TestParamInfo<int>& threads) {
  return threads.param == 0 ? "OneThread" : std::to_string(threads.param) + "ThreadsInTurn";
}
// 70 threads share the eight shards.
INSTANTIATE_TEST_SUITE_P(Threads, RandomLedgerTest, ::testing::Values(0, 2, 5, 70), ThreadsName);

// Writes the events of one buffer.
void FillBuffer(EventLog& log, ShardLog& shard, RecordedEvent*& next) {
  for (uint32_t i = 0; i < EventBuffer::kEvents; ++i) log.Write({log.TimeInShard(&shard)}, 0, &shard, &next);
}

void Close(EventLog& log, ShardLog& shard, const RecordedEvent* next) {
  log.SetMode(EventLog::Mode::kOff);
  log.Close(&shard, next);
  log.Return(log.TakeFull());
  log.Free();
}

TEST(EventLogTest, ShortTimeLimitUsesFewBuffers) {
  for (const int64_t limit : {int64_t{0}, int64_t{1'000'000}}) {
    EventLog log;
    ASSERT_TRUE(log.Allocate(20, limit));
    log.SetMode(EventLog::Mode::kRing);
    ShardLog shard = {};
    RecordedEvent* next = nullptr;
    log.Open(0, &shard, &next);
    std::set<EventBuffer*> used;
    for (int round = 0; round < 10; ++round) {
      used.insert(shard.buffer);
      FillBuffer(log, shard, next);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(used.size(), limit == 0 ? 10u : 2u);
    // Events that are younger than the limit are kept.
    EXPECT_EQ(log.removed_until() == 0, limit == 0);
    Close(log, shard, next);
  }
}

TEST(EventLogTest, OldPinnedBufferDoesNotRemoveYoungOnes) {
  constexpr int64_t kLimit = 5'000'000'000;
  EventLog log;
  ASSERT_TRUE(log.Allocate(20, kLimit));
  log.SetMode(EventLog::Mode::kRing);
  ShardLog shard = {};
  RecordedEvent* next = nullptr;
  log.Open(0, &shard, &next);
  EventBuffer* const old = shard.buffer;
  const auto fill = [&] { FillBuffer(log, shard, next); };
  fill();
  old->events[EventBuffer::kEvents - 1].time -= 2 * kLimit;
  ASSERT_EQ(log.PinNext(), old);
  fill();
  fill();
  EXPECT_EQ(log.removed_until(), 0) << "there are empty buffers";
  const EventBuffer* pinned = old;
  int count = 0;
  for (; pinned != nullptr; pinned = log.PinNext()) ++count;
  EXPECT_EQ(count, 3);
  fill();
  EXPECT_EQ(log.removed_until(), old->events[EventBuffer::kEvents - 1].time) << "not pinned any more";
  Close(log, shard, next);
}

TEST(LedgerSnapshots, AreOneInstantWhileThreadsRecord) {
  constexpr int kThreads = 6;
  SiteTable sites(4096);
  Ledger ledger(sites, 64);
  std::vector<SiteId> made;
  for (uintptr_t pc = 1; pc <= 4000; ++pc) {  // so many that reading their cells takes a while
    made.push_back(sites.InternSite({StackAt(sites, &pc), {DeviceId(pc % 2), {}, {}}, 0, false}));
  }
  // Threads also free buffers that other threads allocated (in `shelf`), so the part of a site in a shard can be
  // negative.
  std::mutex mutex;
  std::vector<std::pair<SiteId, int64_t>> shelf;
  std::atomic<int> running{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      ++running;
      while (!stop.load()) {
        const std::pair<SiteId, int64_t> made_now(made[random() % made.size()], random() % 4096);
        ASSERT_TRUE(EnterEvent(ledger, sites, Event::kAlloc, made_now.first, made_now.second));
        std::pair<SiteId, int64_t> taken = made_now;
        {
          std::lock_guard<std::mutex> hold(mutex);
          shelf.push_back(made_now);
          if (shelf.size() < 200 || random() % 64 == 0) continue;
          std::swap(shelf[random() % shelf.size()], shelf.back());
          taken = shelf.back();
          shelf.pop_back();
        }
        ASSERT_TRUE(EnterEvent(ledger, sites, Event::kFree, taken.first, taken.second));
      }
    });
  }
  int64_t last_peak[2] = {};
  int64_t last_allocs[2] = {};
  while (running.load() < kThreads) std::this_thread::yield();
  for (int snapshot = 0; snapshot < 500 && !HasFailure(); ++snapshot) {
    std::vector<SiteTotals> of_sites;
    std::vector<AccountTotals> of_accounts;
    ledger.Snapshot(&of_sites, &of_accounts);
    for (const int device : {0, 1}) {
      const AccountTotals& account = of_accounts[AccountOf(DeviceId(device), MemorySpace::kDevice)];
      SiteTotals sum;
      for (const SiteId site : made) {
        if (sites.Key(site).attributes.device != DeviceId(device)) continue;
        EXPECT_GE(of_sites[site].inuse_objects, 0);
        EXPECT_GE(of_sites[site].peak_objects, 0);
        sum.inuse_bytes += of_sites[site].inuse_bytes;
        sum.inuse_objects += of_sites[site].inuse_objects;
        sum.peak_bytes += of_sites[site].peak_bytes;
        sum.alloc_objects += of_sites[site].alloc_objects;
      }
      EXPECT_EQ(sum.inuse_bytes, account.bytes_in_use);
      EXPECT_EQ(sum.inuse_objects, account.num_live);
      EXPECT_EQ(sum.peak_bytes, account.peak_bytes_in_use);
      EXPECT_EQ(sum.alloc_objects, account.num_allocs);
      EXPECT_GE(account.peak_bytes_in_use, account.bytes_in_use);
      EXPECT_GE(account.peak_bytes_in_use, last_peak[device]);
      EXPECT_GE(account.num_allocs, last_allocs[device]);
      last_peak[device] = account.peak_bytes_in_use;
      last_allocs[device] = account.num_allocs;
    }
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  for (const auto& [site, bytes] : shelf) ASSERT_TRUE(EnterEvent(ledger, sites, Event::kFree, site, bytes));
  for (const int device : {0, 1}) {
    const AccountTotals totals = ledger.Totals(AccountOf(DeviceId(device), MemorySpace::kDevice));
    EXPECT_EQ(totals.bytes_in_use, 0);
    EXPECT_EQ(totals.num_live, 0);
  }
}

}  // namespace
}  // namespace hbmprof::internal
