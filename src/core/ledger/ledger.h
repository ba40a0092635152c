// Ledger: the bytes and objects in use, per site and per account (one memory space of one device), with the exact peak
// and the values of every site at the peak.
//
// A thread enters its events into the shard of its number; a shard is made when its first thread records. The value of
// a site or of an account is the sum over the shards. The fast path (OwnShard) enters the common events, a Change
// enters any event. The caller changes the live table while one of the two holds its lock (pools.h).
//
// Generations (base/generations.h): a shard looks at the clock at each Flush, after at most `flush_every` events. A
// thread also looks when it finds a site outside of the site cache, and before an event that locks all shards.
//
// Thread safety: all methods may be called from any thread at any time, unless annotated.
//
// Invariants, for each account, with in_use and headroom summed over the shards:
// 1. in_use + headroom <= peak, and the headroom of each shard is at least 0. An event that adds bytes takes them from
//    the headroom of its shard. So an event that locks only its own shard cannot raise in_use above the peak. If the
//    headroom of the shard is too small, the event locks all shards. If in_use, with the event's bytes, is not above
//    the peak, the event distributes the bytes between in_use and peak to the shards, as their new headroom. Otherwise
//    in_use is the new peak. A shard stores its headroom and its allowance (in_use + headroom), but not in_use. The
//    allowance changes only while all shards are locked.
//    Example: the peak is 100 bytes. Shard A has 40 bytes in use and a headroom of 10, shard B has 30 and 20.
//    - An allocation of 8 bytes in A locks A only: A now has 48 and 2, B still 30 and 20.
//    - An allocation of 15 bytes in A does not fit in the headroom of 2. With it, in_use is 48 + 15 + 30 = 93. So it
//      makes no new peak, and both shards get 3 of the 7 bytes between 93 and 100: A has 63 and 3, B has 30 and 3.
//    - An allocation of 20 bytes in B makes in_use 113. This is the new peak, and both shards have a headroom of 0.
// 2. Each peak and each snapshot begins a new epoch of the account. The epoch changes only while all shards are locked.
//    Each shard has a copy of it.
// 3. A cell stores the epoch of its last change. If that epoch is peak_epoch (the epoch that began at the last peak) or
//    later, peak_objects and peak_bytes are the values that the cell had in use at the last peak. If it is earlier, the
//    cell has not changed since the peak, so its present values are those of the peak. Before the first change of a
//    cell in an epoch, BringToEpoch saves these values.
// 4. A snapshot shows the values at the instant at which it began its epoch. A cell with an earlier epoch has not
//    changed since that instant, so the snapshot reads it as it is. If such a cell changes before the snapshot has read
//    it, BringToEpoch first adds the old values to Reading::changed. The snapshot then ignores the cell, because its
//    epoch is no longer earlier.
// 5. The host memory of cells is counted for a chunk of 256 sites when a shard first uses one of them. If the host has
//    no memory for it, the event changes the cell of another shard, under all shards' locks. Some shard has the cells
//    of every site that was made (MakeCells).
// 6. Locks are taken in this order: reading_lock_, all_lock_, shards by number. No lock is taken under Reading::lock or
//    those of the EventLog and of FreedAges. src/README.md has the order with the locks of the other tables.
//
// While a recording is on, every change of the ledger is also written to the event log (event_log.h), under the same
// locks. A snapshot, a reset of the peak and an event that makes a peak hold the locks of all shards while they read
// the clock. So a replay in the order of the times gives the ledger's state at each instant: because of invariant 1,
// in_use stays at or below the peak in every order of the events between two such instants.
#ifndef HBMPROF_SRC_CORE_LEDGER_LEDGER_H_
#define HBMPROF_SRC_CORE_LEDGER_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "src/base/saturating.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/ledger/event_log.h"
#include "src/core/ledger/freed_ages.h"
#include "src/core/ledger/trace.h"
#include "src/core/tables/live_table.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

struct Segment;  // src/core/pools/segments.h

