#include "src/core/ledger/ledger.h"

#include <algorithm>

namespace hbmprof::internal {

void Ledger::LockAll() const {
  all_lock_.Lock();
  ForEachShard([](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Lock(); });
}

void Ledger::LockAllForTotals() const {
  for (;;) {
    TraceStep(EventStep::kTotals);
    LockAll();
    if (pending_ == nullptr || !pending_->HasPending()) return;
    UnlockAll();
    pending_->RecordPending();
  }
}

void Ledger::UnlockAll() const {
  ForEachShard([](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Unlock(); });
  all_lock_.Unlock();
}

Ledger::Shard& Ledger::UseShard() {
  const uint32_t thread = ThreadNumber();
  const uint32_t number = thread % kShards;
  Shard& shard = shards_[number];
  SpinLockHolder hold(all_lock_);
  if ((used_.load(std::memory_order_relaxed) >> number & 1) == 0) {
    SpinLockHolder hold_shard(shard.lock);
    shard.counters = &counters_[size_t{number} * sites_.capacity()];
    shard.epoch = epoch_;
    shard.log.last_time = last_instant_ + 1;
    OpenLog(shard);
    used_.fetch_or(1u << number, std::memory_order_release);
  }
  shard_of_[thread].store(&shard, std::memory_order_release);
  return shard;
}

void Ledger::Flush(Shard& shard) {
  live_records_.fetch_add(shard.new_records, std::memory_order_relaxed);
  shard.new_records = 0;
  // The shard looks at the clock at each Flush. If the events since the last one took long, the next Flush comes after
  // one event, and then after twice as many each time.
  constexpr int64_t kLongNanos = 1'000'000'000 / 16;
  const int64_t now = LookAtClock();
  const int64_t more = now - shard.last_look < kLongNanos ? 2 * shard.events_of_flush : 1;
  shard.last_look = now;
  shard.events_of_flush = std::clamp<int64_t>(more, 1, flush_every_);
  shard.events_left = static_cast<int32_t>(shard.events_of_flush) - 1;
}

// A counter stays at its largest value.
void Ledger::CountAge(const LiveRecord& record) {
  const int octave = OctaveOfAge(record.birth, PresentGeneration());
  if (octave < 0) return;
  std::atomic<uint32_t>& count = freed_ages_[record.site][octave];
  if (count.load(std::memory_order_relaxed) < UINT32_MAX - 1024) count.fetch_add(1, std::memory_order_relaxed);
}

// Buffers may be freed meanwhile. The oldest count first, because they tell the most.
std::vector<int64_t> Ledger::FreedByOctave(SiteId site, int64_t freed) const {
  std::vector<int64_t> counts;
  for (size_t octave = kAgeOctaves; octave-- > 0;) {
    const int64_t count = std::min<int64_t>(freed_ages_[site][octave].load(std::memory_order_relaxed), freed);
    if (count <= 0) continue;
    if (counts.empty()) counts.resize(octave + 1);
    counts[octave] = count;
    freed -= count;
  }
  return counts;
}

void Ledger::BringToEpoch(Shard& shard, SiteId site) {
  Counter* const counter = shard.counters + site;
  const SiteBooks books = sites_.At(site).books;
  if (Reading* const reading = shard.reading; reading != nullptr && site >= shard.unread) {
    SpinLockHolder hold(reading->lock);
    if (site < reading->count) reading->Add(*counter, site, books);
  }
  if (counter->epoch < peaks_[books.account].epoch) {
    counter->peak_objects = counter->inuse_objects;
    counter->peak_bytes = counter->inuse_bytes;
  }
  if (books.pool != 0 && counter->epoch < peaks_[BookOf(books.pool)].epoch) {
    counter->pool_peak_objects = counter->inuse_objects;
    counter->pool_peak_bytes = counter->inuse_bytes;
  }
  counter->books = books;
  counter->epoch = shard.epoch;
}

bool Ledger::MakeHeadroom(Shard& own, BookId book, int64_t bytes, int64_t* sum) {
  *sum = bytes + SumOfBook(book);
  const int64_t shards = __builtin_popcount(used_.load(std::memory_order_relaxed));
  const int64_t slack = peaks_[book].bytes - *sum;
  // The free bytes below the peak are distributed evenly. This shard also gets the bytes of the event.
  const int64_t share = std::max<int64_t>(slack, 0) / shards;
  ForEachShard([&](Shard& shard) { shard.books[book].SetHeadroom(&shard == &own ? share + bytes : share); });
  return slack < 0;
}

void Ledger::BeginPeak(BookId book, int64_t bytes, int64_t time, uint64_t id) {
  BeginEpoch();
  Peak& peak = peaks_[book];
  peak.bytes = bytes;
  peak.epoch = epoch_;
  peak.time = time;
  peak.id.store(id, std::memory_order_relaxed);
}

void Ledger::BeginEpoch() const {
  ++epoch_;
  ForEachShard([&](Shard& shard) { shard.epoch = epoch_; });
}

void Ledger::AddReserved(SiteBooks books, int64_t bytes, int64_t segments) {
  if (books.is_segment == 0) return;
  Reserved& pool = pools_[books.pool];
  const int64_t reserved = pool.bytes.load(std::memory_order_relaxed) + bytes;
  pool.bytes.store(reserved, std::memory_order_relaxed);
  pool.peak = std::max(pool.peak, reserved);
  if (books.is_from_pool()) pool.nested += bytes;
  pool.segments.store(pool.segments.load(std::memory_order_relaxed) + segments, std::memory_order_relaxed);
}

// --- Events ---

int64_t Ledger::WriteLog(Shard& shard, Locks locks, RecordedEvent event) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (event.time == 0) event.time = locks == Locks::kAllShards ? TimeOfInstant() : log_.TimeInShard(&shard.log);
  log_.Write(event, static_cast<uint32_t>(&shard - shards_), &shard.log, &shard.next_event);
  return event.time;
}

