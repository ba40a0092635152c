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

enum class Change : uint8_t { kAlloc, kFree };
constexpr uint64_t kBuffer = 4096;   // the id in all events: the ledger has no records
constexpr uint64_t kAnother = 8192;  // an id that has made no peak

uint64_t Seed() {
  const char* seed = std::getenv("HBMPROF_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device()();
}

// The record of a stack of one frame.
const StackRecord* StackAt(SiteTable& sites, const uintptr_t* pc) {
  const CapturedStack stack{pc, 1, false};
  return sites.InternStack(stack);
}

// Enters an event under the lock of the thread's shard. Returns false if it needs the locks of all shards.
bool EnterEvent(Ledger& ledger, Ledger::Locks locks, Change change, SiteId site, int64_t bytes) {
  Ledger::Event event(ledger, locks);
  const auto counter = event.Prepare(site, change == Change::kAlloc ? bytes : 0);
  if (counter == nullptr) return false;
  if (change == Change::kAlloc) {
    event.Alloc(counter, kBuffer, site, bytes);
  } else {
    event.Free(counter, kBuffer, {site, PresentGeneration(), bytes});
  }
  return true;
}
// Enters an event in the way that takes it.
bool EnterEvent(Ledger& ledger, Change change, SiteId site, int64_t bytes) {
  return EnterEvent(ledger, Ledger::Locks::kOwnShard, change, site, bytes) ||
         EnterEvent(ledger, Ledger::Locks::kAllShards, change, site, bytes);
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

  void Enter(Change change, SiteId site, int64_t bytes) {
    const SiteBooks books = table_.At(site).books;
    SiteTotals& totals = sites_[site];
    Book& book = books_[books.book()];
    const int64_t sign = change == Change::kFree ? -1 : 1;
    totals.inuse_objects += sign;
    totals.inuse_bytes += sign * bytes;
    book.num_live += sign;
    live_ += sign;
    if (change == Change::kAlloc) {
      ++totals.alloc_objects;
      totals.alloc_bytes += bytes;
      ++book.num_allocs;
      book.largest_alloc = std::max(book.largest_alloc, bytes);
    }
    book.sum += sign * bytes;
    AddReserved(books, sign * bytes, sign);
    if (book.sum > book.peak) TakePeaks(books);
  }

  void Move(SiteId from, SiteId to, int64_t bytes) {
    for (const auto& [site, sign] : {std::pair(from, -1), std::pair(to, 1)}) {
      SiteTotals& totals = sites_[site];
      totals.alloc_objects += sign;
      totals.inuse_objects += sign;
      totals.alloc_bytes += sign * bytes;
      totals.inuse_bytes += sign * bytes;
      AddReserved(table_.At(site).books, sign * bytes, sign);
    }
  }

  void Resize(SiteId site, int64_t before, int64_t bytes) {
    const SiteBooks books = table_.At(site).books;
    Book& book = books_[books.book()];
    sites_[site].inuse_bytes += bytes - before;
    sites_[site].alloc_bytes += std::max<int64_t>(bytes - before, 0);
    book.largest_alloc = std::max(book.largest_alloc, bytes);
    book.sum += bytes - before;
    AddReserved(books, bytes - before, 0);
    if (book.sum > book.peak) TakePeaks(books);
  }

  void ResetPeak(AccountId account) {
    TakePeak(account);
    ForEachPoolOf(account, [&](PoolNumber pool) {
      TakePeak(BookOf(pool));
      reserved_[pool].peak_bytes_reserved = reserved_[pool].bytes_reserved;
    });
  }

  int64_t live() const { return live_; }

  void ExpectSame(const Ledger& ledger) {
    const auto [accounts, pools, sites] = ledger.Snapshot();
    ASSERT_EQ(sites.size(), table_.size());
    ASSERT_EQ(accounts.size(), static_cast<size_t>(kAccounts));
    ASSERT_EQ(pools.size(), static_cast<size_t>(table_.pools().size()) + 1);
    for (SiteId site = 0; site < sites.size(); ++site) {
      SCOPED_TRACE("site " + std::to_string(site));
      const SiteTotals& expected = sites_[site];
      ASSERT_EQ(sites[site].inuse_objects, static_cast<uint32_t>(expected.inuse_objects));
      ASSERT_EQ(sites[site].inuse_bytes, expected.inuse_bytes);
      ASSERT_EQ(sites[site].alloc_objects, expected.alloc_objects);
      ASSERT_EQ(sites[site].alloc_bytes, expected.alloc_bytes);
      ASSERT_EQ(sites[site].peak_objects, static_cast<uint32_t>(expected.peak_objects));
      ASSERT_EQ(sites[site].peak_bytes, expected.peak_bytes);
      ASSERT_EQ(sites[site].pool_peak_objects, static_cast<uint32_t>(expected.pool_peak_objects));
      ASSERT_EQ(sites[site].pool_peak_bytes, expected.pool_peak_bytes);
    }
    for (AccountId account = 0; account < kAccounts; ++account) {
      SCOPED_TRACE("account " + std::to_string(account));
      ExpectSame(accounts[account], Totals(account));
    }
    for (size_t pool = 1; pool < pools.size(); ++pool) {
      SCOPED_TRACE("pool " + std::to_string(pool));
      const PoolTotals& expected = reserved_[static_cast<PoolNumber>(pool)];
      const Book& book = books_[BookOf(static_cast<PoolNumber>(pool))];
      ASSERT_EQ(pools[pool].bytes_reserved, expected.bytes_reserved);
      ASSERT_EQ(pools[pool].peak_bytes_reserved, expected.peak_bytes_reserved);
      ASSERT_EQ(pools[pool].bytes_nested, expected.bytes_nested);
      ASSERT_EQ(pools[pool].segments, expected.segments);
      ASSERT_EQ(pools[pool].bytes_allocated, book.sum);
      ASSERT_EQ(pools[pool].peak_bytes_allocated, book.peak);
    }
  }
  static void ExpectSame(const AccountTotals& totals, const AccountTotals& expected) {
    ASSERT_EQ(totals.bytes_in_use, expected.bytes_in_use);
    ASSERT_EQ(totals.peak_bytes_in_use, expected.peak_bytes_in_use);
    ASSERT_EQ(totals.num_allocs, expected.num_allocs);
    ASSERT_EQ(totals.num_live, expected.num_live);
    ASSERT_EQ(totals.largest_alloc_size, expected.largest_alloc_size);
    ASSERT_EQ(totals.pool_bytes, expected.pool_bytes);
    ASSERT_EQ(totals.idle_bytes, expected.idle_bytes);
  }
  AccountTotals Totals(AccountId account) {
    AccountTotals totals;
    totals.bytes_in_use = books_[account].sum;
    totals.peak_bytes_in_use = books_[account].peak;
    const auto count = [&](const Book& book) {
      totals.num_allocs += book.num_allocs;
      totals.num_live += book.num_live;
      totals.largest_alloc_size = std::max(totals.largest_alloc_size, book.largest_alloc);
    };
    count(books_[account]);
    ForEachPoolOf(account, [&](PoolNumber pool) {
      const PoolTotals& of_pool = reserved_[pool];
      count(books_[BookOf(pool)]);
      totals.pool_bytes += of_pool.bytes_reserved - of_pool.bytes_nested;
      totals.idle_bytes += std::max<int64_t>(of_pool.bytes_reserved - books_[BookOf(pool)].sum, 0);
    });
    return totals;
  }

 private:
  struct Book {
    int64_t sum = 0;
    int64_t peak = 0;
    int64_t num_allocs = 0;
    int64_t num_live = 0;
    int64_t largest_alloc = 0;
  };

  template <typename Visit>
  void ForEachPoolOf(AccountId account, const Visit& visit) const {
    for (int pool = 1; pool <= table_.pools().size(); ++pool) {
      const DeviceId device = table_.pools().Of(static_cast<PoolNumber>(pool)).device;
      if (AccountOf(device, MemorySpace::kDevice) == account) visit(static_cast<PoolNumber>(pool));
    }
  }
  void AddReserved(SiteBooks books, int64_t bytes, int64_t segments) {
    if (books.is_segment == 0) return;
    PoolTotals& pool = reserved_[books.pool];
    pool.bytes_reserved += bytes;
    pool.segments += segments;
    if (books.is_from_pool()) pool.bytes_nested += bytes;
    pool.peak_bytes_reserved = std::max(pool.peak_bytes_reserved, pool.bytes_reserved);
  }
  // A new peak of a pool is also one of its account, if the account's bytes are those of its peak.
  void TakePeaks(SiteBooks books) {
    TakePeak(books.book());
    if (books_[books.account].sum == books_[books.account].peak) TakePeak(books.account);
  }
  void TakePeak(BookId book) {
    books_[book].peak = books_[book].sum;
    for (auto& [site, totals] : sites_) {
      const SiteBooks books = table_.At(site).books;
      if (books.account == book) {
        totals.peak_objects = totals.inuse_objects;
        totals.peak_bytes = totals.inuse_bytes;
      }
      if (books.pool != 0 && BookOf(books.pool) == book) {
        totals.pool_peak_objects = totals.inuse_objects;
        totals.pool_peak_bytes = totals.inuse_bytes;
      }
    }
  }

  const SiteTable& table_;
  std::map<SiteId, SiteTotals> sites_;
  std::map<BookId, Book> books_;
  std::map<PoolNumber, PoolTotals> reserved_;  // without what their books have
  int64_t live_ = 0;
};

class LedgerTest : public ::testing::Test {
 protected:
  // A new site of a device's memory, or of that of a pool.
  SiteId NewSite(DeviceId device, MemoryKind kind = MemoryKind::kDevice, AllocatorId allocator = {},
                 PoolNumber from = 0) {
    const uintptr_t pc = 0x400000 + sites_.size();
    return sites_.InternSite(StackAt(sites_, &pc), {Attributes{device, kind, allocator}, 0, from});
  }
  PoolNumber NumberOf(DeviceId device, AllocatorId allocator) { return sites_.pools().FindOrMake({device, allocator}); }
  void Enter(Change change, SiteId site, int64_t bytes) {
    ASSERT_TRUE(EnterEvent(ledger_, change, site, bytes));
    model_.Enter(change, site, bytes);
  }
  void Move(SiteId from, SiteId to, int64_t bytes) {
    {
      Ledger::Event event(ledger_, Ledger::Locks::kAllShards);
      const auto counter = event.Prepare(from, 0);
      const auto counter_to = event.Prepare(to, 0);
      ASSERT_TRUE(counter != nullptr && counter_to != nullptr);
      event.Move(counter, counter_to, kAnother, {from, PresentGeneration(), bytes}, to);
    }
    model_.Move(from, to, bytes);
  }
  void Resize(SiteId site, int64_t before, int64_t bytes) {
    for (const Ledger::Locks locks : {Ledger::Locks::kOwnShard, Ledger::Locks::kAllShards}) {
      Ledger::Event event(ledger_, locks);
      const auto counter = event.Prepare(site, std::max<int64_t>(bytes - before, 0));
      if (counter == nullptr) continue;
      event.Resize(counter, kAnother, {site, PresentGeneration(), before}, bytes);
      break;
    }
    model_.Resize(site, before, bytes);
  }
  void ResetPeak(AccountId account) {
    ledger_.ResetPeak(account);
    model_.ResetPeak(account);
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
  Enter(Change::kAlloc, first, 100);
  Enter(Change::kFree, first, 100);
  Enter(Change::kAlloc, second, 100);
  ExpectSame();
  Enter(Change::kAlloc, second, 1);
  ExpectSame();
}

TEST_F(LedgerTest, ZeroBytesCountAsObjectsAndMakeNoPeak) {
  const SiteId site = NewSite(kDefaultDevice);
  for (int i = 0; i < 3; ++i) {
    Enter(Change::kAlloc, site, 0);
    ExpectSame();
  }
  Enter(Change::kAlloc, site, 1);
  Enter(Change::kFree, site, 0);
  ExpectSame();
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 1);
}

TEST_F(LedgerTest, FreeByAnotherThreadLeavesTotalsAtZero) {
  const SiteId site = NewSite(kDefaultDevice);
  Workers workers(2);
  for (int i = 0; i < 10; ++i) {
    workers.Run(0, [&] { Enter(Change::kAlloc, site, 1000); });
    ExpectSame();
    workers.Run(1, [&] { Enter(Change::kFree, site, 1000); });
    ExpectSame();
  }
  // Thread 1's own part is -10,000 now, and it may use the headroom that its frees gave it.
  workers.Run(1, [&] { Enter(Change::kAlloc, site, 1000); });
  workers.Run(0, [&] { Enter(Change::kAlloc, site, 1000); });
  ExpectSame();
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 2000);
}

