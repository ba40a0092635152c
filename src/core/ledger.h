// Ledger: the bytes and objects in use, per site and per account (one memory space of one device), with the exact peak
// and what every site held at the peak.
//
// It is split into shards. A thread enters events into its own shard, so threads share nothing while they record; a
// site's or an account's value is the sum over the shards. A new peak holds the locks of the shards that have had
// events of the account lately. A snapshot holds the locks of all shards for as long as it takes to add up the accounts
// and to begin a new epoch; it reads the sites' cells afterwards, a chunk at a time.
//
// A site's counters in one shard are a cell. Cells come in chunks of 256 sites. The first shard that uses a site of a
// chunk owns the chunk for ever. The other shards keep cells for the sites of that chunk that they use, in a cache of
// limited size. A cell that leaves a cache is added to the owner's cell. An event of a site that is not in the cache is
// entered into the owner's shard. So host memory per site does not grow with the number of shards.
//
// Thread safety: all methods may be called from any thread at any time, unless annotated.
//
// Invariants, for each account, with in_use and headroom summed over its shards:
// 1. in_use + headroom <= peak, and no shard's headroom is negative unless the account is parked there. An event that
//    adds bytes takes them from its shard's headroom, so no event inside one shard can raise in_use above peak. If the
//    headroom does not suffice, the account's shards are locked: what is free below the peak is distributed again, or
//    there is a new peak. Only then does a shard's allowance = in_use + headroom change; in_use is not stored.
// 2. An account is parked in a shard that has had no event of it since the headroom was last distributed, and before
//    its first event there. It does not change while it is parked; its bytes in use are part of parked_in_use. The next
//    event there makes it active again, with all_lock_ and the shard's lock held.
// 3. Each peak and each snapshot begins a new epoch of the account. The epoch changes only while the shards in which
// the
//    account is active are locked, and each of them has a copy of it.
// 4. A cell keeps the epoch of its last change. If that is peak_epoch (the epoch that the last peak began) or later,
//    peak_* is what the cell had at the last peak. If it is earlier, the cell has not changed since, so its present
//    values are those of the peak. The first change in an epoch brings the cell to the present epoch first (Touch).
// 5. While a snapshot reads the cells, a cell of an epoch before the snapshot's has the values of that instant. Before
//    the first change of such a cell that the snapshot has not read yet, Touch gives its values to the snapshot.
// 6. Which sites are in a shard's cache changes only while all_lock_ and the shard's lock are held. When a cell moves
//    to the owner, both cells are first brought to the account's present epoch, under both shards' locks.
// 7. Locks are taken in this order: reading_lock_, all_lock_, shards by number, Reading::lock.
#ifndef HBMPROF_SRC_CORE_LEDGER_H_
#define HBMPROF_SRC_CORE_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/allocation.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/site_table.h"
#include "src/core/trace.h"

namespace hbmprof::internal {

// Values of one site at one instant.
struct SiteTotals {
  int64_t alloc_objects = 0;
  int64_t alloc_bytes = 0;
  int64_t inuse_objects = 0;
  int64_t inuse_bytes = 0;
  int64_t peak_objects = 0;
  int64_t peak_bytes = 0;
};

// Values of one account at one instant.
struct AccountTotals {
  int64_t bytes_in_use = 0;
  int64_t peak_bytes_in_use = 0;
  int64_t num_allocs = 0;
  int64_t num_live = 0;
  int64_t largest_alloc = 0;
  int64_t pool_bytes = 0;   // in live segments
  int64_t block_bytes = 0;  // in live blocks of those segments
};

class Ledger {
  struct Account;
  struct Cell;
  struct Shard;

 public:
  // The least number of cells that a shard may have in its cache. (A cache may have more where there are many sites.)
  static constexpr uint32_t kMinCachedCells = kIsTraced ? 16 : 1024;

  // The ledger's sites are those of `sites`, which must outlive it. `flush_every`: see live_records().
  // `min_cached_cells` is a power of two, at least 4.
  Ledger(const SiteTable& sites, int flush_every, uint32_t min_cached_cells = kMinCachedCells);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // What happens to one buffer of a site.
  enum class Event : uint8_t {
    kAlloc,
    kFree,
    kUndoFree,      // the free did not happen after all
    kAllocAndFree,  // at once: the buffer is in use at no instant and makes no peak
  };
  // Makes the cell that events of `site` need. Returns false if the host has no memory for it. Once it has returned
  // true, every event of the site can be entered.
  bool MakeCells(SiteId site) { return ShardFor(site) != nullptr; }