void Ledger::AddWithAllLocks(Shard& own, SiteBooks books, int64_t bytes, int segments, uint64_t id, int64_t time) {
  const BookId book = books.book();
  int64_t sum = 0;
  const bool is_peak = bytes > 0 && MakeHeadroom(own, book, bytes, &sum);
  own.books[book].headroom -= bytes;
  if (is_peak) BeginPeak(book, sum, time, id);
  // The segment that made the device's peak is shown with the blocks that it was made for.
  if (Peak& of_device = peaks_[books.account]; is_peak && of_device.bytes == SumOfBook(books.account)) {
    of_device.epoch = epoch_;
    of_device.time = time;
  }
  AddReserved(books, bytes, segments);
}

int64_t Ledger::Event::LogMove(uint64_t id, const LiveRecord& record, SiteId to, int64_t bytes) {
  if (own_.next_event == nullptr) return 0;
  const int64_t time =
      ledger_.WriteLog(own_, locks_, {0, id, record.bytes, record.site, 0, RecordedKind::kMoveFrom, true});
  return ledger_.WriteLog(own_, locks_, {time, id, bytes, to, 0, RecordedKind::kMoveTo, false});
}

void Ledger::Event::Move(CounterRef counter, CounterRef counter_to, uint64_t id, const LiveRecord& record, SiteId to) {
  LogMove(id, record, to, record.bytes);
  // If it becomes a segment, or was one, it was the same memory at the peak that its allocation made.
  const bool is_of_peak = ledger_.EndPeakRecord(counter->books, id) &&
                          (counter->books.is_segment != 0 || counter_to->books.is_segment != 0);
  const auto add = [&](Counter* changed, int sign) {
    changed->alloc_objects += sign;
    changed->AddAllocBytes(sign * record.bytes);
    changed->inuse_objects += static_cast<uint32_t>(sign);
    changed->inuse_bytes += sign * record.bytes;
    if (is_of_peak) changed->peak_objects += static_cast<uint32_t>(sign);
    if (is_of_peak) changed->peak_bytes += sign * record.bytes;
    ledger_.AddReserved(changed->books, sign * record.bytes, sign);
  };
  add(counter, -1);
  add(counter_to, 1);
  Count(0, id);
}

void Ledger::Event::Resize(CounterRef counter, uint64_t id, const LiveRecord& record, int64_t bytes) {
  const int64_t time = LogMove(id, record, record.site, bytes);
  const int64_t more = bytes - record.bytes;
  counter->AddAllocBytes(std::max<int64_t>(more, 0));
  counter->inuse_bytes += more;
  Book& book = own_.books[counter->books.book()];
  book.largest_alloc = std::max(book.largest_alloc, bytes);
  ledger_.EndPeakRecord(counter->books, id);
  AddToBook(counter->books, more, 0, 0, time);
  Count(0, id);
}

// --- Totals and snapshots ---

int64_t Ledger::SumOfBook(BookId book) const {
  int64_t sum = 0;
  ForEachShard([&](const Shard& shard) { sum += shard.books[book].sum(); });
  return sum;
}