TEST_F(LedgerTest, BlocksChangeOnlyTheirPoolsBook) {
  const AllocatorId name{1};
  const PoolNumber pool = NumberOf(kDefaultDevice, name);
  const SiteId segment = NewSite(kDefaultDevice, MemoryKind::kPool, name);
  const SiteId block = NewSite(kDefaultDevice, MemoryKind::kDevice, name, pool);
  EXPECT_FALSE(ledger_.HasSegments(pool));
  Enter(Change::kAlloc, segment, 1000);
  EXPECT_TRUE(ledger_.HasSegments(pool));
  Enter(Change::kAlloc, block, 300);
  Enter(Change::kAlloc, block, 200);
  Enter(Change::kFree, block, 300);
  ExpectSame();
  const AccountTotals totals = ledger_.Totals(kAccount0);
  EXPECT_EQ(totals.bytes_in_use, 1000);
  EXPECT_EQ(totals.pool_bytes, 1000);
  EXPECT_EQ(totals.idle_bytes, 800);
  EXPECT_EQ(totals.num_live, 2);
  EXPECT_EQ(ledger_.Totals(pool).peak_bytes_allocated, 500);
  Enter(Change::kFree, segment, 1000);
  EXPECT_FALSE(ledger_.HasSegments(pool));
  EXPECT_EQ(ledger_.Totals(kAccount0).idle_bytes, 0) << "200 allocated, 0 reserved";
  ExpectSame();
}

