// Ledger: the bytes and objects in use, per site and per book, with the exact peak of each book and the values of every
// site at the peak. A book is the bytes in use of an account (one memory space of one device), or the bytes that a pool
// has allocated. Each event changes one book: a block that of its pool, a buffer and a segment of the device that of
// the account.
//
// A thread enters its events into the shard of its number. The value of a site or of a book is the sum over the shards.
// The caller changes the live table while an Event holds the lock of the shard (pools.h).
//
// Generations (core/generations.h): a shard looks at the clock at each Flush, after at most `flush_every` events. A
// thread also looks when it finds a site outside of the site cache, and before an event that locks all shards.
//
// Thread safety: all methods may be called from any thread at any time, unless annotated.
//
// Invariants, for each book, with its sum and headroom summed over the shards:
// 1. sum + headroom <= peak, and the headroom of each shard is at least 0. An event that adds bytes takes them from the
//    headroom of its shard. So an event that locks only its own shard cannot raise the sum above the peak. If the
//    headroom of the shard is too small, the event locks all shards. If the sum, with the event's bytes, is not above
//    the peak, the event distributes the bytes between sum and peak to the shards, as their new headroom. Otherwise
//    the sum is the new peak. A shard stores its headroom and its allowance (sum + headroom), but not the sum. The
//    allowance changes only while all shards are locked.
//    Example: the peak is 100 bytes. Shard A has 40 bytes in use and a headroom of 10, shard B has 30 and 20.
//    - An allocation of 8 bytes in A locks A only: A now has 48 and 2, B still 30 and 20.
//    - An allocation of 15 bytes in A does not fit in the headroom of 2. With it, the sum is 48 + 15 + 30 = 93. So it
//      makes no new peak, and both shards get 3 of the 7 bytes between 93 and 100: A has 63 and 3, B has 30 and 3.
//    - An allocation of 20 bytes in B makes the sum 113. This is the new peak, and both shards have a headroom of 0.
// 2. Each peak of any book and each snapshot begins a new epoch. The epoch changes only while all shards are locked.
//    Each shard has a copy of it. The peak epoch of a book is the one that began at its last peak.
// 3. A counter stores the epoch of its last change. Its peak_objects and peak_bytes are the values that it had in use
//    at the last peak of its account, if its epoch is that peak's epoch or later. If it is earlier, the counter has not
//    changed since the peak, so its present values are those of the peak. The same holds for pool_peak_objects and
//    pool_peak_bytes and the last peak of its pool. Before the first change of a counter in an epoch, BringToEpoch
//    saves these values.
// 4. A snapshot shows the values at the instant at which it began its epoch. A counter with an earlier epoch has not
//    changed since that instant, so the snapshot reads it as it is. If such a counter changes before the snapshot has
//    read it, BringToEpoch first adds the old values to those of the snapshot. The snapshot then ignores the counter,
//    because its epoch is no longer earlier.
// 5. An event of a segment locks all shards. So the bytes that pools have reserved need no parts.
// 6. Locks are taken in this order: reading_lock_, those of pending events, all_lock_, shards by number. No lock is
//    taken under Reading::lock or that of the EventLog. src/README.md has the order with the locks of the other tables.
//
// While a recording is on, every change of the ledger is also written to the event log (event_log.h), under the same
// locks. A snapshot, a reset of the peak and an event that makes a peak hold the locks of all shards while they read
// the clock. So a replay in the order of the times gives the ledger's state at each instant: because of invariant 1,
// the sum stays at or below the peak in every order of the events between two such instants.
#ifndef HBMPROF_SRC_CORE_LEDGER_LEDGER_H_
#define HBMPROF_SRC_CORE_LEDGER_LEDGER_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/snapshot.h"
#include "src/base/saturating.h"
#include "src/base/spin_lock.h"
#include "src/base/thread_state.h"
#include "src/core/generations.h"
#include "src/core/ledger/event_log.h"
#include "src/core/ledger/trace.h"
#include "src/core/tables/live_table.h"
#include "src/core/tables/reserved_array.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

