// Ledger: the bytes and objects in use, per site and per account (one memory space of one device), with the exact peak
// and the values of every site at the peak.
//
// The ledger consists of shards. Each thread has a shard and enters most of its events there, so threads with different
// shards seldom share data while they record. The value of a site or of an account is the sum over the shards. An event
// that makes a new peak holds the locks of the shards in which the account is active (invariant 2). A snapshot holds
// the locks of all shards only while it adds up the accounts and begins a new epoch. Afterwards it reads the sites'
// cells, a chunk at a time.
//
// A cell holds the counters of one site in one shard. Cells are allocated in chunks, one for 256 sites. The first shard
// that uses a site of a chunk owns the chunk for ever. If another shard uses a site of that chunk, it keeps its cell of
// this site in a cache of limited size. A cell that leaves a cache is added to the owner's cell. An event of a site
// that is not in the cache is entered into the owner's shard. So host memory per site does not grow with the number of
// shards.
//
// Thread safety: all methods may be called from any thread at any time, unless annotated.
//
// Invariants, for each account, with in_use and headroom summed over its shards:
// 1. in_use + headroom <= peak. In each shard where the account is active (see 2.), the headroom is at least 0. An
//    event that adds bytes takes them from the headroom of its shard. So an event that locks only its own shard cannot
//    raise in_use above the peak. If the headroom of the shard is too small, the event locks all shards in which the
//    account is active. If in_use, with the event's bytes, is not above the peak, the event distributes the bytes
//    between in_use and peak to these shards, as their new headroom. Otherwise in_use is the new peak. A shard stores
//    its headroom and its allowance (in_use + headroom), but not in_use. The allowance changes only while all_lock_ and
//    the shard's lock are held.
//    Example: the peak is 100 bytes. Shard A has 40 bytes in use and a headroom of 10, shard B has 30 and 20.
//    - An allocation of 8 bytes in A locks A only: A now has 48 and 2, B still 30 and 20.
//    - An allocation of 15 bytes in A does not fit in the headroom of 2. With it, in_use is 48 + 15 + 30 = 93. So it
//      makes no new peak, and both shards get 3 of the 7 bytes between 93 and 100: A has 63 and 3, B has 30 and 3.
//    - An allocation of 20 bytes in B makes in_use 113. This is the new peak, and both shards have a headroom of 0.
// 2. In each shard, an account is either active or parked. It is parked there before its first event. A distribution of
//    the headroom parks it in each other shard in which it has had no event since the previous distribution. While an
//    account is parked in a shard, its values there do not change, and its bytes in use there are a part of
//    Common::parked_in_use. Its next event in that shard makes it active again, with all_lock_ and the shard's lock
//    held.
// 3. Each peak and each snapshot begins a new epoch of the account. The epoch changes only while the shards in which
//    the account is active are locked. Each of these shards has a copy of the epoch.
// 4. A cell stores the epoch of its last change. If that epoch is peak_epoch (the epoch that began at the last peak) or
//    later, peak_objects and peak_bytes are the values that the cell had in use at the last peak. If it is earlier, the
//    cell has not changed since the peak, so its present values are those of the peak. Before the first change of a
//    cell in an epoch, Touch brings the cell to the present epoch.
// 5. A snapshot shows the values at the instant at which it began its epoch. A cell with an earlier epoch has not
//    changed since that instant, so the snapshot reads it as it is. If such a cell changes before the snapshot has read
//    it, Touch first adds the old values to Reading::changed. The snapshot then ignores the cell, because its epoch is
//    no longer earlier.
// 6. The set of sites in a shard's cache changes only while all_lock_ and the shard's lock are held. When a cell moves
//    to the owner, both cells are first brought to the account's present epoch, under both shards' locks.
// 7. Locks are taken in this order: reading_lock_, all_lock_, shards by number, Reading::lock or that of the EventLog.
//
// While a recording is on, every change of the ledger is also written to the event log (event_log.h), under the same
// locks. A snapshot, and an event that makes a peak, hold the locks of all shards in which the account is active while
// they read the clock. So a replay in the order of the times gives the ledger's state at each instant: because of
// invariant 1, in_use stays at or below the peak in every order of the events between two such instants.
#ifndef HBMPROF_SRC_CORE_LEDGER_H_
#define HBMPROF_SRC_CORE_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/event_log.h"
#include "src/core/site_table.h"
#include "src/core/trace.h"