TEST_F(LedgerTest, ResetPeakChangesOneAccount) {
  const SiteId here = NewSite(kDefaultDevice);
  const SiteId other = NewSite(DeviceId{1});
  const SiteId pinned = NewSite(kDefaultDevice, MemoryKind::kPinnedHost);
  for (const SiteId site : {here, other, pinned}) {
    Enter(Change::kAlloc, site, 100);
    Enter(Change::kAlloc, site, 50);
    Enter(Change::kFree, site, 100);
  }
  ResetPeak(kAccount0);
  ExpectSame();
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 50);
  EXPECT_EQ(ledger_.Totals(AccountOf(DeviceId{1}, MemorySpace::kDevice)).peak_bytes_in_use, 150);
  Enter(Change::kAlloc, here, 1);
  ExpectSame();
}

TEST(LedgerLiveRecords, LagByLessThanTheFlushInterval) {
  constexpr int kFlushEvery = 64;
  SiteTable sites(16);
  Ledger ledger(sites, kFlushEvery);
  const uintptr_t pc = 1;
  const SiteId site = sites.InternSite(StackAt(sites, &pc), {Attributes{}, 0, 0});
  Workers workers(4);
  for (int64_t i = 1; i <= 5000; ++i) {
    workers.Run(static_cast<size_t>(i) % workers.size(), [&] { EnterEvent(ledger, Change::kAlloc, site, 1); });
    ASSERT_GT(ledger.live_records(), i - 4 * kFlushEvery);
    ASSERT_LE(ledger.live_records(), i);
  }
}

