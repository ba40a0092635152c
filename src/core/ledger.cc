#include "src/core/ledger.h"

#include <unistd.h>

#include <algorithm>

#include "src/base/pages.h"

namespace hbmprof::internal {
namespace {

int ShardCount(int max_shards) {
  const int64_t wanted = std::clamp<int64_t>(2 * sysconf(_SC_NPROCESSORS_CONF), 16, max_shards);
  int count = 1;
  while (count < wanted) count *= 2;
  return count;
}

}  // namespace

Ledger::Ledger(const SiteTable& sites, int flush_every)
    : sites_(sites),
      usual_flush_every_(flush_every),
      flush_every_(flush_every),
      shard_count_(ShardCount(kMaxShards)),
      shards_(static_cast<Shard*>(MapPages(sizeof(Shard) * static_cast<size_t>(shard_count_)))) {}

Ledger::~Ledger() {
  if (shards_ == nullptr) return;
  const size_t chunk_count = sites_.max_sites() / (1u << kChunkBits) + 1;
  ForEachActiveShard([&](Shard& shard) {
    for (size_t i = 0; i < chunk_count; ++i) {
      UnmapPages(shard.chunks[i].load(std::memory_order_relaxed), sizeof(Cell) << kChunkBits);
    }
    UnmapPages(shard.chunks, chunk_count * sizeof(std::atomic<Cell*>));
  });
  UnmapPages(shards_, sizeof(Shard) * static_cast<size_t>(shard_count_));
}

template <typename Visit>
void Ledger::ForEachShardOf(uint64_t shards, const Visit& visit) const {
  for (; shards != 0; shards &= shards - 1) visit(shards_[__builtin_ctzll(shards)]);
}

template <typename Visit>
void Ledger::ForEachActiveShard(const Visit& visit) const {
  ForEachShardOf(active_.load(std::memory_order_relaxed), visit);
}

void Ledger::LockAll() const {
  all_lock_.Lock();
  ForEachActiveShard([](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Lock(); });
}

void Ledger::UnlockAll() const {
  ForEachActiveShard([](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Unlock(); });
  all_lock_.Unlock();
}

uint64_t Ledger::LockAccount(AccountId account, const Shard* own) const {
  all_lock_.Lock();
  const uint64_t locked = common_[account].active | (own == nullptr ? 0 : Bit(shards_, *own));
  ForEachShardOf(locked, [](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Lock(); });
  return locked;
}

void Ledger::UnlockAccount(uint64_t locked) const {
  ForEachShardOf(locked, [](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Unlock(); });
  all_lock_.Unlock();
}

Ledger::Shard* Ledger::Activate() {
  if (shards_ == nullptr) return nullptr;
  const uint32_t thread_number = ThreadNumber();
  const uint32_t number = thread_number % static_cast<uint32_t>(shard_count_);
  Shard* shard = &shards_[number];
  SpinLockHolder hold(all_lock_);
  if (shard->chunks == nullptr) {
    shard->chunks = static_cast<std::atomic<Cell*>*>(
        MapPages((sites_.max_sites() / (1u << kChunkBits) + 1) * sizeof(std::atomic<Cell*>)));
    if (shard->chunks == nullptr) return nullptr;
  }
  active_.fetch_or(uint64_t{1} << number, std::memory_order_release);
  shard_of_[thread_number].store(shard, std::memory_order_release);
  return shard;
}

Ledger::Cell* Ledger::CellOf(Shard& shard, SiteId site) const {
  std::atomic<Cell*>& chunk = shard.chunks[site >> kChunkBits];
  Cell* cells = chunk.load(std::memory_order_relaxed);
  if (cells == nullptr) {
    cells = static_cast<Cell*>(MapPages(sizeof(Cell) << kChunkBits));
    if (cells == nullptr) return nullptr;
    chunk.store(cells, std::memory_order_relaxed);
  }
  Cell* cell = cells + (site & ((1u << kChunkBits) - 1));
  const Site& record = sites_.At(site);
  Account& account = shard.accounts[record.account];
  cell->account = record.is_plain && account.epoch != 0 ? &account : nullptr;
  return cell;
}

Ledger::Shard* Ledger::ShardFor(SiteId site) {
  if (Shard* own = ShardOfThisThread(); own != nullptr) {
    SpinLockHolder hold(own->lock);
    if (CellOf(*own, site) != nullptr) return own;
  }
  Shard* found = nullptr;
  ForEachActiveShard([&](Shard& shard) {
    if (ExistingCellOf(shard, site) != nullptr) found = &shard;
  });
  return found;
}

Ledger::Shard* Ledger::AnyShard() {
  Shard* found = ShardOfThisThread();
  if (found == nullptr) ForEachActiveShard([&](Shard& shard) { found = &shard; });
  return found;
}

bool Ledger::TouchFirst(Shard& shard, const Account& account, SiteId site, Cell* cell) {
  if (!account.is_active()) return false;
  const auto number = static_cast<AccountId>(&account - shard.accounts);
  Reading* const reading = shard.reading;
  if (reading != nullptr && site >= shard.unread) {
    SpinLockHolder hold(reading->lock);
    if (site < reading->changed.size()) Reading::Add(*cell, reading->accounts[number], &reading->changed[site]);
  }
  if (cell->epoch < common_[number].peak_epoch) {
    cell->peak_objects = cell->inuse_objects();
    cell->peak_bytes = cell->inuse_bytes();
  }
  cell->epoch = account.epoch;
  return true;
}

void Ledger::Unpark(Shard& shard, AccountId account) {
  Common& common = common_[account];
  Account& part = shard.accounts[account];
  common.parked_in_use -= part.in_use();
  part.SetHeadroom(0);
  part.epoch = common.epoch;
  common.active |= Bit(shards_, shard);
  common.is_used = true;
}

Ledger::Entered Ledger::EnterSlow(Event event, SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const Site& record = sites_.At(site);
  Shard* const shard = ShardFor(site);
  if (shard == nullptr) return kNotEntered;
  Account& account = shard->accounts[record.account];
  {
    SpinLockHolder hold(shard->lock);
    Cell* cell = CellOf(*shard, site);
    if ((event == Event::kFree || account.headroom >= bytes) && account.is_active() &&
        Touch(*shard, account, site, cell)) {
      return Apply(*shard, event, account, record.is_pool, bytes, cell);
    }
  }

  const uint64_t locked = LockAccount(record.account, shard);
  if (!account.is_active()) Unpark(*shard, record.account);
  int64_t in_use;
  const bool is_peak = event != Event::kFree && MakeHeadroom(*shard, record.account, bytes, &in_use);
  Cell* cell = CellOf(*shard, site);
  Touch(*shard, account, site, cell);
  const Entered entered = Apply(*shard, event, account, record.is_pool, bytes, cell);
  if (is_peak) BeginPeak(record.account, in_use);
  UnlockAccount(locked);
  return entered;
}

bool Ledger::MakeHeadroom(Shard& own, AccountId account, int64_t bytes, int64_t* in_use) {
  Common& common = common_[account];
  const uint64_t bit_of_own = Bit(shards_, own);
  *in_use = bytes;
  int64_t shards = 0;
  ForEachShardOf(common.active, [&](Shard& shard) {
    Account& part = shard.accounts[account];
    int64_t& events_before = shard.events_when_shared[account];
    if (part.events() == events_before && &shard != &own) {
      common.active &= ~Bit(shards_, shard);
      common.parked_in_use += part.in_use();
      part.Park();
      return;
    }
    events_before = part.events();
    *in_use += part.in_use();
    ++shards;
  });
  *in_use += common.parked_in_use;
  const int64_t slack = common.peak - *in_use;
  // What stays free below the peak is shared out evenly; the event's own bytes come on top for this shard.
  const int64_t share = std::max<int64_t>(slack, 0) / shards;
  ForEachShardOf(common.active & ~bit_of_own, [&](Shard& shard) { shard.accounts[account].SetHeadroom(share); });
  own.accounts[account].SetHeadroom(share + bytes);
  return slack < 0;
}

void Ledger::BeginPeak(AccountId account, int64_t bytes) {
  common_[account].peak = bytes;
  BeginEpoch(account);
  common_[account].peak_epoch = common_[account].epoch;
}

void Ledger::BeginEpoch(AccountId account) const {
  Common& common = common_[account];
  ++common.epoch;
  ForEachShardOf(common.active, [&](Shard& shard) { shard.accounts[account].epoch = common.epoch; });
}

Ledger::Change::Change(Ledger& ledger, Scope scope) : ledger_(ledger), scope_(scope), own_(ledger.AnyShard()) {
  if (own_ == nullptr) {
    is_held_ = false;
  } else if (scope == Scope::kAllShards) {
    ledger.LockAll();
  } else {
    own_->lock.Lock();
  }
}

Ledger::Change::~Change() { Complete(); }

bool Ledger::Change::Prepare(SiteId site) {
  if (ledger_.CellOf(*own_, site) != nullptr) {
    return holds_all() || own_->accounts[ledger_.sites_.At(site).account].is_active();
  }
  if (!holds_all()) return false;
  // A site that events can be entered of has a cell in some shard.
  bool has_cell = false;
  ledger_.ForEachActiveShard(
      [&](const Shard& shard) { has_cell = has_cell || ledger_.ExistingCellOf(shard, site) != nullptr; });
  return has_cell;
}

Ledger::Cell& Ledger::Change::Changed(SiteId site) {
  has_event_ = true;
  account_ = ledger_.sites_.At(site).account;
  Shard* with_cell = own_;
  Cell* cell = ledger_.ExistingCellOf(*own_, site);
  if (cell == nullptr) {
    ledger_.ForEachActiveShard([&](Shard& shard) {
      Cell* found = ledger_.ExistingCellOf(shard, site);
      if (found == nullptr) return;
      cell = found;
      with_cell = &shard;
    });
  }
  // Where the change holds its own shard only, Prepare has found the account active there.
  if (!with_cell->accounts[account_].is_active()) ledger_.Unpark(*with_cell, account_);
  ledger_.Touch(*with_cell, with_cell->accounts[account_], site, cell);
  return *cell;
}

Ledger::Account& Ledger::Change::OwnAccount() {
  Account& account = own_->accounts[account_];
  // The account's cells may all be in other shards.
  if (!account.is_active()) ledger_.Unpark(*own_, account_);
  return account;
}

void Ledger::Change::Enter(Event event, SiteId site, int64_t bytes) {
  Cell& cell = Changed(site);
  Count(event, OwnAccount(), bytes, &cell);
  in_use_ += event == Event::kFree ? -bytes : bytes;
  records_ += event == Event::kFree ? -1 : 1;
}

void Ledger::Change::Charge(SiteId site, int64_t bytes) {
  Changed(site).freed_bytes += bytes;
  in_use_ -= bytes;
}

void Ledger::Change::Move(SiteId from, SiteId to, int64_t old_bytes, int64_t new_bytes) {
  Cell& cell_from = Changed(from);
  --cell_from.alloc_objects;
  cell_from.alloc_bytes -= old_bytes;
  Cell& cell_to = Changed(to);
  ++cell_to.alloc_objects;
  cell_to.alloc_bytes += std::max(old_bytes, new_bytes);
  cell_to.freed_bytes += std::max<int64_t>(old_bytes - new_bytes, 0);
  Account& account = OwnAccount();
  account.largest_alloc = std::max(account.largest_alloc, new_bytes);
  in_use_ += new_bytes - old_bytes;
}

Ledger::Entered Ledger::Change::Complete() {
  if (!is_held_) return kEntered;
  is_held_ = false;
  Entered entered = kEntered;
  if (has_event_) {
    Account& account = OwnAccount();
    int64_t in_use = 0;
    const bool is_peak =
        in_use_ > 0 && scope_ == Scope::kAllShards && ledger_.MakeHeadroom(*own_, account_, in_use_, &in_use);
    account.headroom -= in_use_;
    account.pool_bytes += pool_bytes_;
    account.block_bytes += block_bytes_;
    if (is_peak) ledger_.BeginPeak(account_, in_use);
    entered = ledger_.CountEvent(*own_, records_);
  }
  if (scope_ == Scope::kAllShards) {
    ledger_.UnlockAll();
  } else {
    own_->lock.Unlock();
  }
  return entered;
}

bool Ledger::EnterFreed(SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Shard* const shard = ShardFor(site);
  if (shard == nullptr) return false;
  const AccountId number = sites_.At(site).account;
  Account& account = shard->accounts[number];
  const auto count = [&](Cell* cell) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    ++cell->alloc_objects;
    cell->alloc_bytes += bytes;
    ++cell->freed_objects;
    cell->freed_bytes += bytes;
    ++account.num_allocs;
    ++account.num_frees;
    account.largest_alloc = std::max(account.largest_alloc, bytes);
    CountEvent(*shard, 0);
  };
  {
    SpinLockHolder hold(shard->lock);
    Cell* cell = CellOf(*shard, site);
    if (account.is_active() && Touch(*shard, account, site, cell)) {
      count(cell);
      return true;
    }
  }
  const uint64_t locked = LockAccount(number, shard);
  if (!account.is_active()) Unpark(*shard, number);
  Cell* cell = CellOf(*shard, site);
  Touch(*shard, account, site, cell);
  count(cell);
  UnlockAccount(locked);
  return true;
}

