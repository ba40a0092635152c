#include "src/core/ledger/ledger.h"

#include <algorithm>

#include "src/base/pages.h"

namespace hbmprof::internal {

Ledger::Ledger(const SiteTable& sites, int flush_every)
    : sites_(sites),
      flush_every_(flush_every),
      shards_(static_cast<Shard*>(MapPages(sizeof(Shard) * kShards))),
      chunks_(static_cast<std::atomic<uint8_t>*>(MapPages(ChunkCount()))),
      freed_ages_(sites) {}

Ledger::~Ledger() {
  ForEachShard([&](Shard& shard) {
    UnmapRetiredPages(shard.cells, BytesOfCells());
    for (SiteId site = 0; site < sites_.capacity(); site += 1u << kChunkBits) {
      if (HasCells(shard, site)) CountHostBytes(-kChunkBytes);
    }
  });
  UnmapPages(shards_, sizeof(Shard) * kShards);
  UnmapPages(chunks_, ChunkCount());
}

template <typename Visit>
void Ledger::ForEachShardOf(uint32_t shards, const Visit& visit) const {
  for (; shards != 0; shards &= shards - 1) visit(shards_[__builtin_ctz(shards)]);
}

template <typename Visit>
void Ledger::ForEachShard(const Visit& visit) const {
  ForEachShardOf(made_.load(std::memory_order_relaxed), visit);
}

void Ledger::LockAll() const {
  all_lock_.Lock();
  ForEachShard([](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Lock(); });
}

void Ledger::UnlockAll() const {
  ForEachShard([](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Unlock(); });
  all_lock_.Unlock();
}

Ledger::Shard* Ledger::MakeShard() {
  if (shards_ == nullptr || chunks_ == nullptr) return nullptr;
  const uint32_t thread = ThreadNumber();
  Shard* const shard = &shards_[thread % kShards];
  SpinLockHolder hold(all_lock_);
  if (shard->cells == nullptr) {
    shard->cells = static_cast<Cell*>(ReservePages(BytesOfCells()));
    if (shard->cells == nullptr) return nullptr;
    SpinLockHolder hold_shard(shard->lock);
    shard->log.last_time = last_instant_ + 1;
    OpenLog(*shard);
    made_.fetch_or(BitOf(*shard), std::memory_order_release);
  }
  shard_of_[thread].store(shard, std::memory_order_release);
  return shard;
}

Ledger::Shard* Ledger::AnyShard() {
  Shard* found = ShardOfThisThread();
  if (found == nullptr) ForEachShard([&](Shard& shard) { found = &shard; });
  return found;
}

bool Ledger::TakeNewCells(const Shard& shard, SiteId site) {
  if (!TakeHostBytes(kChunkBytes)) return false;
  const uint8_t before = chunks_[site >> kChunkBits].fetch_or(BitOf(shard), std::memory_order_relaxed);
  // Another thread of the shard may have taken them meanwhile.
  if ((before & BitOf(shard)) != 0) CountHostBytes(-kChunkBytes);
  return true;
}

void Ledger::Flush(Shard& shard) {
  // The low bits, with their sign.
  const int64_t change = ((shard.unflushed + kOneEvent / 2) & (kOneEvent - 1)) - kOneEvent / 2;
  live_records_.fetch_add(change, std::memory_order_relaxed);
  // The shard looks at the clock at each Flush. If the events since the last one took long, the next Flush comes after
  // one event, and then after twice as many each time.
  constexpr int64_t kLongNanos = 1'000'000'000 / 16;
  const int64_t now = LookAtClock();
  const int64_t more = now - shard.last_look < kLongNanos ? 2 * shard.events_of_flush : 1;
  shard.last_look = now;
  shard.events_of_flush = std::clamp<int64_t>(more, 1, flush_every_);
  shard.unflushed = (shard.events_of_flush - 1) * kOneEvent;
}

void Ledger::CountRecords() {
  Shard* const shard = ShardOfThisThread();
  if (shard == nullptr) return;
  SpinLockHolder hold(shard->lock);
  if (shard->unflushed < 0) Flush(*shard);
}

void Ledger::BringToEpoch(Shard& shard, AccountId account, SiteId site, Cell* cell) {
  Common& common = common_[account];
  if (cell->epoch == common.epoch) return;
  if (!common.is_used.load(std::memory_order_relaxed)) common.is_used.store(true, std::memory_order_relaxed);
  if (Reading* const reading = shard.reading; reading != nullptr && site >= shard.unread) {
    SpinLockHolder hold(reading->lock);
    if (site < reading->changed.size()) Reading::Add(*cell, reading->accounts[account], &reading->changed[site]);
  }
  if (cell->epoch < common.peak_epoch) {
    cell->peak_objects = cell->inuse_objects();
    cell->peak_bytes = cell->inuse_bytes();
  }
  cell->epoch = common.epoch;
}

bool Ledger::MakeHeadroom(Shard& own, AccountId account, int64_t bytes, int64_t* in_use) {
  *in_use = bytes;
  int64_t shards = 0;
  ForEachShard([&](const Shard& shard) {
    *in_use += shard.accounts[account].in_use();
    ++shards;
  });
  const int64_t slack = common_[account].peak - *in_use;
  // The free bytes below the peak are distributed evenly. This shard also gets the bytes of the event.
  const int64_t share = std::max<int64_t>(slack, 0) / shards;
  ForEachShard([&](Shard& shard) { shard.accounts[account].SetHeadroom(&shard == &own ? share + bytes : share); });
  return slack < 0;
}

void Ledger::BeginPeak(AccountId account, int64_t bytes, int64_t time) {
  common_[account].peak = bytes;
  common_[account].peak_time = time;
  BeginEpoch(account);
  common_[account].peak_epoch = common_[account].epoch;
}

void Ledger::BeginEpoch(AccountId account) const {
  const uint64_t epoch = ++common_[account].epoch;
  ForEachShard([&](Shard& shard) { shard.accounts[account].SetEpoch(epoch, shard.next_event != nullptr); });
}

// --- Changes ---

Ledger::Change::Change(Ledger& ledger, Scope scope) : ledger_(ledger), scope_(scope), own_(ledger.AnyShard()) {
  if (own_ == nullptr) return;
  if (scope == Scope::kAllShards) {
    LookAtClock();
    ledger.LockAll();
    ledger.ForEachShard([](Shard& shard) {
      if (shard.view.bytes != 0) shard.view = {};
    });
  } else {
    own_->lock.Lock();
  }
}

Ledger::Cell& Ledger::Change::Changed(SiteId site) {
  has_event_ = true;
  const Site& record = ledger_.sites_.At(site);
  account_ = record.account;
  Shard& shard = ledger_.HasCells(*own_, site) ? *own_ : *ledger_.ShardWith(site);
  Cell& cell = shard.cells[site];
  const Account& account = shard.accounts[account_];
  ledger_.BringToEpoch(shard, account_, site, &cell);
  if (record.kind == SiteKind::kPlain || record.kind == SiteKind::kBlock) {
    const intptr_t word = BlockAccountWord(account);
    cell.account_word.store(record.kind == SiteKind::kBlock ? word : -word, std::memory_order_relaxed);
  }
  return cell;
}

void Ledger::Change::AddPart(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) {
  RecordedEvent part = {0, id, bytes, site, 0, kind, true};
  if (has_part_) {
    ledger_.WriteEvent(*own_, part_);
    part.time = part_.time;
  } else if (scope_ == Scope::kAllShards) {
    part.time = ledger_.TimeOfInstant();
  } else {
    part.time = ledger_.log_.TimeInShard(&own_->log);
  }
  has_part_ = true;
  part_ = part;
}

void Ledger::Change::Enter(Event event, uint64_t id, const LiveRecord& record) {
  const int octave = OctaveNow(record.birth);
  if (octave >= 0 && event == Event::kFree) ledger_.freed_ages_.Add(record.site, octave);
  Enter(event, id, record.site, record.bytes);
}

void Ledger::Change::Enter(Event event, uint64_t id, SiteId site, int64_t bytes) {
  Log(static_cast<RecordedKind>(event), id, site, bytes);
  Cell& cell = Changed(site);
  Count(event, own_->accounts[account_], bytes, &cell);
  in_use_ += AddedBytes(event, bytes);
  records_ += RecordsOf(event);
}

void Ledger::Change::Charge(SiteId site, int64_t bytes) {
  Log(RecordedKind::kCharge, 0, site, bytes);
  Changed(site).freed_bytes += bytes;
  in_use_ -= bytes;
}

void Ledger::Change::Rename(uint64_t old_id, uint64_t new_id, SiteId site, int64_t bytes) {
  Log(RecordedKind::kMoveFrom, old_id, site, bytes);
  Log(RecordedKind::kMoveTo, new_id, site, bytes);
}

void Ledger::Change::Move(uint64_t id, SiteId from, SiteId to, int64_t old_bytes, int64_t new_bytes) {
  Log(RecordedKind::kMoveFrom, id, from, old_bytes);
  Log(RecordedKind::kMoveTo, id, to, new_bytes);
  Cell& cell_from = Changed(from);
  --cell_from.alloc_objects;
  cell_from.alloc_bytes -= old_bytes;
  Cell& cell_to = Changed(to);
  ++cell_to.alloc_objects;
  cell_to.AddAllocBytes(std::max(old_bytes, new_bytes));
  cell_to.freed_bytes += std::max<int64_t>(old_bytes - new_bytes, 0);
  Account& account = own_->accounts[account_];
  account.largest_alloc = std::max(account.largest_alloc, new_bytes);
  in_use_ += new_bytes - old_bytes;
}

Ledger::Change::~Change() {
  if (own_ == nullptr) return;
  if (has_event_) {
    Account& account = own_->accounts[account_];
    int64_t in_use = 0;
    const bool is_peak =
        in_use_ > 0 && scope_ == Scope::kAllShards && ledger_.MakeHeadroom(*own_, account_, in_use_, &in_use);
    account.headroom -= in_use_;
    account.pool_bytes += pool_bytes_;
    account.block_bytes += block_bytes_;
    if (is_peak) ledger_.BeginPeak(account_, in_use, part_.time);
    const bool is_many = records_ < -1 || records_ > 1;
    if (is_many) ledger_.live_records_.fetch_add(records_, std::memory_order_relaxed);
    if (CountEvent(*own_, is_many ? 0 : records_) == kEnteredAndCounted) ledger_.Flush(*own_);
  }
  if (has_part_) {
    part_.is_continued = false;
    ledger_.WriteEvent(*own_, part_);
  }
  if (scope_ == Scope::kAllShards) {
    ledger_.UnlockAll();
  } else {
    own_->lock.Unlock();
  }
}

// --- Totals and snapshots ---

AccountTotals Ledger::SumOf(AccountId account) const {
  AccountTotals totals;
  totals.peak_bytes_in_use = common_[account].peak;
  totals.peak_time = common_[account].peak_time;
  ForEachShard([&](const Shard& shard) {
    const Account& part = shard.accounts[account];
    totals.bytes_in_use += part.in_use();
    totals.num_allocs += part.num_allocs;
    totals.num_live += part.num_allocs - part.num_frees;
    totals.largest_alloc = std::max(totals.largest_alloc, part.largest_alloc);
    totals.pool_bytes += part.pool_bytes;
    totals.block_bytes += part.block_bytes;
  });
  return totals;
}

AccountTotals Ledger::Totals(AccountId account) const {
  LockAll();
  const AccountTotals totals = SumOf(account);
  UnlockAll();
  return totals;
}

std::vector<AccountTotals> Ledger::AllTotals() const {
  std::vector<AccountTotals> totals(kAccounts);
  LockAll();
  for (AccountId account = 0; account < kAccounts; ++account) totals[account] = SumOf(account);
  UnlockAll();
  return totals;
}

int64_t Ledger::CountLive() const {
  int64_t live = 0;
  LockAll();
  for (AccountId account = 0; account < kAccounts; ++account) live += SumOf(account).num_live;
  UnlockAll();
  return live;
}

void Ledger::Reading::Add(const Cell& cell, const Instant& instant, SiteTotals* totals) {
  if (cell.epoch >= instant.epoch) return;
  const bool has_changed_since_peak = cell.epoch >= instant.peak_epoch;
  totals->Add({cell.alloc_objects, cell.alloc_bytes, cell.inuse_objects(), cell.inuse_bytes(),
               has_changed_since_peak ? cell.peak_objects : cell.inuse_objects(),
               has_changed_since_peak ? cell.peak_bytes : cell.inuse_bytes()});
}

void Ledger::Snapshot(std::vector<SiteTotals>* sites, std::vector<AccountTotals>* accounts, int64_t* instant,
                      const EventLog::Mode* mode) const {
  accounts->assign(kAccounts, {});
  Reading reading;
  SpinLockHolder one_at_a_time(reading_lock_);
  // Memory for all sites is allocated before the locks are taken. Sites that are added meanwhile may make it too small;
  // then the next attempt allocates more. Nothing is allocated between LockAll and the end of ReadCells.
  SiteId count;
  for (SiteId spare = 1024;; spare *= 2) {
    sites->assign(sites_.size() + spare, {});
    {
      SpinLockHolder hold(reading.lock);
      reading.changed.assign(sites->size(), {});
    }
    LockAll();
    count = sites_.size();
    if (count <= sites->size()) break;
    UnlockAll();
  }
  TraceLedger();
  for (AccountId account = 0; account < kAccounts; ++account) {
    if (!common_[account].is_used.load(std::memory_order_relaxed)) continue;
    (*accounts)[account] = SumOf(account);
    BeginEpoch(account);
    reading.accounts[account] = {common_[account].epoch, common_[account].peak_epoch};
  }
  MarkInstant(instant, mode);
  const uint32_t shards = made_.load(std::memory_order_relaxed);
  ForEachShard([&](Shard& shard) {
    shard.reading = &reading;
    shard.unread = 0;
  });
  UnlockAll();

  sites->resize(count);
  ReadCells(shards, &reading, sites);
  SpinLockHolder hold(reading.lock);
  for (SiteId site = 0; site < count; ++site) (*sites)[site].Add(reading.changed[site]);
}

// A shard's lock is held for one chunk at a time, which takes a few microseconds. The lock is not fair: without the
// pause between two chunks, a waiting thread would wait until the whole shard is read.
void Ledger::ReadCells(uint32_t shards, Reading* reading, std::vector<SiteTotals>* sites) const {
  constexpr int kPauses = 32;
  constexpr SiteId kAtOnce = 1u << kChunkBits;
  const auto count = static_cast<SiteId>(sites->size());
  ForEachShardOf(shards, [&](Shard& shard) {
    for (SiteId start = 0; start < count; start += kAtOnce) {
      if (!HasCells(shard, start)) continue;
      {
        SpinLockHolder hold(shard.lock);
        const SiteId end = std::min(count, start + kAtOnce);
        for (SiteId site = start; site < end; ++site) {
          Reading::Add(shard.cells[site], reading->accounts[sites_.At(site).account], &(*sites)[site]);
        }
        shard.unread = end;
      }
      for (int i = 0; i < kPauses; ++i) CpuRelax();
    }
    SpinLockHolder hold(shard.lock);
    shard.reading = nullptr;
  });
}

void Ledger::ResetPeak(AccountId account) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  LockAll();
  const bool is_used = common_[account].is_used.load(std::memory_order_relaxed);
  const int64_t time = is_used ? LogInstant(RecordedKind::kResetPeak, static_cast<uint64_t>(account)) : 0;
  BeginPeak(account, SumOf(account).bytes_in_use, time);
  ForEachShard([&](Shard& shard) { shard.accounts[account].SetHeadroom(0); });
  TraceLedger();
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
  const uint32_t made = made_.load(std::memory_order_relaxed);
  if (made == 0 || log_.mode() == EventLog::Mode::kOff) return 0;
  Shard& shard = shards_[__builtin_ctz(made)];
  const int64_t time = TimeOfInstant();
  WriteEvent(shard, {time, id, 0, kNoRecordedSite, 0, kind, false});
  return time;
}