TEST(LedgerLiveRecords, AreExactIfEachEventIsFlushed) {
  SiteTable sites(16);
  Ledger ledger(sites, 1);
  const uintptr_t pc = 1;
  const SiteId site = sites.InternSite(StackAt(sites, &pc), {Attributes{}, 0, 0});
  for (int64_t live = 1; live <= 100; ++live) {
    EXPECT_TRUE(EnterEvent(ledger, Change::kAlloc, site, 1));
    EXPECT_EQ(ledger.live_records(), live);
  }
  EXPECT_TRUE(EnterEvent(ledger, Change::kFree, site, 1));
  EXPECT_EQ(ledger.live_records(), 99);
}

// An event under the lock of its own shard is refused if it needs more than that.
TEST_F(LedgerTest, EventsLockTheirShardAloneIfThatIsEnough) {
  const auto enter = [&](Change change, SiteId site, int64_t bytes) {
    return EnterEvent(ledger_, Ledger::Locks::kOwnShard, change, site, bytes);
  };
  const SiteId site = NewSite(kDefaultDevice);
  NumberOf(kDefaultDevice, AllocatorId{1});
  const SiteId segment = NewSite(kDefaultDevice, MemoryKind::kPool, AllocatorId{1});
  EXPECT_FALSE(enter(Change::kAlloc, site, 100)) << "a new peak";
  ASSERT_TRUE(EnterEvent(ledger_, Change::kAlloc, site, 100));
  ASSERT_TRUE(EnterEvent(ledger_, Change::kAlloc, segment, 100));
  EXPECT_TRUE(enter(Change::kFree, site, 40));
  EXPECT_FALSE(enter(Change::kAlloc, site, 41)) << "a new peak";
  EXPECT_FALSE(enter(Change::kFree, segment, 1)) << "a segment";
  EXPECT_TRUE(enter(Change::kAlloc, site, 40));
  EXPECT_EQ(ledger_.Totals(kAccount0).bytes_in_use, 200);
  EXPECT_EQ(ledger_.Totals(kAccount0).peak_bytes_in_use, 200);
  EXPECT_EQ(ledger_.Totals(kAccount0).num_live, 2);
}