namespace hbmprof::internal {

struct Segment;

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
  // Returns whether the account has had a record. A forked child can restore a record of its parent, without an
  // allocation of its own.
  bool is_used() const { return num_allocs != 0 || num_live != 0 || peak_bytes_in_use != 0; }

  int64_t bytes_in_use = 0;
  int64_t peak_bytes_in_use = 0;
  int64_t num_allocs = 0;
  int64_t num_live = 0;
  int64_t largest_alloc = 0;
  int64_t pool_bytes = 0;   // in live segments
  int64_t block_bytes = 0;  // in live blocks of those segments
  int64_t peak_time = 0;    // of the peak, in the event log's clock; 0: the log was off
};

class Ledger {
  struct Account;
  struct Cell;
  struct Shard;

 public:
  // The smallest size of a shard's cache, in cells. (A cache can be larger if there are many sites.)
  static constexpr uint32_t kMinCachedCells = kIsTraced ? 16 : 1024;

  // The ledger's sites are those of `sites`, which must outlive the ledger. `flush_every`: see live_records().
  // `min_cached_cells` is a power of two, at least 4.
  Ledger(const SiteTable& sites, int flush_every, uint32_t min_cached_cells = kMinCachedCells);
  // In a forked child it may be called at any instant of the parent's other threads: it reads only pointers and sizes
  // that are right at every instant (fork.h).
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // The kinds of events of one buffer of a site.
  enum class Event : uint8_t {
    kAlloc,
    kFree,
    kUndoFree,      // undoes a kFree: the buffer was not freed
    kAllocAndFree,  // both in one event: the buffer is never in use and makes no peak
  };
  // Makes the cell that events of `site` need. Returns false if the host has no memory for it. Once it has returned
  // true, every event of the site can be entered.
  bool MakeCells(SiteId site) { return ShardFor(site) != nullptr; }

  // The result of an event. kNotEntered (0): the host has no memory for the site's cell, and nothing has changed.
  enum Entered : uint8_t {
    kNotEntered,
    kEntered,
    // live_records() has changed. Of functions that only try: it is about to change, by CountRecords, which the caller
    // must call.
    kEnteredAndCounted,
  };
  // The cell into which this thread enters a site's events, if its shard owns that cell. Otherwise a cell that is never
  // used, in which all values are 0. It is empty (false) if the thread has no shard yet.
  class CellRef {
   public:
    explicit operator bool() const { return shard != nullptr; }

   private:
    friend class Ledger;
    Shard* shard = nullptr;
    Cell* cell = nullptr;
  };
  // Calls nothing.
  CellRef RefOf(SiteId site) const {
    CellRef ref;
    ref.shard = shard_of_[thread_state.number].load(std::memory_order_acquire);
    if (ref.shard != nullptr) ref.cell = ref.shard->cells + site;
    return ref;
  }
  // Starts loading the cell, for an event that follows.
  static void Prefetch(const CellRef& ref) { __builtin_prefetch(ref.cell, 1); }
  // Enters one event of a site that is neither a segment nor a block of a pool. In this and the functions below, `id`
  // is the id of the buffer, which only recordings have.
  Entered Enter(Event event, uint64_t id, SiteId site, int64_t bytes) {
    const Entered entered = EnterPlain(event, id, site, bytes);
    return entered != kNotEntered ? entered : EnterSlow(event, id, site, bytes);
  }
  // Enters the event if it is a common one: this thread's shard owns the cell; the site is plain and has had an event
  // in this shard; the account is active there and has enough headroom. Otherwise returns kNotEntered and changes
  // nothing.
  Entered EnterPlain(Event event, uint64_t id, SiteId site, int64_t bytes) {
    const CellRef ref = RefOf(site);
    if (!ref || OwnerOf(site) != ref.shard) return kNotEntered;
    SpinLockHolder hold(ref.shard->lock);
    return EnterPlain(event, *ref.shard, ref.cell, id, site, bytes);
  }
  // Like EnterPlain for kAlloc and kFree, but also returns kNotEntered, and changes nothing, if another thread holds
  // the shard's lock, if the cell has not changed in the account's present epoch, or if the event log is on. `ref` is
  // what RefOf returned for the site in this thread; it is not empty. Calls nothing, so that a function that calls it
  // saves no registers in the common case.
  Entered TryEnter(Event event, const CellRef& ref, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Cell* const cell = ref.cell;
    if (!ref.shard->lock.TryLock()) return kNotEntered;
    Entered entered = kNotEntered;
    if (cell->account_word > 0) {
      Account& account = *reinterpret_cast<Account*>(cell->account_word);
      if (cell->epoch == account.epoch && (event == Event::kFree || bytes <= account.headroom)) {
        entered = Apply<true>(*ref.shard, event, account, /*is_pool=*/false, bytes, cell);
      }
    }
    ref.shard->lock.Unlock();
    return entered;
  }
  Entered EnterPlain(Event event, Shard& shard, Cell* cell, uint64_t id, SiteId site, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock) {
    if (cell->account_word <= 0) return kNotEntered;
    Account& account = *reinterpret_cast<Account*>(cell->account_word);
    if (event != Event::kFree && AddedBytes(event, bytes) > account.headroom) return kNotEntered;
    if (!Touch(shard, account, site, cell)) return kNotEntered;
    Log(shard, KindOf(event), id, site, bytes);
    return Apply(shard, event, account, /*is_pool=*/false, bytes, cell);
  }