// Values of one site at one instant. Objects in use are sums modulo 2^32.
struct SiteTotals {
  void Add(const SiteTotals& more) {
    alloc_objects += more.alloc_objects;
    alloc_bytes = SaturatingSum(alloc_bytes, more.alloc_bytes);
    inuse_objects = static_cast<uint32_t>(inuse_objects + more.inuse_objects);
    inuse_bytes += more.inuse_bytes;
    peak_objects = static_cast<uint32_t>(peak_objects + more.peak_objects);
    peak_bytes += more.peak_bytes;
    pool_peak_objects = static_cast<uint32_t>(pool_peak_objects + more.pool_peak_objects);
    pool_peak_bytes += more.pool_peak_bytes;
  }
  void SetValuesOf(Snapshot::Sample* sample) const {
    sample->alloc_objects = alloc_objects;
    sample->alloc_bytes = alloc_bytes;
    sample->peak_objects = peak_objects;
    sample->peak_bytes = peak_bytes;
    sample->inuse_objects = inuse_objects;
    sample->inuse_bytes = inuse_bytes;
    sample->pool_peak_objects = pool_peak_objects;
    sample->pool_peak_bytes = pool_peak_bytes;
  }

  int64_t alloc_objects = 0;
  int64_t alloc_bytes = 0;
  int64_t inuse_objects = 0;
  int64_t inuse_bytes = 0;
  int64_t peak_objects = 0;  // at the last peak of the account
  int64_t peak_bytes = 0;
  int64_t pool_peak_objects = 0;  // at the last peak of the site's pool (SiteBooks::pool); 0: it has none
  int64_t pool_peak_bytes = 0;
};

// Values of one account at one instant, without those of the device's probe.
struct AccountTotals : DeviceStats {
  bool is_used() const { return num_allocs != 0; }

  int64_t peak_time = 0;  // of the peak; 0: the log was off
};

// Values of one pool at one instant, without its name.
struct PoolTotals : PoolStats {
  int64_t bytes_nested = 0;  // the part of bytes_reserved that another pool has handed out
  int64_t peak_time = 0;     // of the peak of bytes_allocated; 0: the log was off
};

// Values of all accounts and pools at one instant, each indexed by its number.
struct LedgerTotals {
  int64_t num_live() const {
    int64_t sum = 0;
    for (const AccountTotals& account : accounts) sum += account.num_live;
    return sum;
  }

  std::vector<AccountTotals> accounts = std::vector<AccountTotals>(kAccounts);
  std::vector<PoolTotals> pools = std::vector<PoolTotals>(kMaxPools + 1);
  std::vector<SiteTotals> sites;  // empty except in the result of Ledger::Snapshot
};

class Ledger {
  struct Book;
  struct Counter;
  struct Shard;

 public:
  // The number of shards. A site that all of them use takes 64 bytes in each.
  static constexpr uint32_t kShards = 8;

  // The ledger's sites are those of `sites`, which must outlive the ledger. `flush_every`, 1 to 64: see live_records().
  // Throws std::bad_alloc. No event needs more memory.
  Ledger(const SiteTable& sites, int flush_every)
      : sites_(sites),
        flush_every_(flush_every),
        counters_(size_t{kShards} * sites.capacity()),
        freed_ages_(sites.capacity()) {}

  // Events that must be entered before totals are read.
  class PendingEvents {
   public:
    bool HasPending() const { return pending_count_.load(std::memory_order_acquire) != 0; }
    // Enters them. Called by several threads at once, with the lock of no shard.
    virtual void RecordPending() = 0;

   protected:
    ~PendingEvents() = default;

    std::atomic<size_t> pending_count_{0};
  };
  // All functions below that read totals, reset peaks or set the log's mode do so at an instant at which there are no
  // pending events. To be called before the first event. `pending` must exist until the last one.
  void SetPendingEvents(PendingEvents* pending) { pending_ = pending; }