// The memory of a site is counted when the site is made, so its events can be entered in every shard.
TEST(LedgerMemory, EventsOfKnownSitesTakeNone) {
  constexpr int kThreads = 64;  // they share the shards
  constexpr SiteId kSites = 10000;
  SiteTable sites(1 << 14);
  const int64_t before = HostBytes();
  for (uintptr_t pc = 1; pc <= kSites; ++pc) sites.InternSite(StackAt(sites, &pc), {Attributes{}, 0, 0});
  const int64_t taken = HostBytes() - before;
  EXPECT_GE(taken, kSites * SiteTable::kBytesPerSite);
  EXPECT_LE(taken, kSites * (SiteTable::kBytesPerSite + 200));
  Ledger ledger(sites, 64);
  const int64_t limit = MaxHostBytes();
  SetMaxHostBytes(HostBytes());
  Workers workers(kThreads);
  for (size_t thread = 0; thread < kThreads; ++thread) {
    workers.Run(thread, [&] {
      for (SiteId site = 0; site < kSites; ++site) ASSERT_TRUE(EnterEvent(ledger, Change::kAlloc, site, site));
    });
  }
  SetMaxHostBytes(limit);
  EXPECT_EQ(HostBytes(), before + taken);
  const std::vector<SiteTotals> totals = ledger.Snapshot().sites;
  for (SiteId site = 0; site < kSites; ++site) {
    ASSERT_EQ(totals[site].inuse_objects, kThreads);
    ASSERT_EQ(totals[site].inuse_bytes, int64_t{kThreads} * site);
    ASSERT_EQ(totals[site].peak_bytes, totals[site].inuse_bytes);
  }
}

// Random events on several devices, spaces and pools; `workers` threads take turns at random.
class RandomLedgerTest : public LedgerTest, public ::testing::WithParamInterface<int> {
 protected:
  struct Live {
    SiteId site;
    int64_t bytes;
  };

  void MakeSites() {
    // Many sites, of the device and of pools.
    const AllocatorId outer{1};
    const AllocatorId inner{2};
    for (int i = 0; i < 700; ++i) {
      const auto device = DeviceId(i % 3 == 2 ? 63 : i % 3);
      const PoolNumber pool = NumberOf(device, i % 2 == 0 ? outer : inner);
      switch (i % 7) {
        case 0:
          made_.push_back(NewSite(device, MemoryKind::kPool, i % 2 == 0 ? outer : inner));
          break;
        case 1:
          made_.push_back(NewSite(device, MemoryKind::kPool, inner, NumberOf(device, outer)));
          break;
        case 2:
        case 3:
          made_.push_back(NewSite(device, MemoryKind::kDevice, outer, pool));
          break;
        case 4:
          made_.push_back(NewSite(device, i % 2 == 0 ? MemoryKind::kManaged : MemoryKind::kPinnedHost));
          break;
        default:
          made_.push_back(NewSite(device));
      }
    }
  }

  size_t Below(size_t limit) { return random_() % limit; }
  int64_t Bytes() { return Below(10) == 0 ? 0 : static_cast<int64_t>(Below(1000)) << Below(12); }