  // What became of an event. kNotEntered (0): the host has no memory for the site's cell, and nothing has changed.
  enum Entered : uint8_t {
    kNotEntered,
    kEntered,
    kEnteredAndCounted,  // live_records() has changed
  };
  // The cell into which this thread enters a site's events, if its shard owns it.
  class CellRef {
    friend class Ledger;
    Shard* shard = nullptr;
    Cell* cell = nullptr;
  };
  // Starts loading the cell, for an event that follows.
  CellRef Prefetch(SiteId site) {
    CellRef ref;
    ref.shard = ShardOfThisThread();
    if (ref.shard != nullptr) ref.cell = OwnedCellOf(*ref.shard, site);
    __builtin_prefetch(ref.cell, 1);
    return ref;
  }
  // Enters one event of a site that is neither a pool's segment nor its block.
  Entered Enter(Event event, SiteId site, int64_t bytes) { return Enter(event, Prefetch(site), site, bytes); }
  // The same. `ref` is what Prefetch returned for the site in this thread.
  Entered Enter(Event event, const CellRef& ref, SiteId site, int64_t bytes) {
    const Entered entered = EnterPlain(event, ref, site, bytes);
    return entered != kNotEntered ? entered : EnterSlow(event, site, bytes);
  }
  // Enters the event if it is a common one: this thread's shard owns the cell, has had an event of the site, which is
  // plain, and has the headroom. Otherwise returns kNotEntered, and nothing has changed.
  Entered EnterPlain(Event event, const CellRef& ref, SiteId site, int64_t bytes) {
    if (ref.cell == nullptr) return kNotEntered;
    SpinLockHolder hold(ref.shard->lock);
    return EnterPlain(event, *ref.shard, ref.cell, site, bytes);
  }
  Entered EnterPlain(Event event, Shard& shard, Cell* cell, SiteId site, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock) {
    if (cell->account == nullptr) return kNotEntered;
    Account& account = *cell->account;
    if (event != Event::kFree && AddedBytes(event, bytes) > account.headroom) return kNotEntered;
    if (!Touch(shard, account, site, cell)) return kNotEntered;
    return Apply(shard, event, account, /*is_pool=*/false, bytes, cell);
  }

  // Enters events of blocks that lie in one segment. Holds the lock of this thread's shard while it lives.
  class OwnShard {
   public:
    explicit OwnShard(Ledger& ledger) ABSL_NO_THREAD_SAFETY_ANALYSIS : ledger_(ledger),
                                                                       shard_(ledger.ShardOfThisThread()) {
      if (shard_ != nullptr) shard_->lock.Lock();
    }
    ~OwnShard() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (shard_ != nullptr) shard_->lock.Unlock();
    }
    OwnShard(const OwnShard&) = delete;
    OwnShard& operator=(const OwnShard&) = delete;

    // Returns false if the host has no memory for the shard. Then no lock is held and nothing else may be called.
    bool is_usable() const { return shard_ != nullptr; }
    // The shard's cells of a block's site and of its segment's.
    class Cells {
      friend class OwnShard;
      SiteId block = kNoSite;
      SiteId segment = kNoSite;
      Cell* of_block = nullptr;
      Cell* of_segment = nullptr;

     public:
      explicit operator bool() const { return of_block != nullptr && of_segment != nullptr; }
    };
    // Returns none if the account of both is not active in the shard.
    Cells CellsOf(SiteId block, SiteId segment, AccountId account) const {
      Cells cells;
      if (!shard_->accounts[account].is_active()) return cells;
      cells.block = block;
      cells.segment = segment;
      cells.of_block = CellOf(*shard_, block);
      cells.of_segment = CellOf(*shard_, segment);
      return cells;
    }
    // Enters that a block of `bytes` bytes is allocated in a segment, or freed. The account's bytes in use stay the
    // same.
    [[gnu::always_inline]] Entered EnterBlock(Event event, const Cells& cells, AccountId account_id,
                                              int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      Account& account = shard_->accounts[account_id];
      ledger_.Touch(*shard_, account, cells.block, cells.of_block);
      ledger_.Touch(*shard_, account, cells.segment, cells.of_segment);
      Count(event, account, bytes, cells.of_block);
      const int64_t charged = event == Event::kFree ? -bytes : bytes;
      cells.of_segment->freed_bytes += charged;
      account.block_bytes += charged;
      return ledger_.CountEvent(*shard_, event == Event::kFree ? -1 : 1);
    }