  // One event. Holds the lock of the calling thread's shard, or of all shards, during its life. The thread must not
  // enter other events meanwhile.
  enum class Locks : uint8_t { kOwnShard, kAllShards };
  class Event {
   public:
    Event(Ledger& ledger, Locks locks) ABSL_NO_THREAD_SAFETY_ANALYSIS : ledger_(ledger),
                                                                        locks_(locks),
                                                                        own_(ledger.ShardOfThisThread()) {
      if (locks == Locks::kAllShards) {
        LookAtClock();
        ledger.LockAll();
      } else {
        own_.lock.Lock();
      }
    }
    ~Event() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (own_.events_left < 0) ledger_.Flush(own_);
      if (locks_ == Locks::kAllShards) {
        ledger_.UnlockAll();
      } else {
        own_.lock.Unlock();
      }
    }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    bool holds_all() const { return locks_ == Locks::kAllShards; }

    // The counter that an event of a site changes.
    using CounterRef = Counter*;
    // Returns the counter of `site`, for an event that adds `bytes` bytes to the site's book; 0 if it adds none.
    // Returns null if that needs the locks of all shards, and they are not held.
    CounterRef Prepare(SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      Counter* const counter = own_.counters + site;
      if (__builtin_expect(static_cast<int64_t>(counter->epoch != own_.epoch), 0) != 0)
        ledger_.BringToEpoch(own_, site);
      const bool is_common = counter->books.is_segment == 0 && bytes <= own_.books[counter->books.book()].headroom;
      return is_common || holds_all() ? counter : nullptr;
    }

    // Enters the allocation of an object of `bytes` bytes. `counter`: from Prepare(site, bytes).
    void Alloc(CounterRef counter, uint64_t id, SiteId site, int64_t bytes) {
      const int64_t time = Log(RecordedKind::kAlloc, id, site, bytes);
      ++counter->alloc_objects;
      counter->AddAllocBytes(bytes);
      ++counter->inuse_objects;
      counter->inuse_bytes += bytes;
      Book& book = own_.books[counter->books.book()];
      ++book.num_allocs;
      if (bytes > book.largest_alloc) book.largest_alloc = bytes;
      AddToBook(counter->books, bytes, 1, id, time);
      Count(1, id);
    }
    // Enters the free of a record, after it left the live table, and counts its age. `counter`: from
    // Prepare(record.site, 0).
    void Free(CounterRef counter, uint64_t id, const LiveRecord& record) {
      if (record.birth != PresentGeneration()) ledger_.CountAge(record);
      Log(RecordedKind::kFree, id, record.site, record.bytes);
      --counter->inuse_objects;
      counter->inuse_bytes -= record.bytes;
      ++own_.books[counter->books.book()].num_frees;
      ledger_.EndPeakRecord(counter->books, id);
      AddToBook(counter->books, -record.bytes, -1, id, 0);
      Count(-1, id);
    }
    // Moves a live object from its site to the site `to` of the same book. `counter` and `counter_to`: from Prepare of
    // both sites. Afterwards its allocation counts at `to` and no longer at its old site.
    void Move(CounterRef counter, CounterRef counter_to, uint64_t id, const LiveRecord& record, SiteId to);
    // Gives a live object another size. `counter`: from Prepare(record.site, the bytes that are added). An increase
    // adds to the bytes ever allocated.
    void Resize(CounterRef counter, uint64_t id, const LiveRecord& record, int64_t bytes);

    // The totals of a pool. REQUIRES: holds_all().
    PoolTotals TotalsOf(PoolNumber pool) const { return ledger_.SumOfPool(pool); }

   private:
    // Writes an event to the event log, if that is on. Returns its time; 0 if the log is off.
    int64_t Log(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) {
      if (__builtin_expect(own_.next_event == nullptr, 1) != 0) return 0;
      return ledger_.WriteLog(own_, locks_, {0, id, bytes, site, 0, kind, false});
    }
    // Writes the two events of one change.
    int64_t LogMove(uint64_t id, const LiveRecord& record, SiteId to, int64_t bytes);
    // Adds bytes to the book, and `segments` to the number of the pool's segments if the record is one.
    void AddToBook(SiteBooks books, int64_t bytes, int segments, uint64_t id, int64_t time) {
      if (holds_all()) return ledger_.AddWithAllLocks(own_, books, bytes, segments, id, time);
      own_.books[books.book()].headroom -= bytes;
    }
    // Counts the event of the record `id`, which changes the number of live records by `records`.
    void Count(int records, uint64_t id) {
      TraceLedger(id);
      own_.new_records += records;
      --own_.events_left;
    }