  void AnyEvent(size_t add_percent) {
    const size_t choice = Below(100);
    if (choice < add_percent || live_.empty()) {
      live_.push_back({made_[Below(made_.size())], Bytes()});
      return Enter(Change::kAlloc, live_.back().site, live_.back().bytes);
    }
    std::swap(live_[Below(live_.size())], live_.back());
    Live& live = live_.back();
    if (choice < 94) {
      Enter(Change::kFree, live.site, live.bytes);
      live_.pop_back();
    } else if (choice < 96) {
      ResetPeak(static_cast<AccountId>(Below(kAccounts)));
    } else if (choice < 98) {
      const int64_t before = std::exchange(live.bytes, Bytes());
      Resize(live.site, before, live.bytes);
    } else {
      const Site& site = sites_.At(live.site);
      const Attributes attributes = site.labels.attributes();
      if (attributes.kind != MemoryKind::kDevice) return;
      const SiteLabels of_segment = site.labels.With({attributes.device, MemoryKind::kPool, AllocatorId{2}});
      const SiteId from = std::exchange(live.site, sites_.InternSite(site.stack, of_segment));
      Move(from, live.site, live.bytes);
    }
  }

  std::mt19937_64 random_;
  std::vector<SiteId> made_;
  std::vector<Live> live_;
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
      Model::ExpectSame(ledger_.Totals(account), model_.Totals(account));
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

TEST(EventLogTest, AChangeIsInOneBuffer) {
  EventLog log;
  ASSERT_TRUE(log.Allocate(2));
  log.SetMode(EventLog::Mode::kStream);
  ShardLog shard = {};
  RecordedEvent* next = nullptr;
  log.Open(0, &shard, &next);
  EventBuffer* const first = shard.buffer;
  for (uint32_t i = 1; i < EventBuffer::kEvents; ++i) log.Write({log.TimeInShard(&shard)}, 0, &shard, &next);
  const auto change = [&] {
    const int64_t time = log.TimeInShard(&shard);
    log.Write({time, 0, 0, 0, 0, RecordedKind::kMoveFrom, true}, 0, &shard, &next);
    log.Write({time, 0, 0, 0, 0, RecordedKind::kMoveTo, false}, 0, &shard, &next);
  };
  change();
  EXPECT_NE(shard.buffer, first);
  EXPECT_EQ(first->count, EventBuffer::kEvents + 1);
  FillBuffer(log, shard, next);
  EXPECT_EQ(log.TakeLost().count, 0);
  change();
  EXPECT_EQ(log.TakeLost().count, 2);
  Close(log, shard, next);
}

TEST(LedgerSnapshots, AreOneInstantWhileThreadsRecord) {
  constexpr int kThreads = 6;
  SiteTable sites(4096);
  Ledger ledger(sites, 64);
  std::vector<SiteId> made;
  for (uintptr_t pc = 1; pc <= 4000; ++pc) {  // so many that reading their counters takes a while
    made.push_back(sites.InternSite(StackAt(sites, &pc), {Attributes{DeviceId(pc % 2), {}, {}}, 0, 0}));
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
        ASSERT_TRUE(EnterEvent(ledger, Change::kAlloc, made_now.first, made_now.second));
        std::pair<SiteId, int64_t> taken = made_now;
        {
          std::lock_guard<std::mutex> hold(mutex);
          shelf.push_back(made_now);
          if (shelf.size() < 200 || random() % 64 == 0) continue;
          std::swap(shelf[random() % shelf.size()], shelf.back());
          taken = shelf.back();
          shelf.pop_back();
        }
        ASSERT_TRUE(EnterEvent(ledger, Change::kFree, taken.first, taken.second));
      }
    });
  }
  int64_t last_peak[2] = {};
  int64_t last_allocs[2] = {};
  while (running.load() < kThreads) std::this_thread::yield();
  for (int snapshot = 0; snapshot < 500 && !HasFailure(); ++snapshot) {
    const auto [of_accounts, of_pools, of_sites] = ledger.Snapshot();
    for (const int device : {0, 1}) {
      const AccountTotals& account = of_accounts[AccountOf(DeviceId(device), MemorySpace::kDevice)];
      SiteTotals sum;
      for (const SiteId site : made) {
        if (sites.At(site).labels.attributes().device != DeviceId(device)) continue;
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
  for (const auto& [site, bytes] : shelf) ASSERT_TRUE(EnterEvent(ledger, Change::kFree, site, bytes));
  for (const int device : {0, 1}) {
    const AccountTotals totals = ledger.Totals(AccountOf(DeviceId(device), MemorySpace::kDevice));
    EXPECT_EQ(totals.bytes_in_use, 0);
    EXPECT_EQ(totals.num_live, 0);
  }
}

}  // namespace
}  // namespace hbmprof::internal