   private:
    Ledger& ledger_;
    Shard* const shard_;
  };
  // One event of a pool: it changes several sites of one account at the same instant. While it lives it holds the lock
  // of the calling thread's shard, or of all shards; its destructor completes the event. The thread must not enter
  // other events meanwhile.
  class Change {
   public:
    enum class Scope : uint8_t { kOwnShard, kAllShards };
    Change(Ledger& ledger, Scope scope) ABSL_NO_THREAD_SAFETY_ANALYSIS;
    ~Change() ABSL_NO_THREAD_SAFETY_ANALYSIS;
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

    // Returns false if the host has no memory for any shard. Then nothing else may be called.
    bool is_usable() const { return own_ != nullptr; }
    bool holds_all() const { return scope_ == Scope::kAllShards; }
    // Must be called for each site that is passed to the methods below. All sites of a change belong to one account.
    // Returns false if the host has no memory. A change that holds its own shard only also gets false if the account is
    // parked there or the shard has no cell for the site. A change that holds all shards always gets true for a site
    // that was prepared or entered before.
    bool Prepare(SiteId site);
    // Returns whether the account's bytes in use may rise by `bytes`: always, if all shards are held.
    bool Admits(AccountId account, int64_t bytes) const {
      return holds_all() || own_->accounts[account].headroom >= bytes;
    }

    // An object of `bytes` bytes is allocated or freed.
    void Enter(Event event, SiteId site, int64_t bytes);
    // `bytes` bytes of segments of `site` are counted in another site from now on. If negative, they become idle.
    void Charge(SiteId site, int64_t bytes);
    // A live object of `from` becomes one of `to` and may change its size. It counts as allocated at `to`. An increase
    // adds to the bytes ever allocated, a decrease to the bytes freed.
    void Move(SiteId from, SiteId to, int64_t old_bytes, int64_t new_bytes);
    // Adds to the account's bytes in segments that lie in no other segment, and to those of them that are in blocks.
    void AddPoolBytes(int64_t bytes) { pool_bytes_ += bytes; }
    void AddBlockBytes(int64_t bytes) { block_bytes_ += bytes; }
    // Completes the event before the destructor does. Returns whether live_records() has changed.
    Entered Complete() ABSL_NO_THREAD_SAFETY_ANALYSIS;

   private:
    // Brings a cell of a prepared site to the present epoch and returns it.
    Cell& Changed(SiteId site) ABSL_NO_THREAD_SAFETY_ANALYSIS;
    // Makes the change's account active in the thread's own shard and returns it.
    Account& OwnAccount();

    Ledger& ledger_;
    const Scope scope_;
    Shard* own_;
    bool is_held_ = true;
    bool has_event_ = false;
    AccountId account_ = 0;
    int records_ = 0;
    int64_t in_use_ = 0;
    int64_t pool_bytes_ = 0;
    int64_t block_bytes_ = 0;
  };
  // Returns the number of live records. It differs from the exact one by less than `flush_every` per shard.
  int64_t live_records() const { return live_records_.load(std::memory_order_relaxed); }
  // Sets whether each event changes live_records() at once from now on.
  void CountEachEvent(bool each) {
    const int flush_every = each ? 1 : usual_flush_every_;
    // Every event reads it.
    if (flush_every_.load(std::memory_order_relaxed) != flush_every) {
      flush_every_.store(flush_every, std::memory_order_relaxed);
    }
  }

  AccountTotals Totals(AccountId account) const;
  // Returns the exact number of live records of all accounts.
  int64_t CountLive() const;

  // Sets the totals of all accounts and of sites 0 to sites->size()-1, all of one instant. Snapshots run one at a time;
  // another one waits.
  void Snapshot(std::vector<SiteTotals>* sites, std::vector<AccountTotals>* accounts) const;

