#include "src/core/ledger.h"

#include <unistd.h>

#include <algorithm>

#include "src/base/pages.h"
#include "src/base/thread_state.h"

namespace hbmprof::internal {
namespace {

int ShardCount(int max_shards) {
  const int64_t wanted = std::clamp<int64_t>(2 * sysconf(_SC_NPROCESSORS_CONF), 16, max_shards);
  int count = 1;
  while (count < wanted) count *= 2;
  return count;
}

void Trace() {
#ifdef HBMPROF_TRACE_LEDGER
  TraceLedger();
#endif
}

}  // namespace

Ledger::Ledger(const SiteTable& sites, int flush_every)
    : sites_(sites),
      flush_every_(flush_every),
      shard_count_(ShardCount(kMaxShards)),
      shards_(static_cast<Shard*>(MapPages(sizeof(Shard) * static_cast<size_t>(shard_count_)))) {
  for (Peak& peak : peaks_) peak.epoch = 1;
}

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

bool Ledger::Activate(int index) {
  SpinLockHolder hold(all_lock_);
  Shard& shard = shards_[index];
  if (shard.chunks == nullptr) {
    shard.chunks = static_cast<std::atomic<Cell*>*>(
        MapPages((sites_.max_sites() / (1u << kChunkBits) + 1) * sizeof(std::atomic<Cell*>)));
    if (shard.chunks == nullptr) return false;
  }
  active_.fetch_or(uint64_t{1} << index, std::memory_order_release);
  return true;
}

Ledger::Cell* Ledger::CellOf(Shard& shard, SiteId site) const {
  std::atomic<Cell*>& chunk = shard.chunks[site >> kChunkBits];
  Cell* cells = chunk.load(std::memory_order_relaxed);
  if (cells == nullptr) {
    cells = static_cast<Cell*>(MapPages(sizeof(Cell) << kChunkBits));
    if (cells == nullptr) return nullptr;
    chunk.store(cells, std::memory_order_relaxed);
  }
  return cells + (site & ((1u << kChunkBits) - 1));
}

const Ledger::Cell* Ledger::ExistingCellOf(const Shard& shard, SiteId site) const {
  const Cell* cells = shard.chunks[site >> kChunkBits].load(std::memory_order_relaxed);
  return cells == nullptr ? nullptr : cells + (site & ((1u << kChunkBits) - 1));
}

void Ledger::Touch(Cell* cell, AccountId account) const {
  const uint64_t epoch = peaks_[account].epoch;
  if (cell->epoch == epoch) return;
  cell->peak_objects = cell->inuse_objects;
  cell->peak_bytes = cell->inuse_bytes;
  cell->epoch = epoch;
}

void Ledger::Apply(Shard& shard, Event event, const SiteKey& key, int64_t bytes, Cell* cell, Cell* parent_cell) {
  const AccountId account_id = AccountOf(key.attributes);
  Account& account = shard.accounts[account_id];
  const bool adds = event != Event::kFree;
  const int64_t one = adds ? 1 : -1;
  const int64_t signed_bytes = adds ? bytes : -bytes;
  Touch(cell, account_id);
  cell->inuse_objects += one;
  cell->inuse_bytes += signed_bytes;
  if (event == Event::kAlloc) {
    ++cell->alloc_objects;
    cell->alloc_bytes += bytes;
    ++account.num_allocs;
    account.largest_alloc = std::max(account.largest_alloc, bytes);
  }
  account.num_live += one;
  if (parent_cell != nullptr) {
    Touch(parent_cell, account_id);
    parent_cell->inuse_bytes -= signed_bytes;
    account.block_bytes += signed_bytes;
  } else {
    account.in_use += signed_bytes;
    account.headroom -= signed_bytes;
    if (key.attributes.kind == MemoryKind::kPool) account.pool_bytes += signed_bytes;
  }
  CountEvent(shard, one);
}

void Ledger::CountEvent(Shard& shard, int64_t records) {
  shard.unflushed_records += records;
  if (++shard.unflushed_events >= flush_every_) {
    live_records_.fetch_add(shard.unflushed_records, std::memory_order_relaxed);
    shard.unflushed_records = 0;
    shard.unflushed_events = 0;
  }
  Trace();
}

Ledger::Shard* Ledger::ShardOfThisThread() {
  if (shards_ == nullptr) return nullptr;
  const int index = static_cast<int>(ThreadIndex()) & (shard_count_ - 1);
  if ((active_.load(std::memory_order_acquire) >> index & 1) == 0 && !Activate(index)) return nullptr;
  return &shards_[index];
}

bool Ledger::Enter(Event event, SiteId site, int64_t bytes) {
  Shard* own = ShardOfThisThread();
  if (own == nullptr) return false;
  Shard& shard = *own;
  const SiteKey& key = sites_.Key(site);
  const bool adds = event != Event::kFree;
  {
    SpinLockHolder hold(shard.lock);
    Cell* cell = CellOf(shard, site);
    Cell* parent = key.parent == kNoSite ? nullptr : CellOf(shard, key.parent);
    const bool have_cells = cell != nullptr && (parent != nullptr || key.parent == kNoSite);
    if (have_cells) {
      if (parent != nullptr || !adds || shard.accounts[AccountOf(key.attributes)].headroom >= bytes) {
        Apply(shard, event, key, bytes, cell, parent);
        return true;
      }
    } else if (adds) {
      return false;
    }
  }
  return EnterSlow(shard, event, site, key, bytes);
}

bool Ledger::EnterSlow(Shard& own, Event event, SiteId site, const SiteKey& key, int64_t bytes)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  LockAll();
  const bool adds = event != Event::kFree;
  if (!adds) {
    // No memory for a cell in this thread's shard. The shard through which the buffer was allocated has one.
    bool done = false;
    ForEachActiveShard([&](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (done || ExistingCellOf(shard, site) == nullptr) return;
      if (key.parent != kNoSite && ExistingCellOf(shard, key.parent) == nullptr) return;
      Apply(shard, event, key, bytes, CellOf(shard, site),
            key.parent == kNoSite ? nullptr : CellOf(shard, key.parent));
      done = true;
    });
    UnlockAll();
    return done;
  }