  // A shard's view of the segment of its last block event: what its next event of a block in that segment needs. The
  // view becomes empty when a Change of all shards begins, so segments do not change while a view names them. It also
  // becomes empty when cells of the shard's cache move.
  //
  // The bytes of freed blocks stay reserved for the shard's next blocks, up to a limit, so that threads which use the
  // same segment do not write to its idle bytes at each event. All bytes count as idle until a block takes them.
  struct SegmentView {
    // Makes the view empty and returns its reserved bytes to the segment.
    void Clear();

    uint64_t start;
    uint64_t bytes;    // from `start`: addresses at which no segment lies inside this one; 0: the view is empty
    uint64_t id_bits;  // an address, XOR these, is the id of a block
    Segment* segment;
    Account* account;  // of the segment's site, in the shard
    Cell* cell;        // of the segment's site, in the shard
    int64_t reserved;  // bytes that the shard took from the segment's idle bytes, and that no block has taken
    SiteId site;       // the segment's
    uint32_t max_reserved;
  };
  // Enters events of blocks that lie in one segment. Holds the lock of this thread's shard as long as the object
  // exists.
  //
  // With kTry, the object is not usable if another thread holds that lock, and the functions below return false or null
  // if they would have to bring something to the present epoch, to write to the event log, or to search a cache of
  // cells. They call nothing then.
  template <bool kTry>
  class OwnShard {
   public:
    explicit OwnShard(Ledger& ledger) ABSL_NO_THREAD_SAFETY_ANALYSIS : ledger_(ledger),
                                                                       shard_(ledger.ShardOfThisThread<kTry>()) {
      if (shard_ == nullptr) return;
      if (!kTry) {
        shard_->lock.Lock();
      } else if (!shard_->lock.TryLock()) {
        shard_ = nullptr;
      }
    }
    ~OwnShard() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (shard_ != nullptr) shard_->lock.Unlock();
    }
    OwnShard(const OwnShard&) = delete;
    OwnShard& operator=(const OwnShard&) = delete;