    Ledger& ledger_;
    const Locks locks_;
    Shard& own_;
  };

  // Returns how many freed buffers of a site had an age of each octave (core/generations.h), without zeros at the end.
  // `freed`: the number of the site's freed buffers; the sum of the result is at most that. Takes no lock.
  std::vector<int64_t> FreedByOctave(SiteId site, int64_t freed) const;
  // Returns the number of live records. It differs from the exact number by less than `flush_every` per shard, because
  // each shard adds its changes after at most that number of events.
  int64_t live_records() const { return live_records_.load(std::memory_order_relaxed); }
  // Returns whether a new record of this size may be made if at most `most` records may be live.
  bool HasCapacity(size_t bytes, int64_t most) const { return bytes <= LiveTable::kMaxBytes && live_records() < most; }

  AccountTotals Totals(AccountId account) const;
  PoolTotals Totals(PoolNumber pool) const;
  // Returns whether the pool has a segment. Another thread may change that at any time.
  bool HasSegments(PoolNumber pool) const { return pools_[pool].segments.load(std::memory_order_relaxed) != 0; }
  // Returns the bytes of the pool's segments. Another thread may change that at any time.
  int64_t ReservedBytes(PoolNumber pool) const { return pools_[pool].bytes.load(std::memory_order_relaxed); }
  // Takes the locks of all shards.
  LedgerTotals Totals() const;

  // Returns the totals, also those of all sites that exist at their instant. Snapshots run one at a time; another one
  // waits. If the event log is on and the thread has a mark (EventLog::MarkOfThread), writes a kMark event.
  //
  // For a recording, `instant` is not null: instead of the kMark event, sets `*instant` to the time of the instant. If
  // `mode` is not null, the log has this mode from the instant on: its events are those after the instant. Before a log
  // is switched on, the caller allocates its buffers. When it is switched off, its events are in the full buffers.
  LedgerTotals Snapshot(int64_t* instant = nullptr, const EventLog::Mode* mode = nullptr) const;

  // The event log. Its modes change only in Snapshot and SetLogMode.
  EventLog& log() { return log_; }
  // Sets the log's mode, and returns the instant since which it has this mode, as Snapshot does. Allocates no memory.
  int64_t SetLogMode(EventLog::Mode mode) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Adds the events that the shards have so far to the log's full buffers. Returns a time: all events up to it are
  // there, and every later event has a later time. Does nothing and returns 0 if the log is off.
  int64_t CollectEvents() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Writes an event of this thread that changes no total (kFailed, kTags, kMark), if the log is on. `site` may be
  // kNoRecordedSite.
  void LogOnly(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // Makes the present bytes in use the account's peak, and the present bytes of the pools of its device their peaks.
  void ResetPeak(AccountId account);

 private:
  // A shard's part of the values of a site. The numbers of objects are modulo 2^32. Values of one shard may be
  // negative: a buffer may be freed through another shard than the one through which it was allocated.
  struct Counter {
    // The bytes ever allocated stay at the largest number.
    void AddAllocBytes(int64_t bytes) {
      int64_t sum;
      const bool overflows = __builtin_add_overflow(alloc_bytes, bytes, &sum);
      alloc_bytes = __builtin_expect(static_cast<int64_t>(overflows), 0) != 0 ? INT64_MAX : sum;
    }

    int64_t alloc_objects;
    int64_t alloc_bytes;
    int64_t inuse_bytes;
    uint32_t inuse_objects;
    uint32_t peak_objects;
    int64_t peak_bytes;
    int64_t pool_peak_bytes;
    uint32_t pool_peak_objects;
    SiteBooks books;  // of the site; set while `epoch` is not 0
    uint64_t epoch;   // of the last change; 0: none yet
  };
  static_assert(sizeof(Counter) == 64, "one cache line");
  // One shard's part of a book. Sums over the shards are not negative, but values of one shard may be. Only headroom is
  // at least 0.
  struct Book {
    int64_t sum() const { return allowance - headroom; }
    void SetHeadroom(int64_t bytes) {
      allowance = sum() + bytes;
      headroom = bytes;
    }

    int64_t headroom;
    int64_t allowance;
    int64_t num_allocs;
    int64_t num_frees;
    int64_t largest_alloc;
  };
  // The last peak of a book. It changes only while all shards are locked, so a thread may read it under the lock of any
  // shard.
  struct Peak {
    int64_t bytes = 0;
    uint64_t epoch = 1;
    int64_t time = 0;  // 0: the log was off
    // Of the live record whose allocation made the peak and that has not changed since; 0: none. It may be set to 0
    // under the lock of any shard.
    std::atomic<uint64_t> id{0};
  };
  // What a pool has reserved. Changes only while all shards are locked.
  struct Reserved {
    std::atomic<int64_t> bytes{0};
    int64_t peak = 0;
    int64_t nested = 0;  // PoolTotals::bytes_nested
    std::atomic<int64_t> segments{0};
  };
  // The state of a snapshot while it reads the counters.
  struct Reading {
    explicit Reading(std::vector<SiteTotals>& sites) : sites(sites) {}
    // Adds the counter's values at that instant, if the counter has not changed since. `books`: of its site.
    void Add(const Counter& counter, SiteId site, SiteBooks books) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock);

    uint64_t epoch = 0;  // counters with an earlier epoch have not changed since the instant
    uint64_t peak_epochs[kBooks];
    SiteId count = 0;  // of the sites at that instant
    SpinLock lock;
    std::vector<SiteTotals>& sites ABSL_GUARDED_BY(lock);
  };
  struct alignas(128) Shard {
    SpinLock lock;
    Counter* counters;    // by site
    int32_t events_left;  // before the event that calls Flush at its end
    int32_t new_records;  // since the last Flush, less those that have ended: what the next one adds to live_records_
    uint64_t epoch;
    RecordedEvent* next_event;  // the space for the next event in the event log; null: the log is off
    // The snapshot that is reading this shard's counters; null if there is none. It has not yet read the counters of
    // the sites from `unread` on.
    Reading* reading;
    SiteId unread;
    Book books[kBooks];
    ShardLog log;
    int64_t events_of_flush;  // the number of events between the last Flush and the next
    int64_t last_look;        // at the clock: the time of the last Flush
  };
  using FreedAges = std::atomic<uint32_t>[kAgeOctaves];  // of one site, by octave
  static_assert(kShards * sizeof(Counter) + sizeof(FreedAges) == SiteTable::kLedgerBytes);

  Shard& ShardOfThisThread() {
    Shard* const shard = shard_of_[thread_state.number].load(std::memory_order_acquire);
    return __builtin_expect(static_cast<int64_t>(shard != nullptr), 1) != 0 ? *shard : UseShard();
  }
  [[gnu::noinline]] Shard& UseShard();
  // Writes `event` to the shard's part of the log, which is on, with the present time, unless it has a time already.
  // Returns its time.
  [[gnu::noinline]] int64_t WriteLog(Shard& shard, Locks locks, RecordedEvent event) const;
  [[gnu::noinline]] void AddWithAllLocks(Shard& own, SiteBooks books, int64_t bytes, int segments, uint64_t id,
                                         int64_t time);
  // Returns the time of an event that holds all locks: later than all events so far, and earlier than all that follow.
  int64_t TimeOfInstant() const;
  // Writes an event that holds all locks and has no site, if the log is on. Returns its time; 0 if the log is off.
  int64_t LogInstant(RecordedKind kind, uint64_t id) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Part of Snapshot: writes the kMark event and sets the log's mode. All locks are held.
  void MarkInstant(int64_t* instant, const EventLog::Mode* mode) const;
  // OpenLog switches the shard's part of the log on if the log's mode says so. CloseLog switches it off; OpenLog must
  // follow before the shard's lock is released.
  void OpenLog(Shard& shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  void CloseLog(Shard& shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // Adds to what the pool has reserved, if the record is a segment. All locks are held.
  void AddReserved(SiteBooks books, int64_t bytes, int64_t segments);
  // Returns whether the allocation of `id` has made the present peak of its account. If so, forgets that.
  bool EndPeakRecord(SiteBooks books, uint64_t id) {
    std::atomic<uint64_t>& peak_id = peaks_[books.account].id;
    if (__builtin_expect(static_cast<int64_t>(peak_id.load(std::memory_order_relaxed) != id), 1) != 0) return false;
    peak_id.store(0, std::memory_order_relaxed);
    return true;
  }
  // Must be called before the first change of a site's counter in an epoch.
  [[gnu::noinline]] void BringToEpoch(Shard& shard, SiteId site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  [[gnu::noinline]] void CountAge(const LiveRecord& record);
  // Adds what the shard has not added to live_records_ yet, and looks at the clock.
  [[gnu::noinline]] void Flush(Shard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.lock);
  // The functions from here to SumOfBook, except those that lock, need all locks.

  // Distributes the headroom so that `own` can take `bytes` from it, which is above 0. Sets `*sum` to the book's sum
  // including `bytes`. Returns true if that is a new peak: then the caller must call BeginPeak.
  bool MakeHeadroom(Shard& own, BookId book, int64_t bytes, int64_t* sum);
  // Makes the present state the book's peak, which has `bytes` bytes. `time` and `id`: of the event, which must have
  // changed its counters before: so their epochs are earlier, and their present values are those of the peak.
  void BeginPeak(BookId book, int64_t bytes, int64_t time, uint64_t id);
  void BeginEpoch() const;
  void LockAll() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // LockAll at an instant at which there are no pending events.
  void LockAllForTotals() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  AccountTotals SumOf(AccountId account) const;
  PoolTotals SumOfPool(PoolNumber pool) const;
  // Sets the totals of accounts and pools. Allocates no memory.
  void ReadTotals(LedgerTotals* totals) const;
  int64_t SumOfBook(BookId book) const;
  // Calls `visit(number)` for the pools of the account's device, if it is of MemorySpace::kDevice.
  template <typename Visit>
  void ForEachPoolOf(AccountId account, const Visit& visit) const;
  // Calls `visit(shard)` for all shards in use.
  template <typename Visit>
  void ForEachShard(const Visit& visit) const {
    for (uint32_t used = used_.load(std::memory_order_relaxed); used != 0; used &= used - 1) {
      visit(shards_[__builtin_ctz(used)]);
    }
  }
  // Reads the counters of all shards for a snapshot.
  void ReadCounters(Reading* reading) const;

  // Indexed by a thread's number: the thread's shard; null until the thread has used it.
  std::atomic<Shard*> shard_of_[kThreadNumbers + 1] = {};
  const SiteTable& sites_;
  const int flush_every_;
  PendingEvents* pending_ = nullptr;
  const ReservedArray<Counter> counters_;  // by shard and site
  mutable SpinLock all_lock_;
  std::atomic<uint32_t> used_{0};  // bit s: shard s is in use; changes under all_lock_
  Peak peaks_[kBooks];
  Reserved pools_[kMaxPools + 1];  // by PoolNumber
  mutable uint64_t epoch_ = 1;     // changes while all shards are locked
  // Ledger::Snapshot holds it from beginning to end, at most a few hundred milliseconds. No event waits for it.
  mutable SpinLock reading_lock_;
  std::atomic<int64_t> live_records_{0};
  const ReservedArray<FreedAges> freed_ages_;  // by site
  mutable EventLog log_;
  mutable int64_t last_instant_ ABSL_GUARDED_BY(all_lock_) = 0;  // the last result of TimeOfInstant
  mutable Shard shards_[kShards] = {};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_LEDGER_H_