  // Makes the present bytes in use the account's peak.
  void ResetPeak(AccountId account);

  // Around a fork.
  void LockAll() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // In a forked child, with all locks held: sets everything to zero. The locks stay held.
  void Clear();
  // In a forked child whose parent may have been taking a snapshot in another thread.
  void ForgetSnapshotInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Cell {
    int64_t inuse_objects() const { return alloc_objects - freed_objects; }
    int64_t inuse_bytes() const { return alloc_bytes - freed_bytes; }
    bool is_zero() const {
      return alloc_objects == 0 && alloc_bytes == 0 && freed_objects == 0 && freed_bytes == 0 && epoch == 0;
    }

    int64_t alloc_objects;
    int64_t alloc_bytes;
    int64_t freed_objects;
    int64_t freed_bytes;  // for a segment's site, they include the bytes that are counted in other sites
    int64_t peak_objects;
    int64_t peak_bytes;
    uint64_t epoch;  // of the last change; 0: none yet
    // Of a plain site, after EnterSlow has entered an event: the account in the same shard. Else null. A free needs no
    // other data of the site.
    Account* account;
  };
  // One shard's part of an account. All fields but headroom may be negative: a buffer may be freed through another
  // shard than the one through which it was allocated.
  struct Account {
    int64_t in_use() const { return allowance - headroom; }
    int64_t events() const { return num_allocs + num_frees; }
    bool is_active() const { return epoch != 0 && epoch != kParked; }
    void SetHeadroom(int64_t bytes) {
      allowance = in_use() + bytes;
      headroom = bytes;
    }
    // From now on no allocation is entered, not even one of 0 bytes.
    void Park() {
      SetHeadroom(-1);
      epoch = kParked;
    }

    int64_t headroom;
    int64_t allowance;
    int64_t num_allocs;
    int64_t num_frees;
    int64_t largest_alloc;
    int64_t pool_bytes;
    int64_t block_bytes;
    uint64_t epoch;  // the account's, or kParked; 0 before the first event
  };
  static_assert(sizeof(Account) == 64, "one cache line");
  static constexpr uint64_t kParked = ~uint64_t{0};
  // What the shards of an account have in common. Guarded by all_lock_. A thread may also read it under the lock of a
  // shard in which the account is active, since a writer holds that lock, too.
  struct Common {
    int64_t peak = 0;  // bytes
    uint64_t epoch = 1;
    uint64_t peak_epoch = 1;
    uint64_t active = 0;        // bit s: the account is active in shard s
    int64_t parked_in_use = 0;  // bytes, of the shards in which it is parked
    bool is_used = false;       // it has been active in some shard
  };
  // A snapshot that is reading the cells.
  struct Reading {
    // One account at the snapshot's instant.
    struct Instant {
      uint64_t epoch = 0;  // the cells of earlier epochs have not changed since; 0: there was no event of the account
      uint64_t peak_epoch = 0;
    };
    // Adds the cell's values at that instant, if the cell has not changed since.
    static void Add(const Cell& cell, const Instant& instant, SiteTotals* totals);

    Instant accounts[kAccounts];
    SpinLock lock;
    // By site: the sums of the cells that changed before they were read.
    std::vector<SiteTotals> changed ABSL_GUARDED_BY(lock);
  };
  // Sets of kWays cells, by site.
  struct Cache {
    static constexpr uint32_t kWays = 4;

    // Null if it has none.
    Cell* CellOf(SiteId site) const;
    // Of kWays.
    SiteId* SetOf(SiteId site) const { return sites + (site * kWays & (count - 1)); }
    static size_t BytesOf(uint32_t count) { return count * (sizeof(Cell) + sizeof(SiteId)); }