    // Returns false if the host has no memory for the shard. Then no lock is held and nothing else may be called.
    bool is_usable() const { return shard_ != nullptr; }
    // The view of this shard.
    SegmentView& view() { return shard_->view; }
    // Sets account and cell of the view for its site. Returns false, and clears the view, if the shard has no cell of
    // the site or the account is not active in the shard.
    bool CompleteView() {
      view().account = &shard_->accounts[ledger_.sites_.At(view().site).account];
      view().cell = ledger_.CellOf(*shard_, view().site);
      if (view().cell != nullptr && view().account->is_active()) return true;
      view().Clear();
      return false;
    }
    using BlockCell = Cell*;
    // Returns the shard's cell of a block's site. Returns null if there is none, if no event of the site was entered
    // into it yet, if the site is not one of blocks, or if it has another account than the segment of the view.
    BlockCell CellOfBlock(SiteId site) {
      Cell* const cell = kTry ? shard_->cells + site : ledger_.CellOf(*shard_, site);
      if (cell == nullptr || cell->account_word != BlockAccountWord(*view().account)) return nullptr;
      return !kTry || cell->epoch == view().account->epoch ? cell : nullptr;
    }
    // Must be called before EnterBlock. Returns false if the account is parked in the shard.
    bool TouchSegment() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (kTry) return view().cell->epoch == view().account->epoch;
      return ledger_.Touch(*shard_, *view().account, view().site, view().cell);
    }
    // Enters the allocation of a block of `bytes` bytes in the segment of the view, or its free. `cell` comes from
    // CellOfBlock. The account's bytes in use stay the same.
    Entered EnterBlock(Event event, uint64_t id, SiteId site, BlockCell cell,
                       int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      Account& account = *view().account;
      if (!kTry) ledger_.Touch(*shard_, account, site, cell);
      Count(event, account, bytes, cell);
      const int64_t charged = event == Event::kFree ? -bytes : bytes;
      view().cell->freed_bytes += charged;
      account.block_bytes += charged;
      if (!kTry && shard_->next_event != nullptr) {
        const int64_t time = ledger_.log_.TimeInShard(&shard_->log);
        ledger_.WriteEvent(*shard_, {time, id, bytes, site, 0, KindOf(event), true});
        ledger_.WriteEvent(*shard_, {time, 0, charged, view().site, 0, RecordedKind::kCharge, false});
      }
      return ledger_.CountEvent<kTry>(*shard_, event == Event::kFree ? -1 : 1);
    }

   private:
    Ledger& ledger_;
    Shard* shard_;
  };
  // One event of a pool: it changes several sites of one account at the same instant. It holds the lock of the calling
  // thread's shard, or of all shards, until the destructor completes the event. The thread must not enter other
  // events meanwhile.
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
    // Returns false if the host has no memory. With Scope::kOwnShard, also returns false if the account is parked in
    // that shard or the shard has no cell for the site. With Scope::kAllShards, always returns true for a site that was
    // prepared or entered before.
    bool Prepare(SiteId site);
    // Returns whether the account's bytes in use may rise by `bytes`. Always returns true if all shards are locked.
    bool Admits(AccountId account, int64_t bytes) const {
      return holds_all() || own_->accounts[account].headroom >= bytes;
    }

    // Enters the allocation or the free of an object of `bytes` bytes.
    void Enter(Event event, uint64_t id, SiteId site, int64_t bytes);
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
    // Makes the change's account active in the thread's own shard and returns it.
    Account& OwnAccount();

    Ledger& ledger_;
    const Scope scope_;
    Shard* own_;
    bool has_event_ = false;
    AccountId account_ = 0;
    int records_ = 0;
    int64_t in_use_ = 0;
    int64_t pool_bytes_ = 0;
    int64_t block_bytes_ = 0;
    // The last part for the event log. It is written when the next part comes or the event is complete: only then it is
    // known whether it is the last one.
    bool has_part_ = false;
    RecordedEvent part_;
  };
  // Returns the number of live records. It differs from the exact number by less than `flush_every` per shard, because
  // each shard adds its changes after that number of events.
  int64_t live_records() const { return live_records_.load(std::memory_order_relaxed); }
  // Adds what this thread's shard has not added yet, if that is due.
  void CountRecords() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Sets whether each event changes live_records() at once. For a shard, the new setting takes effect after the next
  // time at which the shard adds its changes.
  void CountEachEvent(bool each) {
    const int flush_every = each ? 1 : usual_flush_every_;
    // Other threads read the cache line, so it is written only if the value changes.
    if (flush_every_.load(std::memory_order_relaxed) != flush_every) {
      flush_every_.store(flush_every, std::memory_order_relaxed);
    }
  }

  AccountTotals Totals(AccountId account) const;
  // Returns the exact number of live records of all accounts.
  int64_t CountLive() const;

  // Sets the totals of all accounts and of sites 0 to sites->size()-1, all of one instant. Snapshots run one at a time;
  // another one waits. If the event log is on and the thread has a mark (EventLog::MarkOfThread), writes a kMark event.
  //
  // For a recording, `instant` is not null: instead of the kMark event, sets `*instant` to the instant, in the log's
  // clock. If `mode` is not null, the log has this mode from the instant on: its events are those after the instant.
  // Before a log is switched on, the caller allocates its buffers. When it is switched off, its events are in the full
  // buffers.
  void Snapshot(std::vector<SiteTotals>* sites, std::vector<AccountTotals>* accounts, int64_t* instant = nullptr,
                const EventLog::Mode* mode = nullptr) const;

  // The event log. Its modes change only in Snapshot and SetLogMode.
  EventLog& log() { return log_; }
  // Sets the log's mode, and returns the instant since which it has this mode, as Snapshot does. Allocates no memory.
  int64_t SetLogMode(EventLog::Mode mode) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // The number of shards; each that is in use has a buffer of the log.
  uint32_t shard_count() const { return static_cast<uint32_t>(shard_count_); }
  // Copies the events of the open buffer of the shard `number` to `events`, which has space for EventBuffer::kEvents of
  // them, and sets `*serial` to the log's last_serial() at that instant: the shard's full buffers with larger serial
  // numbers have these events, too. Returns their number.
  uint32_t CopyOpenEvents(uint32_t number, RecordedEvent* events, uint64_t* serial) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Adds the events that the shards have so far to the log's full buffers. Returns a time: all events up to it are
  // there, and every later event has a later time. Does nothing and returns 0 if the log is off.
  int64_t CollectEvents() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Writes an event of this thread that changes no total (kFailed, kTags), if the log is on. `site` may be
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
    // negative (BlockAccountWord). Otherwise 0. With it, an event needs no other data of the site.
    intptr_t account_word;
  };
  // One shard's part of an account. Sums over the shards are not negative, but values of one shard may be: a buffer may
  // be freed through another shard than the one through which it was allocated. Only headroom is at least 0, or -1
  // while the account is parked.
  struct Account {
    int64_t in_use() const { return allowance - headroom; }
    int64_t events() const { return num_allocs + num_frees; }
    bool is_active() const { return epoch != 0 && epoch != kParked; }
    // Sets the epoch of an active account. `is_logged`: the event log is on.
    void SetEpoch(uint64_t present, bool is_logged) { epoch = is_logged ? kLogged : present; }
    void SetHeadroom(int64_t bytes) {
      allowance = in_use() + bytes;
      headroom = bytes;
    }
    // Sets the headroom to -1, so that no allocation fits in it, not even one of 0 bytes.
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
    uint64_t epoch;  // the account's, kLogged or kParked; 0 before the first event
  };
  static_assert(sizeof(Account) == 64, "one cache line");
  static constexpr uint64_t kParked = ~uint64_t{0};
  // While the event log is on, no cell has the epoch of an account, so that TryEnter needs no other test for the log.
  static constexpr uint64_t kLogged = ~uint64_t{1};
  // The data that all shards of an account share. Guarded by all_lock_. A thread may also read it under the lock of a
  // shard in which the account is active, since a writer holds that lock, too.
  struct Common {
    int64_t peak = 0;  // bytes
    uint64_t epoch = 1;
    uint64_t peak_epoch = 1;
    uint64_t active = 0;        // bit s: the account is active in shard s
    int64_t parked_in_use = 0;  // bytes, of the shards in which it is parked
    bool is_used = false;       // it has been active in some shard
    int64_t peak_time = 0;      // of the last peak, in the log's clock; 0: the log was off
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
  // A set-associative cache of cells, with kWays cells in each set. The site selects the set.
  struct Cache {
    static constexpr uint32_t kWays = 4;

    // Returns null if the cache has no cell for the site.
    Cell* CellOf(SiteId site) const;
    // Returns the set of kWays entries in which `site` can be.
    SiteId* SetOf(SiteId site) const { return sites + (site * kWays & (count - 1)); }
    static size_t BytesOf(uint32_t count) { return count * (sizeof(Cell) + sizeof(SiteId)); }

    Cell* cells;
    SiteId* sites;      // for each cell, its site plus 1; 0: the cell is not in use
    uint32_t count;     // of cells: a power of two, or 0
    uint32_t next_way;  // the way whose cell leaves the cache next, if a set is full
  };
  struct alignas(128) Shard {
    SpinLock lock;
    // The space of a cell for each site; null until the shard is first used. Pages are touched only in the chunks that
    // the shard owns.
    Cell* cells;
    // Cells of sites that other shards own.
    Cache cache;
    uint32_t misses;  // number of events whose site was not in the cache, although the site's set was full
    // kOneEvent times the number of events until the next addition to live_records_, plus what is to be added. The
    // event that makes it negative makes the addition, at once or by CountRecords.
    int64_t unflushed;
    RecordedEvent* next_event;  // the space for the next event in the event log; null: the log is off
    // The snapshot that is reading this shard's cells; null if there is none. It has not yet read the owned cells of
    // the sites from `unread` on, and the cached cells from index `unread_cached` on.
    Reading* reading;
    SiteId unread;
    uint32_t unread_cached;
    SegmentView view;
    Account accounts[kAccounts];
    int64_t events_when_shared[kAccounts];  // Account::events() at the last distribution of the headroom
    ShardLog log;
  };
  static constexpr uint32_t kMaxShards = kThreadNumbers;
  static constexpr int64_t kOneEvent = int64_t{1} << 30;  // kOneEvent + 1 fits in an instruction
  static constexpr uint32_t kChunkBits = 8;
  static constexpr int64_t kChunkBytes = sizeof(Cell) << kChunkBits;
  // Bounds the time for which events wait while a cache grows.
  static constexpr uint32_t kMaxCachedCells = 1 << 14;
  // All caches together hold at most this many cells per site (but see kMinCachedCells).
  static constexpr uint32_t kCachedCellsPerSite = 4;
  // If the site's set in the cache is full, one miss out of this many puts the site into the cache. The other events go
  // to the owner's shard.
  static constexpr uint32_t kMissesPerReplacement = 8;

  // Null if there is no memory. With kTry, also null if the thread has no shard yet.
  template <bool kTry = false>
  Shard* ShardOfThisThread() {
    Shard* shard = shard_of_[thread_state.number].load(std::memory_order_acquire);
    return kTry || shard != nullptr ? shard : Activate();
  }
  Shard* Activate();
  // Null if the shard does not own the site's chunk.
  Cell* OwnedCellOf(const Shard& shard, SiteId site) const {
    return OwnerOf(site) == &shard ? shard.cells + site : nullptr;
  }
  // Null if the shard has none. all_lock_ or the shard's lock is held.
  Cell* CellOf(const Shard& shard, SiteId site) const {
    Cell* owned = OwnedCellOf(shard, site);
    return owned != nullptr ? owned : shard.cache.CellOf(site);
  }
  // The shard that owns the site's chunk; null if none does.
  Shard* OwnerOf(SiteId site) const {
    const uint8_t owner = owners_[site >> kChunkBits].load(std::memory_order_acquire);
    return owner == 0 ? nullptr : &shards_[owner - 1];
  }
  // Like OwnerOf, but if no shard owns the chunk, `shard` becomes its owner. Null if there is no memory.
  Shard* MakeOwner(Shard& shard, SiteId site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(all_lock_);
  // The number of cells that a cache should have space for now.
  uint32_t CacheSize() const;
  // Whether CacheCell should be called for a site that another shard owns and that is not in the cache of `shard`: true
  // if its set has space, else for some of the calls.
  static bool WantsToCache(Shard& shard, SiteId site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Makes a cell for the site in the cache of `shard`, and removes another cell from the cache if necessary. Returns
  // false if there is no memory. `is_locked`: all shards' locks are held.
  bool CacheCell(Shard& shard, SiteId site, bool is_locked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(all_lock_);
  // Does nothing if there is no memory.
  static void GrowCache(Cache* cache, uint32_t count);
  // Adds a cached cell to the owner's cell. all_lock_ is held.
  void MoveToOwner(Shard& shard, SiteId site, Cell* cell, Shard& owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock, owner.lock);
  // The shard through which this thread enters events of `site`: its own, or the owner of the site's chunk. Null if
  // there is no memory for the chunk.
  Shard* ShardFor(SiteId site);
  static intptr_t BlockAccountWord(const Account& account) { return -reinterpret_cast<intptr_t>(&account); }
  static void SetAccountWord(const Site& site, const Account& account, Cell* cell) {
    if (site.is_plain) cell->account_word = reinterpret_cast<intptr_t>(&account);
    if (site.is_block) cell->account_word = BlockAccountWord(account);
  }
  // Returns this thread's shard. If there is no memory for it, returns any shard that is in use, or null if there is
  // none.
  Shard* AnyShard();
  static RecordedKind KindOf(Event event) {
    static_assert(static_cast<int>(RecordedKind::kAllocAndFree) == static_cast<int>(Event::kAllocAndFree));
    return static_cast<RecordedKind>(event);
  }
  void WriteEvent(Shard& shard, const RecordedEvent& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock) {
    log_.Write(event, static_cast<uint32_t>(&shard - shards_), &shard.log, &shard.next_event);
  }
  // Writes an event that holds only this shard's lock to the event log, if that is on.
  void Log(Shard& shard, RecordedKind kind, uint64_t id, SiteId site, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock) {
    if (__builtin_expect(shard.next_event == nullptr, 1) != 0) return;
    WriteEvent(shard, {log_.TimeInShard(&shard.log), id, bytes, site, 0, kind, false});
  }
  // Returns the time of an event that holds all_lock_ and the locks of the shards `locked`: later than all their events
  // so far, and earlier than all that follow there.
  int64_t TimeOfInstant(uint64_t locked) const;
  // Writes an event that holds all_lock_ and the locks of the shards `locked`, if the log is on. Returns its time; 0 if
  // the log is off.
  int64_t LogInstant(uint64_t locked, Shard& shard, RecordedKind kind, uint64_t id, SiteId site,
                     int64_t bytes) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Part of Snapshot: writes the kMark event and sets the log's mode. All locks of `shards` are held.
  void MarkInstant(uint64_t shards, int64_t* instant, const EventLog::Mode* mode) const;
  // OpenLog switches the shard's part of the log on if the log's mode says so, and sets the epochs of the accounts in
  // the shard. CloseLog switches it off; OpenLog must follow before the shard's lock is released.
  void OpenLog(Shard& shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  void CloseLog(Shard& shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Counts an event. REQUIRES: Touch has returned true for the cell.
  template <bool kTry = false>
  Entered Apply(Shard& shard, Event event, Account& account, bool is_pool, int64_t bytes, Cell* cell)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  static void Count(Event event, Account& account, int64_t bytes, Cell* cell);
  // Returns by how much an event raises the bytes in use.
  static int64_t AddedBytes(Event event, int64_t bytes) {
    return event == Event::kFree ? -bytes : event == Event::kAllocAndFree ? 0 : bytes;
  }
  // Must be called before a cell of `account` in `shard` changes. Returns false, and does nothing, if the account is
  // parked there. REQUIRES: the account has had an event in this shard.
  bool Touch(Shard& shard, const Account& account, SiteId site, Cell* cell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock) {
    return cell->epoch == account.epoch || TouchFirst(shard, account, site, cell);
  }
  bool TouchFirst(Shard& shard, const Account& account, SiteId site, Cell* cell)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Brings a cell to the present epoch of its account. The caller must hold a lock under which it may read the
  // account's Common (see the comment of Common).
  void BringToEpoch(Shard& shard, AccountId account, SiteId site, Cell* cell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Counts an event that changes the number of live records by `records`: -1, 0 or 1.
  template <bool kTry = false>
  Entered CountEvent(Shard& shard, int records) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Adds what the shard has not added to live_records_ yet.
  void Flush(Shard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  size_t ChunkCount() const { return ((sites_.max_sites() - 1) >> kChunkBits) + 1; }
  // A page more than the cells need, so that they are in small pages (see MapPages): a shard touches few of them.
  size_t BytesOfCells() const { return ChunkCount() * kChunkBytes + 4096; }
  static uint64_t Bit(const Shard* first, const Shard& shard) { return uint64_t{1} << (&shard - first); }
  // Takes all_lock_, the locks of the shards in which the account is active, and that of `own` if it is not null.
  // Returns the shards, for UnlockAccount.
  uint64_t LockAccount(AccountId account, const Shard* own) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAccount(uint64_t locked) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Makes the account active in a shard in which it is parked. all_lock_ and the shard's lock are held.
  void Unpark(Shard& shard, AccountId account);
  // Distributes the headroom so that `own`, in which the account is active, can take `bytes` from it. Sets `*in_use` to
  // the account's bytes in use including `bytes`. Returns true if that is a new peak: then the caller must change the
  // cells and call BeginPeak. The account is locked.
  bool MakeHeadroom(Shard& own, AccountId account, int64_t bytes, int64_t* in_use);
  // Makes the present state the account's peak, which has `bytes` bytes in use. The account is locked. `time`: of the
  // event, in the log's clock.
  void BeginPeak(AccountId account, int64_t bytes, int64_t time);
  void BeginEpoch(AccountId account) const;
  Entered EnterSlow(Event event, uint64_t id, SiteId site, int64_t bytes);
  template <typename Visit>
  void ForEachShardOf(uint64_t shards, const Visit& visit) const;
  template <typename Visit>
  void ForEachActiveShard(const Visit& visit) const;
  void LockAll() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  AccountTotals SumOf(AccountId account) const;
  // Reads the cells of `shards` for a snapshot. `account_of` is indexed by site.
  void ReadCells(uint64_t shards, const std::vector<uint8_t>& account_of, Reading* reading,
                 std::vector<SiteTotals>* sites) const;

  // Indexed by a thread's number: the thread's shard; null until the thread has used it.
  std::atomic<Shard*> shard_of_[kThreadNumbers + 1] = {};
  const SiteTable& sites_;
  const int usual_flush_every_;
  std::atomic<int> flush_every_;
  const uint32_t min_cached_cells_;
  const int shard_count_;  // a power of two
  Shard* shards_;
  std::atomic<uint8_t>* owners_;  // by chunk: the number of the owner's shard, plus 1; 0: none. Each is set once
  mutable SpinLock all_lock_;
  std::atomic<uint64_t> active_{0};  // bit s: shard s is in use; changes under all_lock_
  mutable Common common_[kAccounts];
  // A snapshot holds it from beginning to end, at most a few hundred milliseconds. No event waits for it.
  mutable SpinLock reading_lock_;
  std::atomic<int64_t> live_records_{0};
  mutable EventLog log_;
  mutable int64_t last_instant_ ABSL_GUARDED_BY(all_lock_) = 0;  // the last result of TimeOfInstant
};

inline void Ledger::Count(Event event, Account& account, int64_t bytes, Cell* cell) {
  if (event == Event::kAlloc || event == Event::kAllocAndFree) {
    ++cell->alloc_objects;
    cell->AddAllocBytes(bytes);
    ++account.num_allocs;
    if (bytes > account.largest_alloc) account.largest_alloc = bytes;
  }
  if (event == Event::kFree || event == Event::kAllocAndFree) {
    ++cell->freed_objects;
    cell->freed_bytes += bytes;
    ++account.num_frees;
  }
  if (event == Event::kUndoFree) {
    --cell->freed_objects;
    cell->freed_bytes -= bytes;
    --account.num_frees;
  }
}

template <bool kTry>
Ledger::Entered Ledger::Apply(Shard& shard, Event event, Account& account, bool is_pool, int64_t bytes, Cell* cell) {
  Count(event, account, bytes, cell);
  const int64_t added = AddedBytes(event, bytes);
  account.headroom -= added;
  if (is_pool) account.pool_bytes += added;
  return CountEvent<kTry>(shard, event == Event::kAllocAndFree ? 0 : event == Event::kFree ? -1 : 1);
}

template <bool kTry>
Ledger::Entered Ledger::CountEvent(Shard& shard, int records) {
  TraceLedger();
  shard.unflushed += records - kOneEvent;
  if (shard.unflushed >= 0) return kEntered;
  if (!kTry) Flush(shard);
  return kEnteredAndCounted;
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_H_