// Values of one site at one instant.
struct SiteTotals {
  void Add(const SiteTotals& more) {
    alloc_objects += more.alloc_objects;
    alloc_bytes = SaturatingSum(alloc_bytes, more.alloc_bytes);
    inuse_objects += more.inuse_objects;
    inuse_bytes += more.inuse_bytes;
    peak_objects += more.peak_objects;
    peak_bytes += more.peak_bytes;
  }

  int64_t alloc_objects = 0;
  int64_t alloc_bytes = 0;
  int64_t inuse_objects = 0;
  int64_t inuse_bytes = 0;
  int64_t peak_objects = 0;
  int64_t peak_bytes = 0;
};

// Values of one account at one instant.
struct AccountTotals {
  bool is_used() const { return num_allocs != 0; }

  int64_t bytes_in_use = 0;
  int64_t peak_bytes_in_use = 0;
  int64_t num_allocs = 0;
  int64_t num_live = 0;
  int64_t largest_alloc = 0;
  int64_t pool_bytes = 0;   // in live segments, and in other buffers of kind kPool
  int64_t block_bytes = 0;  // in live blocks of those segments
  int64_t peak_time = 0;    // of the peak; 0: the log was off
};

class Ledger {
  struct Account;
  struct Cell;
  struct Shard;

 public:
  // The number of shards. A site that all of them use takes 64 bytes in each.
  static constexpr uint32_t kShards = 8;

  // The ledger's sites are those of `sites`, which must outlive the ledger. `flush_every`, 1
  // to 64: see live_records().
  Ledger(const SiteTable& sites, int flush_every);
  // In a forked child it may be called at any instant of the parent's other threads: it reads only pointers and sizes
  // that are right at every instant (fork.h).
  ~Ledger();

  // The kinds of events of one buffer of a site; each is the RecordedKind of the same name.
  enum class Event : uint8_t {
    kAlloc,
    kFree,
  };
  // Makes the cell that events of `site` need. Returns false if the host has no memory for it. Once it has returned
  // true, every event of the site can be entered.
  bool MakeCells(SiteId site) {
    LookAtClock();
    const Shard* const shard = AnyShard();
    return shard != nullptr && (TakeCells(*shard, site) || ShardWith(site) != nullptr);
  }
  // The result of an event on the fast path.
  enum Entered : uint8_t {
    kNotEntered,  // nothing has changed
    kEntered,
    kEnteredAndCounted,  // the same, and a Flush is due: the caller must release the shard and call CountRecords
  };

  // A shard's view of the segment of its last block event: what its next event of a block in that segment needs. A
  // Change of all shards begins by clearing all views, so segments do not change while a view names them.
  struct SegmentView {
    uint64_t start;    // of a piece of the segment (SegmentMap::Piece): no segment inside this one lies there
    uint64_t bytes;    // of the piece; 0: the view is empty
    uint64_t id_bits;  // an address, XOR these, is the id of a block
    Segment* segment;
    Account* account;  // of the segment's site, in the shard
    Cell* cell;        // of the segment's site, in the shard
    SiteId site;       // the segment's
  };
  // The fast path. Holds the lock of this thread's shard as long as the object exists. Calls nothing, so that a
  // function that uses it saves no registers in the common case.
  class OwnShard {
   public:
    // Also starts loading the cell of `site`, if that is not kNoSite.
    explicit OwnShard(Ledger& ledger, SiteId site = kNoSite) ABSL_NO_THREAD_SAFETY_ANALYSIS
        : shard_(ledger.shard_of_[thread_state.number].load(std::memory_order_acquire)) {
      if (shard_ == nullptr) return;
      if (site != kNoSite) __builtin_prefetch(shard_->cells + site, 1);
      if (!shard_->lock.TryLock()) shard_ = nullptr;
    }
    ~OwnShard() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (shard_ != nullptr) shard_->lock.Unlock();
    }
    OwnShard(const OwnShard&) = delete;
    OwnShard& operator=(const OwnShard&) = delete;