AccountTotals Ledger::SumOf(AccountId account) const {
  AccountTotals totals;
  totals.bytes_in_use = SumOfBook(account);
  totals.peak_bytes_in_use = peaks_[account].bytes;
  totals.peak_time = peaks_[account].time;
  const auto count = [&](BookId book) {
    ForEachShard([&](const Shard& shard) {
      const Book& part = shard.books[book];
      totals.num_allocs += part.num_allocs;
      totals.num_live += part.num_allocs - part.num_frees;
      totals.largest_alloc_size = std::max(totals.largest_alloc_size, part.largest_alloc);
    });
  };
  count(account);
  ForEachPoolOf(account, [&](PoolNumber number) {
    count(BookOf(number));
    const PoolTotals pool = SumOfPool(number);
    totals.pool_bytes += pool.bytes_reserved - pool.bytes_nested;
    totals.idle_bytes += pool.idle_bytes;
  });
  return totals;
}

PoolTotals Ledger::SumOfPool(PoolNumber number) const {
  const Peak& peak = peaks_[BookOf(number)];
  const Reserved& reserved = pools_[number];
  PoolTotals totals;
  totals.bytes_reserved = ReservedBytes(number);
  totals.bytes_allocated = SumOfBook(BookOf(number));
  totals.idle_bytes = std::max<int64_t>(totals.bytes_reserved - totals.bytes_allocated, 0);
  totals.peak_bytes_reserved = reserved.peak;
  totals.peak_bytes_allocated = peak.bytes;
  totals.segments = reserved.segments.load(std::memory_order_relaxed);
  totals.bytes_nested = reserved.nested;
  totals.peak_time = peak.time;
  return totals;
}

template <typename Visit>
void Ledger::ForEachPoolOf(AccountId account, const Visit& visit) const {
  for (int number = 1; number <= sites_.pools().size(); ++number) {
    const DeviceId device = sites_.pools().Of(static_cast<PoolNumber>(number)).device;
    if (AccountOf(device, MemorySpace::kDevice) == account) visit(static_cast<PoolNumber>(number));
  }
}

AccountTotals Ledger::Totals(AccountId account) const {
  LockAllForTotals();
  const AccountTotals totals = SumOf(account);
  UnlockAll();
  return totals;
}

PoolTotals Ledger::Totals(PoolNumber pool) const {
  LockAllForTotals();
  const PoolTotals totals = SumOfPool(pool);
  UnlockAll();
  return totals;
}

LedgerTotals Ledger::Totals() const {
  LedgerTotals totals;
  LockAllForTotals();
  ReadTotals(&totals);
  UnlockAll();
  return totals;
}

void Ledger::ReadTotals(LedgerTotals* totals) const {
  for (AccountId account = 0; account < kAccounts; ++account) totals->accounts[account] = SumOf(account);
  const int count = sites_.pools().size();
  for (int pool = 1; pool <= count; ++pool) totals->pools[pool] = SumOfPool(static_cast<PoolNumber>(pool));
  totals->pools.resize(count + 1);
}

void Ledger::Reading::Add(const Counter& counter, SiteId site, SiteBooks books) {
  if (counter.epoch >= epoch) return;
  SiteTotals values;
  values.alloc_objects = counter.alloc_objects;
  values.alloc_bytes = counter.alloc_bytes;
  values.inuse_objects = values.peak_objects = counter.inuse_objects;
  values.inuse_bytes = values.peak_bytes = counter.inuse_bytes;
  if (counter.epoch >= peak_epochs[books.account]) {
    values.peak_objects = counter.peak_objects;
    values.peak_bytes = counter.peak_bytes;
  }
  if (books.pool != 0) {
    const bool has_changed_since_peak = counter.epoch >= peak_epochs[BookOf(books.pool)];
    values.pool_peak_objects = has_changed_since_peak ? counter.pool_peak_objects : counter.inuse_objects;
    values.pool_peak_bytes = has_changed_since_peak ? counter.pool_peak_bytes : counter.inuse_bytes;
  }
  sites[site].Add(values);
}

LedgerTotals Ledger::Snapshot(int64_t* instant, const EventLog::Mode* mode) const {
  LedgerTotals totals;
  SpinLockHolder one_at_a_time(reading_lock_);
  Reading reading(totals.sites);
  // Memory for all sites is allocated before the locks are taken. Sites that are added meanwhile may make it too small;
  // then the next attempt allocates more. Nothing is allocated between LockAll and the end of ReadCounters.
  for (SiteId spare = 1024;; spare *= 2) {
    totals.sites.assign(sites_.size() + spare, {});
    LockAllForTotals();
    reading.count = sites_.size();
    if (reading.count <= totals.sites.size()) break;
    UnlockAll();
  }
  TraceLedger(0);
  ReadTotals(&totals);
  BeginEpoch();
  reading.epoch = epoch_;
  for (BookId book = 0; book < kBooks; ++book) reading.peak_epochs[book] = peaks_[book].epoch;
  MarkInstant(instant, mode);
  ForEachShard([&](Shard& shard) {
    shard.reading = &reading;
    shard.unread = 0;
  });
  UnlockAll();
  ReadCounters(&reading);
  totals.sites.resize(reading.count);
  return totals;
}