  const AccountId account = AccountOf(key.attributes);
  Peak& peak = peaks_[account];
  int64_t in_use = 0;
  int64_t shards = 0;
  ForEachActiveShard([&](Shard& shard) {
    in_use += shard.accounts[account].in_use;
    ++shards;
  });
  const int64_t slack = peak.bytes - in_use - bytes;
  // What stays free below the peak is shared out evenly; the event's own bytes come on top for this shard.
  const int64_t share = std::max<int64_t>(slack, 0) / shards;
  ForEachActiveShard([&](Shard& shard) { shard.accounts[account].headroom = share; });
  own.accounts[account].headroom += bytes;
  Apply(own, event, key, bytes, CellOf(own, site), nullptr);
  if (slack < 0) {
    peak.bytes = in_use + bytes;
    ++peak.epoch;
  }
  UnlockAll();
  return true;
}

bool Ledger::MoveToPool(SiteId from, SiteId to, int64_t bytes) {
  Shard* shard = ShardOfThisThread();
  if (shard == nullptr) return false;
  const AccountId account = AccountOf(sites_.Key(from).attributes);
  SpinLockHolder hold(shard->lock);
  Cell* from_cell = CellOf(*shard, from);
  Cell* to_cell = CellOf(*shard, to);
  if (from_cell == nullptr || to_cell == nullptr) return false;
  Touch(from_cell, account);
  Touch(to_cell, account);
  --from_cell->alloc_objects;
  --from_cell->inuse_objects;
  from_cell->alloc_bytes -= bytes;
  from_cell->inuse_bytes -= bytes;
  ++to_cell->alloc_objects;
  ++to_cell->inuse_objects;
  to_cell->alloc_bytes += bytes;
  to_cell->inuse_bytes += bytes;
  shard->accounts[account].pool_bytes += bytes;
  CountEvent(*shard, 0);
  return true;
}

AccountTotals Ledger::SumOf(AccountId account) const {
  AccountTotals totals;
  totals.peak_bytes_in_use = peaks_[account].bytes;
  ForEachActiveShard([&](const Shard& shard) {
    const Account& part = shard.accounts[account];
    totals.bytes_in_use += part.in_use;
    totals.num_allocs += part.num_allocs;
    totals.num_live += part.num_live;
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
  Trace();
  for (AccountId account = 0; account < kAccounts; ++account) (*accounts)[account] = SumOf(account);
  ForEachActiveShard([&](const Shard& shard) {
    for (SiteId start = 0; start < sites->size(); start += 1u << kChunkBits) {
      const Cell* cell = ExistingCellOf(shard, start);
      if (cell == nullptr) continue;
      const SiteId end = std::min<SiteId>(static_cast<SiteId>(sites->size()), start + (1u << kChunkBits));
      for (SiteId site = start; site < end; ++site, ++cell) {
        if (cell->epoch == 0) continue;
        SiteTotals& totals = (*sites)[site];
        const bool changed = cell->epoch == peaks_[AccountOf(sites_.Key(site).attributes)].epoch;
        totals.alloc_objects += cell->alloc_objects;
        totals.alloc_bytes += cell->alloc_bytes;
        totals.inuse_objects += cell->inuse_objects;
        totals.inuse_bytes += cell->inuse_bytes;
        totals.peak_objects += changed ? cell->peak_objects : cell->inuse_objects;
        totals.peak_bytes += changed ? cell->peak_bytes : cell->inuse_bytes;
      }
    }
  });
  UnlockAll();
}

void Ledger::ResetPeak(AccountId account) {
  LockAll();
  Peak& peak = peaks_[account];
  peak.bytes = SumOf(account).bytes_in_use;
  ++peak.epoch;
  ForEachActiveShard([&](Shard& shard) { shard.accounts[account].headroom = 0; });
  Trace();
  UnlockAll();
}

void Ledger::Clear() {
  for (Peak& peak : peaks_) peak = {0, 1};
  live_records_.store(0, std::memory_order_relaxed);
  ForEachActiveShard([&](Shard& shard) {
    shard.unflushed_events = 0;
    shard.unflushed_records = 0;
    std::fill(std::begin(shard.accounts), std::end(shard.accounts), Account{});
    for (SiteId start = 0; start < sites_.size(); start += 1u << kChunkBits) {
      Cell* cells = shard.chunks[start >> kChunkBits].load(std::memory_order_relaxed);
      if (cells != nullptr) DiscardPages(cells, sizeof(Cell) << kChunkBits);
    }
  });
}

}  // namespace hbmprof::internal