    // Returns false if the thread has no shard yet or another thread holds its lock. Then nothing else may be called.
    bool is_usable() const { return shard_ != nullptr; }

    // The shard's cell of a site. It is null if the cell has not changed in the account's present epoch, if the event
    // log is on, or if the site is of another kind than the function says.
    using CellRef = Cell*;
    CellRef CellOfPlain(SiteId site) {
      Cell* const cell = shard_->cells + site;
      const intptr_t word = cell->account_word.load(std::memory_order_relaxed);
      if (word <= 0) return nullptr;
      account_ = reinterpret_cast<Account*>(word);
      return cell->epoch == account_->epoch ? cell : nullptr;
    }
    // Null also if the site has another account than the segment of the view.
    CellRef CellOfBlock(SiteId site) const {
      Cell* const cell = shard_->cells + site;
      const Account& account = *shard_->view.account;
      const bool is_of_account = cell->account_word.load(std::memory_order_relaxed) == BlockAccountWord(account);
      return is_of_account && cell->epoch == account.epoch ? cell : nullptr;
    }

    // Returns whether the shard has enough headroom for an allocation, after CellOfPlain.
    bool Admits(int64_t bytes) const { return bytes <= account_->headroom; }
    // Enters the allocation or the free of a buffer. `cell` comes from the last CellOfPlain. REQUIRES: Admits, for a
    // kAlloc.
    Entered Enter(Event event, CellRef cell, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      account_->headroom -= AddedBytes(event, bytes);
      Count(event, *account_, bytes, cell);
      return CountEvent(*shard_, RecordsOf(event));
    }

    // The view of this shard.
    SegmentView& view() { return shard_->view; }
    // Sets account and cell of the view for its site. `account`: of the site.
    void CompleteView(AccountId account) {
      view().account = &shard_->accounts[account];
      view().cell = shard_->cells + view().site;
    }
    // Returns whether the segment's cell has changed in the account's present epoch. Must be true before EnterBlock.
    bool HasCellOfSegment() { return view().cell->epoch == view().account->epoch; }
    // Enters the allocation of a block of `bytes` bytes in the segment of the view, or its free. `cell` comes from
    // CellOfBlock. The account's bytes in use stay the same.
    Entered EnterBlock(Event event, CellRef cell, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      Account& account = *view().account;
      Count(event, account, bytes, cell);
      const int64_t charged = event == Event::kFree ? -bytes : bytes;
      view().cell->freed_bytes += charged;
      account.block_bytes += charged;
      return CountEvent(*shard_, RecordsOf(event));
    }