void Ledger::OpenLog(Shard& shard) const {
  if (log_.mode() != EventLog::Mode::kOff) {
    log_.Open(static_cast<uint32_t>(&shard - shards_), &shard.log, &shard.next_event);
  }
  for (AccountId account = 0; account < kAccounts; ++account) {
    shard.accounts[account].SetEpoch(common_[account].epoch, shard.next_event != nullptr);
  }
}

void Ledger::CloseLog(Shard& shard) const {
  if (shard.next_event != nullptr) log_.Close(&shard.log, shard.next_event);
  shard.next_event = nullptr;
}

int64_t Ledger::CollectEvents() {
  const int64_t until = MonotonicNanos();
  uint32_t shards;
  {
    SpinLockHolder hold(all_lock_);
    if (log_.mode() == EventLog::Mode::kOff) return 0;
    shards = made_.load(std::memory_order_relaxed);
  }
  ForEachShardOf(shards, [&](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS {
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
  LockAll();
  MarkInstant(&instant, &mode);
  UnlockAll();
  return instant;
}

uint32_t Ledger::CopyOpenEvents(uint32_t number, RecordedEvent* events, uint64_t* serial) {
  Shard& shard = shards_[number];
  SpinLockHolder hold(shard.lock);
  *serial = log_.last_serial();
  const EventBuffer* const buffer = shard.next_event == nullptr ? nullptr : shard.log.buffer;
  if (buffer == nullptr) return 0;
  const auto count = static_cast<uint32_t>(shard.next_event - buffer->events);
  std::copy_n(buffer->events, count, events);
  return count;
}

void Ledger::LogOnly(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) {
  Shard* const shard = ShardOfThisThread();
  if (shard == nullptr) return;
  SpinLockHolder hold(shard->lock);
  if (shard->next_event == nullptr) return;
  WriteEvent(*shard, {log_.TimeInShard(&shard->log), id, bytes, site, 0, kind, false});
}

}  // namespace hbmprof::internal