AccountTotals Ledger::SumOf(AccountId account) const {
  AccountTotals totals;
  totals.peak_bytes_in_use = common_[account].peak;
  ForEachActiveShard([&](const Shard& shard) {
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
  // Where the account is parked, it changes with all_lock_ held only.
  const uint64_t locked = LockAccount(account, nullptr);
  const AccountTotals totals = SumOf(account);
  UnlockAccount(locked);
  return totals;
}

int64_t Ledger::CountLive() const {
  int64_t live = 0;
  LockAll();
  ForEachActiveShard([&](const Shard& shard) {
    for (const Account& account : shard.accounts) live += account.num_allocs - account.num_frees;
  });
  UnlockAll();
  return live;
}

void Ledger::Reading::Add(const Cell& cell, const Instant& instant, SiteTotals* totals) {
  if (cell.epoch >= instant.epoch) return;
  const bool has_changed_since_peak = cell.epoch >= instant.peak_epoch;
  totals->alloc_objects += cell.alloc_objects;
  totals->alloc_bytes += cell.alloc_bytes;
  totals->inuse_objects += cell.inuse_objects();
  totals->inuse_bytes += cell.inuse_bytes();
  totals->peak_objects += has_changed_since_peak ? cell.peak_objects : cell.inuse_objects();
  totals->peak_bytes += has_changed_since_peak ? cell.peak_bytes : cell.inuse_bytes();
}

void Ledger::Snapshot(std::vector<SiteTotals>* sites, std::vector<AccountTotals>* accounts) const {
  accounts->assign(kAccounts, {});
  Reading reading;
  std::vector<uint8_t> account_of;
  static_assert(kAccounts <= 256, "an account fits in a byte");
  SpinLockHolder one_at_a_time(reading_lock_);
  // Memory for all sites is made before the locks are taken. Sites are added meanwhile, so there may be too little;
  // then there is more for the next attempt. Nothing is allocated between LockAll and the end of ReadCells.
  SiteId count;
  for (SiteId spare = 1024;; spare *= 2) {
    sites->assign(sites_.size() + spare, {});
    account_of.assign(sites->size(), 0);
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
    if (!common_[account].is_used) continue;
    (*accounts)[account] = SumOf(account);
    BeginEpoch(account);
    reading.accounts[account] = {common_[account].epoch, common_[account].peak_epoch};
  }
  const uint64_t shards = active_.load(std::memory_order_relaxed);
  ForEachShardOf(shards, [&](Shard& shard) {
    shard.reading = &reading;
    shard.unread = 0;
  });
  UnlockAll();

  sites->resize(count);
  for (SiteId site = 0; site < count; ++site) account_of[site] = static_cast<uint8_t>(sites_.At(site).account);
  ReadCells(shards, account_of, &reading, sites);
  SpinLockHolder hold(reading.lock);
  for (SiteId site = 0; site < count; ++site) {
    const SiteTotals& changed = reading.changed[site];
    SiteTotals& totals = (*sites)[site];
    totals.alloc_objects += changed.alloc_objects;
    totals.alloc_bytes += changed.alloc_bytes;
    totals.inuse_objects += changed.inuse_objects;
    totals.inuse_bytes += changed.inuse_bytes;
    totals.peak_objects += changed.peak_objects;
    totals.peak_bytes += changed.peak_bytes;
  }
}

// A shard's lock is held for one chunk at a time, some microseconds. The lock is not fair: without the pause between
// two chunks, a thread that waits for it would wait until the whole shard is read.
void Ledger::ReadCells(uint64_t shards, const std::vector<uint8_t>& account_of, Reading* reading,
                       std::vector<SiteTotals>* sites) const {
  constexpr int kPauses = 32;
  const auto count = static_cast<SiteId>(sites->size());
  const auto read_chunk = [&](Shard& shard, SiteId start, SiteId end) {
    SpinLockHolder hold(shard.lock);
    const Cell* cell = ExistingCellOf(shard, start);
    for (SiteId site = start; cell != nullptr && site < end; ++site, ++cell) {
      if (!cell->is_zero()) Reading::Add(*cell, reading->accounts[account_of[site]], &(*sites)[site]);
    }
    shard.unread = end;
    if (end == count) shard.reading = nullptr;
    return cell != nullptr;
  };
  ForEachShardOf(shards, [&](Shard& shard) {
    SiteId start = 0;
    do {
      const SiteId end = std::min<SiteId>(count, start + (1u << kChunkBits));
      const bool has_cells = read_chunk(shard, start, end);
      for (int i = 0; has_cells && i < kPauses; ++i) CpuRelax();
      start = end;
    } while (start < count);
  });
}

void Ledger::ResetPeak(AccountId account) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const uint64_t locked = LockAccount(account, nullptr);
  BeginPeak(account, SumOf(account).bytes_in_use);
  ForEachShardOf(common_[account].active, [&](Shard& shard) { shard.accounts[account].SetHeadroom(0); });
  TraceLedger();
  UnlockAccount(locked);
}

void Ledger::ForgetSnapshotInChild() {
  reading_lock_.Unlock();
  ForEachActiveShard([](Shard& shard) { shard.reading = nullptr; });
}

void Ledger::Clear() {
  std::fill(std::begin(common_), std::end(common_), Common{});
  live_records_.store(0, std::memory_order_relaxed);
  ForgetSnapshotInChild();
  ForEachActiveShard([&](Shard& shard) {
    shard.unflushed_records = 0;
    std::fill(std::begin(shard.accounts), std::end(shard.accounts), Account{});
    std::fill(std::begin(shard.events_when_shared), std::end(shard.events_when_shared), 0);
    for (SiteId start = 0; start < sites_.size(); start += 1u << kChunkBits) {
      Cell* cells = shard.chunks[start >> kChunkBits].load(std::memory_order_relaxed);
      if (cells != nullptr) DiscardPages(cells, sizeof(Cell) << kChunkBits);
    }
  });
}

}  // namespace hbmprof::internal
