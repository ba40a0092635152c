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
void Ledger::ForEachActiveShard(const Visit& visit) const {
  for (uint64_t rest = active_.load(std::memory_order_relaxed); rest != 0; rest &= rest - 1) {
    visit(shards_[__builtin_ctzll(rest)]);
  }
}

void Ledger::LockAll() const {
  all_lock_.Lock();
  ForEachActiveShard([](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Lock(); });
}

void Ledger::UnlockAll() const {
  ForEachActiveShard([](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { shard.lock.Unlock(); });
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
  cell->account = record.is_plain ? &shard.accounts[record.account] : nullptr;
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

Ledger::Entered Ledger::EnterSlow(Event event, SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const Site& record = sites_.At(site);
  Shard* const shard = ShardFor(site);
  if (shard == nullptr) return kNotEntered;
  Account& account = shard->accounts[record.account];
  {
    SpinLockHolder hold(shard->lock);
    if (event == Event::kFree || account.headroom >= bytes) {
      return Apply(*shard, event, account, record.is_pool, bytes, CellOf(*shard, site));
    }
  }

  LockAll();
  int64_t in_use;
  const bool is_peak = MakeHeadroom(*shard, record.account, bytes, &in_use);
  const Entered entered = Apply(*shard, event, account, record.is_pool, bytes, CellOf(*shard, site));
  if (is_peak) BeginPeak(record.account, in_use);
  UnlockAll();
  return entered;
}

bool Ledger::MakeHeadroom(Shard& own, AccountId account, int64_t bytes, int64_t* in_use) {
  *in_use = bytes;
  int64_t shards = 0;
  ForEachActiveShard([&](Shard& shard) {
    *in_use += shard.accounts[account].in_use();
    ++shards;
  });
  const int64_t slack = peaks_[account] - *in_use;
  // What stays free below the peak is shared out evenly; the event's own bytes come on top for this shard.
  const int64_t share = std::max<int64_t>(slack, 0) / shards;
  ForEachActiveShard([&](Shard& shard) { shard.accounts[account].SetHeadroom(share); });
  own.accounts[account].SetHeadroom(share + bytes);
  return slack < 0;
}

void Ledger::BeginPeak(AccountId account, int64_t bytes) {
  peaks_[account] = bytes;
  ForEachActiveShard([&](Shard& shard) { ++shard.accounts[account].epoch; });
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
  if (ledger_.CellOf(*own_, site) != nullptr) return true;
  if (scope_ != Scope::kAllShards) return false;
  // A site that events can be entered of has a cell in some shard.
  bool has_cell = false;
  ledger_.ForEachActiveShard(
      [&](const Shard& shard) { has_cell = has_cell || ledger_.ExistingCellOf(shard, site) != nullptr; });
  return has_cell;
}

Ledger::Cell& Ledger::Change::Changed(SiteId site) {
  has_event_ = true;
  account_ = ledger_.sites_.At(site).account;
  const Shard* with_cell = own_;
  Cell* cell = ledger_.ExistingCellOf(*own_, site);
  if (cell == nullptr) {
    ledger_.ForEachActiveShard([&](const Shard& shard) {
      Cell* found = ledger_.ExistingCellOf(shard, site);
      if (found == nullptr) return;
      cell = found;
      with_cell = &shard;
    });
  }
  Touch(cell, with_cell->accounts[account_]);
  return *cell;
}

void Ledger::Change::Enter(Event event, SiteId site, int64_t bytes) {
  Cell& cell = Changed(site);
  Count(event, own_->accounts[account_], bytes, &cell);
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
  Account& account = own_->accounts[account_];
  account.largest_alloc = std::max(account.largest_alloc, new_bytes);
  in_use_ += new_bytes - old_bytes;
}

Ledger::Entered Ledger::Change::Complete() {
  if (!is_held_) return kEntered;
  is_held_ = false;
  Entered entered = kEntered;
  if (has_event_) {
    Account& account = own_->accounts[account_];
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

bool Ledger::EnterFreed(SiteId site, int64_t bytes) {
  Shard* const shard = ShardFor(site);
  if (shard == nullptr) return false;
  SpinLockHolder hold(shard->lock);
  Cell* cell = CellOf(*shard, site);
  Account& account = shard->accounts[sites_.At(site).account];
  Touch(cell, account);
  ++cell->alloc_objects;
  cell->alloc_bytes += bytes;
  ++cell->freed_objects;
  cell->freed_bytes += bytes;
  ++account.num_allocs;
  ++account.num_frees;
  account.largest_alloc = std::max(account.largest_alloc, bytes);
  CountEvent(*shard, 0);
  return true;
}

AccountTotals Ledger::SumOf(AccountId account) const {
  AccountTotals totals;
  totals.peak_bytes_in_use = peaks_[account];
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
  LockAll();
  const AccountTotals totals = SumOf(account);
  UnlockAll();
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

void Ledger::Snapshot(std::vector<SiteTotals>* sites, std::vector<AccountTotals>* accounts) const {
  accounts->assign(kAccounts, {});
  // Room for all sites is made before the locks are taken. Sites are added meanwhile, so there may be too little.
  SiteId count;
  for (;;) {
    sites->assign(sites_.size() + 1024, {});
    LockAll();
    count = sites_.size();
    if (count <= sites->size()) break;
    UnlockAll();
  }
  sites->resize(count);
  TraceLedger();
  for (AccountId account = 0; account < kAccounts; ++account) (*accounts)[account] = SumOf(account);
  ForEachActiveShard([&](const Shard& shard) {
    for (SiteId start = 0; start < sites->size(); start += 1u << kChunkBits) {
      const Cell* cell = ExistingCellOf(shard, start);
      if (cell == nullptr) continue;
      const SiteId end = std::min<SiteId>(static_cast<SiteId>(sites->size()), start + (1u << kChunkBits));
      for (SiteId site = start; site < end; ++site, ++cell) {
        if (cell->is_zero()) continue;
        SiteTotals& totals = (*sites)[site];
        const bool changed = cell->epoch == shard.accounts[sites_.At(site).account].epoch;
        totals.alloc_objects += cell->alloc_objects;
        totals.alloc_bytes += cell->alloc_bytes;
        totals.inuse_objects += cell->inuse_objects();
        totals.inuse_bytes += cell->inuse_bytes();
        totals.peak_objects += changed ? cell->peak_objects : cell->inuse_objects();
        totals.peak_bytes += changed ? cell->peak_bytes : cell->inuse_bytes();
      }
    }
  });
  UnlockAll();
}

void Ledger::ResetPeak(AccountId account) {
  LockAll();
  BeginPeak(account, SumOf(account).bytes_in_use);
  ForEachActiveShard([&](Shard& shard) { shard.accounts[account].SetHeadroom(0); });
  TraceLedger();
  UnlockAll();
}

void Ledger::Clear() {
  std::fill(std::begin(peaks_), std::end(peaks_), 0);
  live_records_.store(0, std::memory_order_relaxed);
  ForEachActiveShard([&](Shard& shard) {
    shard.unflushed_records = 0;
    std::fill(std::begin(shard.accounts), std::end(shard.accounts), Account{});
    for (SiteId start = 0; start < sites_.size(); start += 1u << kChunkBits) {
      Cell* cells = shard.chunks[start >> kChunkBits].load(std::memory_order_relaxed);
      if (cells != nullptr) DiscardPages(cells, sizeof(Cell) << kChunkBits);
    }
  });
}

}  // namespace hbmprof::internal