    Cell* cells;
    SiteId* sites;      // of the cells, plus 1; 0: none
    uint32_t count;     // of cells: a power of two, or 0
    uint32_t next_way;  // of the set that gives up a cell next
  };
  struct alignas(128) Shard {
    SpinLock lock;
    int unflushed_records;       // change since the last addition to live_records_
    std::atomic<Cell*>* chunks;  // that it owns, by site >> kChunkBits; null until the shard is first used
    // Cells of sites that other shards own.
    Cache cache;
    uint32_t misses;  // of sites whose set in the cache was full
    // A snapshot that has not read the owned cells of the sites from `unread` on, nor the cached ones from
    // `unread_cached` on; or null.
    Reading* reading;
    SiteId unread;
    uint32_t unread_cached;
    Account accounts[kAccounts];
    int64_t events_when_shared[kAccounts];  // Account::events() when headroom was last shared out
  };
  static constexpr uint32_t kMaxShards = kThreadNumbers;
  static constexpr uint32_t kChunkBits = 8;
  // Bounds the time for which events wait while a cache grows.
  static constexpr uint32_t kMaxCachedCells = 1 << 14;
  // All caches together hold at most so many cells per site (but see kMinCachedCells).
  static constexpr uint32_t kCachedCellsPerSite = 4;
  // One miss out of so many in full sets puts the site into the cache. The other events go to the owner's shard.
  static constexpr uint32_t kMissesPerReplacement = 8;