// A shard's lock is held for 256 counters at a time, which takes a few microseconds. The lock is not fair: without the
// pause, a waiting thread would wait until the whole shard is read. (A shard that comes into use meanwhile has changes
// after the instant only.)
void Ledger::ReadCounters(Reading* reading) const {
  constexpr int kPauses = 32;
  constexpr SiteId kAtOnce = 256;
  ForEachShard([&](Shard& shard) {
    for (SiteId start = 0; start < reading->count; start += kAtOnce) {
      {
        SpinLockHolder hold(shard.lock);
        SpinLockHolder hold_reading(reading->lock);
        shard.unread = std::min(reading->count, start + kAtOnce);
        for (SiteId site = start; site < shard.unread; ++site) {
          reading->Add(shard.counters[site], site, sites_.At(site).books);
        }
      }
      for (int i = 0; i < kPauses; ++i) CpuRelax();
    }
    SpinLockHolder hold(shard.lock);
    shard.reading = nullptr;
  });
}

void Ledger::ResetPeak(AccountId account) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  LockAllForTotals();
  const int64_t time =
      SumOf(account).is_used() ? LogInstant(RecordedKind::kResetPeak, static_cast<uint64_t>(account)) : 0;
  const auto reset = [&](BookId book) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    BeginPeak(book, SumOfBook(book), time, 0);
    ForEachShard([&](Shard& shard) { shard.books[book].SetHeadroom(0); });
  };
  reset(account);
  ForEachPoolOf(account, [&](PoolNumber pool) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    reset(BookOf(pool));
    pools_[pool].peak = ReservedBytes(pool);
  });
  TraceLedger(0);
  UnlockAll();
}

// --- The event log ---

int64_t Ledger::TimeOfInstant() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  int64_t last = last_instant_;
  ForEachShard([&](const Shard& shard) { last = std::max(last, shard.log.last_time); });
  const int64_t time = std::max(MonotonicNanos(), last + 1);
  last_instant_ = time;
  ForEachShard([&](Shard& shard) { shard.log.last_time = time + 1; });
  return time;
}

int64_t Ledger::LogInstant(RecordedKind kind, uint64_t id) const {
  const uint32_t used = used_.load(std::memory_order_relaxed);
  if (used == 0 || log_.mode() == EventLog::Mode::kOff) return 0;
  return WriteLog(shards_[__builtin_ctz(used)], Locks::kAllShards, {0, id, 0, kNoRecordedSite, 0, kind, false});
}

void Ledger::OpenLog(Shard& shard) const {
  if (log_.mode() != EventLog::Mode::kOff) {
    log_.Open(static_cast<uint32_t>(&shard - shards_), &shard.log, &shard.next_event);
  }
}

void Ledger::CloseLog(Shard& shard) const {
  if (shard.next_event != nullptr) log_.Close(&shard.log, shard.next_event);
  shard.next_event = nullptr;
}

int64_t Ledger::CollectEvents() {
  if (log_.mode() == EventLog::Mode::kOff) return 0;
  const int64_t until = MonotonicNanos();
  ForEachShard([&](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    SpinLockHolder hold(shard.lock);
    if (shard.next_event == nullptr) return;
    if (shard.log.buffer == nullptr || shard.next_event != shard.log.buffer->events) {
      CloseLog(shard);
      OpenLog(shard);
    }
    shard.log.last_time = std::max(shard.log.last_time, until + 1);
  });
  return until;
}

void Ledger::MarkInstant(int64_t* instant, const EventLog::Mode* mode) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (instant == nullptr) {
    if (const uint64_t mark = EventLog::MarkOfThread(); mark != 0) LogInstant(RecordedKind::kMark, mark - 1);
    return;
  }
  *instant = TimeOfInstant();
  if (mode == nullptr) return;
  ForEachShard([&](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { CloseLog(shard); });
  log_.SetMode(*mode);
  ForEachShard([&](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { OpenLog(shard); });
}

int64_t Ledger::SetLogMode(EventLog::Mode mode) {
  int64_t instant = 0;
  LockAllForTotals();
  MarkInstant(&instant, &mode);
  UnlockAll();
  return instant;
}

void Ledger::LogOnly(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) {
  Shard& shard = ShardOfThisThread();
  SpinLockHolder hold(shard.lock);
  if (shard.next_event == nullptr) return;
  WriteLog(shard, Locks::kOwnShard, {0, id, bytes, site, 0, kind, false});
}

}  // namespace hbmprof::internal