   private:
    Shard* shard_;
    Account* account_ = nullptr;  // of the last CellOfPlain
  };
  // One event of any kind. It may change several sites of one account at the same instant. It holds the lock of the
  // calling thread's shard, or of all shards, during its life. The methods change the cells. The destructor changes the
  // headroom (of all shards, if it holds their locks and the event adds bytes) and, if the bytes in use are then above
  // the peak, makes the new peak. The thread must not enter other events meanwhile.
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
    // Returns false if the host has no memory. With Scope::kAllShards, always returns true for a site that was prepared
    // or entered before.
    bool Prepare(SiteId site) {
      return ledger_.TakeCells(*own_, site) || (holds_all() && ledger_.ShardWith(site) != nullptr);
    }
    // Returns whether the account's bytes in use may rise by `bytes`, the sum for the whole event. Must be true before
    // anything is entered. Always returns true if all shards are locked.
    bool Admits(AccountId account, int64_t bytes) const {
      return holds_all() || own_->accounts[account].headroom >= bytes;
    }

    // Enters the allocation or the free of an object of `bytes` bytes.
    void Enter(Event event, uint64_t id, SiteId site, int64_t bytes);
    // The same for a record of the live table. Also counts the age of a buffer that is freed.
    void Enter(Event event, uint64_t id, const LiveRecord& record);
    // `site` is the site of a segment. Removes `bytes` bytes from those in use at this site, because they are counted
    // in another site from now on. If `bytes` is negative, adds -`bytes` bytes, which become idle.
    void Charge(SiteId site, int64_t bytes);
    // Moves a live object from the site `from` to the site `to`. Its size may change. Afterwards its allocation counts
    // at `to` and no longer at `from`. An increase adds to the bytes ever allocated, a decrease to the bytes freed.
    void Move(uint64_t id, SiteId from, SiteId to, int64_t old_bytes, int64_t new_bytes);
    // A live object gets another id, and keeps site and size. Only recordings have ids: the ledger does not change.
    void Rename(uint64_t old_id, uint64_t new_id, SiteId site, int64_t bytes);
    // AddPoolBytes adds to the account's bytes in segments that lie in no other segment. AddBlockBytes adds to the part
    // of them that blocks have taken.
    void AddPoolBytes(int64_t bytes) { pool_bytes_ += bytes; }
    void AddBlockBytes(int64_t bytes) { block_bytes_ += bytes; }

   private:
    // Writes a part of the event to the event log, if that is on.
    void Log(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) {
      if (__builtin_expect(own_->next_event != nullptr, 0) != 0) AddPart(kind, id, site, bytes);
    }
    void AddPart(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS;
    // Brings a cell of a prepared site to the present epoch and returns it.
    Cell& Changed(SiteId site) ABSL_NO_THREAD_SAFETY_ANALYSIS;

    Ledger& ledger_;
    const Scope scope_;
    Shard* own_;
    bool has_event_ = false;  // a cell has changed
    AccountId account_ = 0;
    int records_ = 0;     // by how many the live records rise
    int64_t in_use_ = 0;  // by how much the account's bytes in use rise
    int64_t pool_bytes_ = 0;
    int64_t block_bytes_ = 0;
    // The last part for the event log. It is written when the next part comes or the event is complete: only then it is
    // known whether it is the last one.
    bool has_part_ = false;
    RecordedEvent part_;
  };
  // Calls `enter(change)` with a Change of the thread's shard. If that returns false, because it needs all shards,
  // calls it again with a Change of all shards.
  template <typename Enter>
  void InChange(const Enter& enter) {
    {
      Change change(*this, Change::Scope::kOwnShard);
      if (enter(change)) return;
    }
    Change change(*this, Change::Scope::kAllShards);
    enter(change);
  }
  const FreedAges& freed_ages() const { return freed_ages_; }
  // Returns the number of live records. It differs from the exact number by less than `flush_every` per shard, because
  // each shard adds its changes after at most that number of events.
  int64_t live_records() const { return live_records_.load(std::memory_order_relaxed); }
  // Takes the lock of this thread's shard, and adds what the shard has not added yet, if that is due.
  void CountRecords() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  AccountTotals Totals(AccountId account) const;
  // Returns the exact number of live records of all accounts. Like Totals, takes the locks of all shards.
  int64_t CountLive() const;
  // Returns the values of all accounts at one instant. Reads no cell.
  std::vector<AccountTotals> AllTotals() const;

  // Sets the totals of all accounts and of all sites that exist at one instant, each indexed by its number. Snapshots
  // run one at a time; another one waits. If the event log is on and the thread has a mark (EventLog::MarkOfThread),
  // writes a kMark event.
  //
  // For a recording, `instant` is not null: instead of the kMark event, sets `*instant` to the time of the instant. If
  // `mode` is not null, the log has this mode from the instant on: its events are those after the instant. Before a log
  // is switched on, the caller allocates its buffers. When it is switched off, its events are in the full buffers.
  void Snapshot(std::vector<SiteTotals>* sites, std::vector<AccountTotals>* accounts, int64_t* instant = nullptr,
                const EventLog::Mode* mode = nullptr) const;

  // The event log. Its modes change only in Snapshot and SetLogMode.
  EventLog& log() { return log_; }
  // Sets the log's mode, and returns the instant since which it has this mode, as Snapshot does. Allocates no memory.
  int64_t SetLogMode(EventLog::Mode mode) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Copies the events of the open buffer of the shard `number` to `events`, which has space for EventBuffer::kEvents of
  // them, and sets `*serial` to the log's last_serial() at that instant: the shard's full buffers with larger serial
  // numbers have these events, too. Returns their number.
  uint32_t CopyOpenEvents(uint32_t number, RecordedEvent* events, uint64_t* serial) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Adds the events that the shards have so far to the log's full buffers. Returns a time: all events up to it are
  // there, and every later event has a later time. Does nothing and returns 0 if the log is off.
  int64_t CollectEvents() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Writes an event of this thread that changes no total (kFailed, kTags, kMark), if the log is on. `site` may be
  // kNoRecordedSite.
  void LogOnly(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // Makes the present bytes in use the account's peak.
  void ResetPeak(AccountId account);

 private:
  struct Cell {
    int64_t inuse_objects() const { return alloc_objects - freed_objects; }
    int64_t inuse_bytes() const { return alloc_bytes - freed_bytes; }
    // The bytes ever allocated stay at the largest number. What does not fit is subtracted from the freed bytes, so
    // that the bytes in use are right.
    void AddAllocBytes(int64_t bytes) {
      int64_t sum;
      if (__builtin_expect(static_cast<int64_t>(__builtin_add_overflow(alloc_bytes, bytes, &sum)), 0) != 0) {
        freed_bytes -= bytes - (INT64_MAX - alloc_bytes);
        sum = INT64_MAX;
      }
      alloc_bytes = sum;
    }

    int64_t alloc_objects;
    int64_t alloc_bytes;
    int64_t freed_objects;
    int64_t freed_bytes;  // for a segment's site, they include the bytes that are counted in other sites
    int64_t peak_objects;
    int64_t peak_bytes;
    uint64_t epoch;  // of the last change; 0: none yet
    // After an event of a plain site: the address of the site's account in the same shard. Of a site of blocks: its
    // negative (BlockAccountWord). Otherwise 0. With it, an event needs no other data of the site. It may be read
    // without a lock.
    std::atomic<intptr_t> account_word;
  };
  // One shard's part of an account. Sums over the shards are not negative, but values of one shard may be: a buffer may
  // be freed through another shard than the one through which it was allocated. Only headroom is at least 0.
  struct Account {
    int64_t in_use() const { return allowance - headroom; }
    // `is_logged`: the event log is on.
    void SetEpoch(uint64_t present, bool is_logged) { epoch = is_logged ? kLogged : present; }
    void SetHeadroom(int64_t bytes) {
      allowance = in_use() + bytes;
      headroom = bytes;
    }

    int64_t headroom;
    int64_t allowance;
    int64_t num_allocs;
    int64_t num_frees;
    int64_t largest_alloc;
    int64_t pool_bytes;
    int64_t block_bytes;
    uint64_t epoch;  // the account's, or kLogged
  };
  static_assert(sizeof(Account) == 64, "one cache line");
  // While the event log is on, no cell has the epoch of an account, so that the fast path needs no other test for the
  // log.
  static constexpr uint64_t kLogged = ~uint64_t{0};
  // The data that all shards of an account share. It changes only while all shards are locked, so a thread may read it
  // under the lock of any shard. The exception is is_used: a thread sets it under the lock of its shard.
  struct Common {
    int64_t peak = 0;  // bytes
    uint64_t epoch = 1;
    uint64_t peak_epoch = 1;
    int64_t peak_time = 0;             // of the last peak; 0: the log was off
    std::atomic<bool> is_used{false};  // there was an event
  };
  // The state of a snapshot while it reads the cells.
  struct Reading {
    // One account at the snapshot's instant.
    struct Instant {
      uint64_t epoch = 0;  // cells with an earlier epoch have not changed since the instant; 0: there was no event
      uint64_t peak_epoch = 0;
    };
    // Adds the cell's values at that instant, if the cell has not changed since.
    static void Add(const Cell& cell, const Instant& instant, SiteTotals* totals);

    Instant accounts[kAccounts];
    SpinLock lock;
    // Indexed by site: the sums of the cells that changed before they were read.
    std::vector<SiteTotals> changed ABSL_GUARDED_BY(lock);
  };
  struct alignas(128) Shard {
    SpinLock lock;
    // The space of a cell for each site; null until the shard is made. Pages are touched only in chunks that the shard
    // has taken (TakeCells).
    Cell* cells;
    // kOneEvent times the number of events until the next Flush, plus what it adds to live_records_. The event that
    // makes it negative calls Flush: a Change at its end, the fast path by CountRecords.
    int64_t unflushed;
    RecordedEvent* next_event;  // the space for the next event in the event log; null: the log is off
    // The snapshot that is reading this shard's cells; null if there is none. It has not yet read the cells of the
    // sites from `unread` on.
    Reading* reading;
    SiteId unread;
    SegmentView view;
    Account accounts[kAccounts];
    ShardLog log;
    int64_t events_of_flush;  // the number of events between the last Flush and the next
    int64_t last_look;        // at the clock: the time of the last Flush
  };
  static constexpr int64_t kOneEvent = int64_t{1} << 30;  // kOneEvent + 1 fits in an instruction
  static constexpr uint32_t kChunkBits = 8;
  static constexpr int64_t kChunkBytes = sizeof(Cell) << kChunkBits;

  // Null if there is no memory.
  Shard* ShardOfThisThread() {
    Shard* const shard = shard_of_[thread_state.number].load(std::memory_order_acquire);
    return shard != nullptr ? shard : MakeShard();
  }
  Shard* MakeShard();
  // Returns this thread's shard. If there is no memory for it, returns any shard that was made, or null if there is
  // none.
  Shard* AnyShard();
  uint8_t BitOf(const Shard& shard) const { return static_cast<uint8_t>(1 << (&shard - shards_)); }
  bool HasCells(const Shard& shard, SiteId site) const {
    return (chunks_[site >> kChunkBits].load(std::memory_order_relaxed) & BitOf(shard)) != 0;
  }
  // Makes the shard have the cells of the site's chunk. Returns false if there is no memory.
  bool TakeCells(const Shard& shard, SiteId site) { return HasCells(shard, site) || TakeNewCells(shard, site); }
  bool TakeNewCells(const Shard& shard, SiteId site);
  // Any shard that has the cells of the site's chunk; null if none has.
  Shard* ShardWith(SiteId site) const {
    const uint32_t having = chunks_[site >> kChunkBits].load(std::memory_order_relaxed);
    return having == 0 ? nullptr : &shards_[__builtin_ctz(having)];
  }
  static intptr_t BlockAccountWord(const Account& account) { return -reinterpret_cast<intptr_t>(&account); }
  void WriteEvent(Shard& shard, const RecordedEvent& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock) {
    log_.Write(event, static_cast<uint32_t>(&shard - shards_), &shard.log, &shard.next_event);
  }
  // Returns the time of an event that holds all locks: later than all events so far, and earlier than all that follow.
  int64_t TimeOfInstant() const;
  // Writes an event that holds all locks and has no site, if the log is on. Returns its time; 0 if the log is off.
  int64_t LogInstant(RecordedKind kind, uint64_t id) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Part of Snapshot: writes the kMark event and sets the log's mode. All locks are held.
  void MarkInstant(int64_t* instant, const EventLog::Mode* mode) const;
  // OpenLog switches the shard's part of the log on if the log's mode says so, and sets the epochs of the accounts in
  // the shard. CloseLog switches it off; OpenLog must follow before the shard's lock is released.
  void OpenLog(Shard& shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  void CloseLog(Shard& shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Counts an event in its account and in a cell that is in the account's present epoch. The headroom stays.
  static void Count(Event event, Account& account, int64_t bytes, Cell* cell);
  // Returns by how much an event raises the bytes in use.
  static int64_t AddedBytes(Event event, int64_t bytes) { return event == Event::kFree ? -bytes : bytes; }
  // Returns by how much an event raises the number of live records.
  static int RecordsOf(Event event) { return static_cast<int>(AddedBytes(event, 1)); }
  // Must be called before a cell of `account` in `shard` changes.
  void BringToEpoch(Shard& shard, AccountId account, SiteId site, Cell* cell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Counts an event that changes the number of live records by `records`: -1, 0 or 1.
  static Entered CountEvent(Shard& shard, int records) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock) {
    TraceLedger();
    shard.unflushed += records - kOneEvent;
    return shard.unflushed >= 0 ? kEntered : kEnteredAndCounted;
  }
  // Adds what the shard has not added to live_records_ yet, and looks at the clock.
  void Flush(Shard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  size_t ChunkCount() const { return ((sites_.capacity() - 1) >> kChunkBits) + 1; }
  // A page more than the cells need, so that they are in small pages (see MapPages): a shard touches few of them.
  size_t BytesOfCells() const { return ChunkCount() * kChunkBytes + 4096; }
  // The functions from here to SumOf, except LockAll, need all locks.

  // Distributes the headroom so that `own` can take `bytes` from it, which is above 0. Sets `*in_use` to the account's
  // bytes in use including `bytes`. Returns true if that is a new peak: then the caller must call BeginPeak.
  bool MakeHeadroom(Shard& own, AccountId account, int64_t bytes, int64_t* in_use);
  // Makes the present state the account's peak, which has `bytes` bytes in use. `time`: of the event, which must have
  // changed its cells before: so their epochs are earlier, and their present values are those of the peak.
  void BeginPeak(AccountId account, int64_t bytes, int64_t time);
  void BeginEpoch(AccountId account) const;
  void LockAll() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  AccountTotals SumOf(AccountId account) const;
  // Calls `visit(shard)` for the shards with these bits.
  template <typename Visit>
  void ForEachShardOf(uint32_t shards, const Visit& visit) const;
  // Calls `visit(shard)` for all shards that were made.
  template <typename Visit>
  void ForEachShard(const Visit& visit) const;
  // Reads the cells of `shards` for a snapshot.
  void ReadCells(uint32_t shards, Reading* reading, std::vector<SiteTotals>* sites) const;

  // Indexed by a thread's number: the thread's shard; null until the thread has used it.
  std::atomic<Shard*> shard_of_[kThreadNumbers + 1] = {};
  const SiteTable& sites_;
  const int flush_every_;
  Shard* shards_;                 // kShards of them
  std::atomic<uint8_t>* chunks_;  // bit s: shard s has the cells of the chunk
  static_assert(kShards <= 8, "a chunk has a bit for each shard");
  mutable SpinLock all_lock_;
  std::atomic<uint32_t> made_{0};  // bit s: shard s was made; changes under all_lock_
  mutable Common common_[kAccounts];
  // Ledger::Snapshot holds it from beginning to end, at most a few hundred milliseconds. No event waits for it.
  mutable SpinLock reading_lock_;
  std::atomic<int64_t> live_records_{0};
  FreedAges freed_ages_;
  mutable EventLog log_;
  mutable int64_t last_instant_ ABSL_GUARDED_BY(all_lock_) = 0;  // the last result of TimeOfInstant
};

inline void Ledger::Count(Event event, Account& account, int64_t bytes, Cell* cell) {
  if (event == Event::kAlloc) {
    ++cell->alloc_objects;
    cell->AddAllocBytes(bytes);
    ++account.num_allocs;
    if (bytes > account.largest_alloc) account.largest_alloc = bytes;
  } else {
    ++cell->freed_objects;
    cell->freed_bytes += bytes;
    ++account.num_frees;
  }
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_LEDGER_H_