  // Null if there is no memory.
  Shard* ShardOfThisThread() {
    Shard* shard = shard_of_[thread_state.number].load(std::memory_order_acquire);
    return shard != nullptr ? shard : Activate();
  }
  Shard* Activate();
  // Null if the shard does not own the site's chunk.
  static Cell* OwnedCellOf(const Shard& shard, SiteId site) {
    Cell* cells = shard.chunks[site >> kChunkBits].load(std::memory_order_relaxed);
    return cells == nullptr ? nullptr : cells + (site & ((1u << kChunkBits) - 1));
  }
  // Null if the shard has none. all_lock_ or the shard's lock is held.
  static Cell* CellOf(const Shard& shard, SiteId site) {
    Cell* owned = OwnedCellOf(shard, site);
    return owned != nullptr ? owned : shard.cache.CellOf(site);
  }
  // The shard that owns the site's chunk; null if none does.
  Shard* OwnerOf(SiteId site) const {
    const uint8_t owner = owners_[site >> kChunkBits].load(std::memory_order_acquire);
    return owner == 0 ? nullptr : &shards_[owner - 1];
  }
  // The same, but an unowned chunk becomes that of `shard`. Null if there is no memory.
  Shard* MakeOwner(Shard& shard, SiteId site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(all_lock_);
  // The number of cells that a cache should have space for now.
  uint32_t CacheSize() const;
  // Whether CacheCell should be called for a site that another shard owns and that is not in the cache of `shard`: true
  // if its set has space, else for some of the calls.
  static bool WantsToCache(Shard& shard, SiteId site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Makes a cell for the site in the cache of `shard`, in place of another one if need be. Returns false if there is no
  // memory. `is_locked`: all shards' locks are held.
  bool CacheCell(Shard& shard, SiteId site, bool is_locked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(all_lock_);
  // Does nothing if there is no memory.
  static void GrowCache(Cache* cache, uint32_t count);
  // Adds a cached cell to the owner's cell. all_lock_ is held.
  void MoveToOwner(Shard& shard, SiteId site, Cell* cell, Shard& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock, owner.lock);
  // The shard through which this thread enters events of `site`: its own, or the owner of the site's chunk. Null if
  // there is no memory for the chunk.
  Shard* ShardFor(SiteId site);
  // This thread's shard, or where there is no memory for that, any. Null if there is none.
  Shard* AnyShard();
  // Counts an event. The cell has been touched.
  Entered Apply(Shard& shard, Event event, Account& account, bool is_pool, int64_t bytes, Cell* cell)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  static void Count(Event event, Account& account, int64_t bytes, Cell* cell);
  // Returns by how much an event raises the bytes in use.
  static int64_t AddedBytes(Event event, int64_t bytes) {
    return event == Event::kFree ? -bytes : event == Event::kAllocAndFree ? 0 : bytes;
  }
  // Must be called before a cell of `account` in `shard` changes. The account has had an event there. Returns false,
  // and does nothing, if the account is parked there.
  bool Touch(Shard& shard, const Account& account, SiteId site, Cell* cell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock) {
    return cell->epoch == account.epoch || TouchFirst(shard, account, site, cell);
  }
  bool TouchFirst(Shard& shard, const Account& account, SiteId site, Cell* cell)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Brings a cell to the present epoch of its account, which the caller may read (see Common).
  void BringToEpoch(Shard& shard, AccountId account, SiteId site, Cell* cell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  Entered CountEvent(Shard& shard, int records) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  size_t ChunkCount() const { return (sites_.max_sites() >> kChunkBits) + 1; }
  static uint64_t Bit(const Shard* first, const Shard& shard) { return uint64_t{1} << (&shard - first); }
  // Takes all_lock_, the locks of the shards in which the account is active, and that of `own` if it is not null.
  // Returns the shards, for UnlockAccount.
  uint64_t LockAccount(AccountId account, const Shard* own) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAccount(uint64_t locked) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Ends the parking of the account in a shard. all_lock_ and the shard's lock are held.
  void Unpark(Shard& shard, AccountId account);
  // Distributes the headroom so that `own`, in which the account is active, can take `bytes` from it. Sets `*in_use` to
  // the account's bytes in use including `bytes`. Returns true if that is a new peak: then the caller must change the
  // cells and call BeginPeak. The account is locked.
  bool MakeHeadroom(Shard& own, AccountId account, int64_t bytes, int64_t* in_use);
  // Makes the present the account's peak, of `bytes` bytes. The account is locked.
  void BeginPeak(AccountId account, int64_t bytes);
  void BeginEpoch(AccountId account) const;
  Entered EnterSlow(Event event, SiteId site, int64_t bytes);
  template <typename Visit>
  void ForEachShardOf(uint64_t shards, const Visit& visit) const;
  template <typename Visit>
  void ForEachActiveShard(const Visit& visit) const;
  AccountTotals SumOf(AccountId account) const;
  // Reads the cells of `shards` for a snapshot. `account_of` is by site.
  void ReadCells(uint64_t shards, const std::vector<uint8_t>& account_of, Reading* reading,
                 std::vector<SiteTotals>* sites) const;

  // By a thread's number: its shard, once that is in use.
  std::atomic<Shard*> shard_of_[kThreadNumbers + 1] = {};
  const SiteTable& sites_;
  const int usual_flush_every_;
  std::atomic<int> flush_every_;
  const uint32_t min_cached_cells_;
  const int shard_count_;  // a power of two
  Shard* shards_;
  std::atomic<uint8_t>* owners_;  // by chunk: the number of the shard that owns it, plus 1; 0: none. Set once each
  mutable SpinLock all_lock_;
  std::atomic<uint64_t> active_{0};  // bit s: shard s is in use; changes under all_lock_
  mutable Common common_[kAccounts];
  // A snapshot holds it from beginning to end, at most some hundred milliseconds. No event waits for it.
  mutable SpinLock reading_lock_;
  std::atomic<int64_t> live_records_{0};
};

inline void Ledger::Count(Event event, Account& account, int64_t bytes, Cell* cell) {
  switch (event) {
    case Event::kAlloc:
      ++cell->alloc_objects;
      cell->alloc_bytes += bytes;
      ++account.num_allocs;
      if (bytes > account.largest_alloc) account.largest_alloc = bytes;
      break;
    case Event::kFree:
      ++cell->freed_objects;
      cell->freed_bytes += bytes;
      ++account.num_frees;
      break;
    case Event::kUndoFree:
      --cell->freed_objects;
      cell->freed_bytes -= bytes;
      --account.num_frees;
      break;
    case Event::kAllocAndFree:
      Count(Event::kAlloc, account, bytes, cell);
      Count(Event::kFree, account, bytes, cell);
      break;
  }
}

inline Ledger::Entered Ledger::Apply(Shard& shard, Event event, Account& account, bool is_pool, int64_t bytes,
                                     Cell* cell) {
  Count(event, account, bytes, cell);
  const int64_t added = AddedBytes(event, bytes);
  account.headroom -= added;
  if (is_pool) account.pool_bytes += added;
  return CountEvent(shard, event == Event::kAllocAndFree ? 0 : event == Event::kFree ? -1 : 1);
}

inline Ledger::Entered Ledger::CountEvent(Shard& shard, int records) {
  TraceLedger();
  const int unflushed = shard.unflushed_records += records;
  const int flush_every = flush_every_.load(std::memory_order_relaxed);
  if (records > 0 ? unflushed < flush_every : unflushed > -flush_every) return kEntered;
  live_records_.fetch_add(unflushed, std::memory_order_relaxed);
  shard.unflushed_records = 0;
  return kEnteredAndCounted;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_H_
