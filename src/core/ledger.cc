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

Ledger::Shard* Ledger::ShardFor(SiteId site, SiteId other) {
  if (Shard* own = ShardOfThisThread(); own != nullptr) {
    SpinLockHolder hold(own->lock);
    if (CellOf(*own, site) != nullptr && (other == kNoSite || CellOf(*own, other) != nullptr)) return own;
  }
  Shard* found = nullptr;
  ForEachActiveShard([&](Shard& shard) {
    if (ExistingCellOf(shard, site) == nullptr) return;
    if (other == kNoSite || ExistingCellOf(shard, other) != nullptr) found = &shard;
  });
  return found;
}

Ledger::Entered Ledger::EnterSlow(Event event, SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const Site& record = sites_.At(site);
  const AccountId account_id = record.account;
  const SiteId parent = record.key.parent;
  const bool has_parent = parent != kNoSite;
  Shard* const shard = ShardFor(site, parent);
  if (shard == nullptr) return kNotEntered;
  Account& account = shard->accounts[account_id];
  {
    SpinLockHolder hold(shard->lock);
    // A block takes its bytes from its segment: nothing is added to the account.
    if (has_parent || event == Event::kFree || account.headroom >= bytes) {
      return Apply(*shard, event, account, record.is_segment, bytes, CellOf(*shard, site),
                   has_parent ? CellOf(*shard, parent) : nullptr);
    }
  }

  LockAll();
  int64_t in_use = 0;
  int64_t shards = 0;
  ForEachActiveShard([&](Shard& active) {
    in_use += active.accounts[account_id].in_use();
    ++shards;
  });
  const int64_t slack = peaks_[account_id] - in_use - bytes;
  // What stays free below the peak is shared out evenly; the event's own bytes come on top for this shard.
  const int64_t share = std::max<int64_t>(slack, 0) / shards;
  ForEachActiveShard([&](Shard& active) { active.accounts[account_id].SetHeadroom(share); });
  account.SetHeadroom(share + bytes);
  const Entered entered = Apply(*shard, event, account, record.is_segment, bytes, CellOf(*shard, site), nullptr);
  if (slack < 0) BeginPeak(account_id, in_use + bytes);
  UnlockAll();
  return entered;
}

void Ledger::BeginPeak(AccountId account, int64_t bytes) {
  peaks_[account] = bytes;
  ForEachActiveShard([&](Shard& shard) { ++shard.accounts[account].epoch; });
}

bool Ledger::Move(SiteId from, SiteId to, int64_t bytes) {
  Shard* const shard = ShardFor(from, to);
  if (shard == nullptr) return false;
  Account& account = shard->accounts[sites_.At(from).account];
  SpinLockHolder hold(shard->lock);
  Cell* from_cell = CellOf(*shard, from);
  Cell* to_cell = CellOf(*shard, to);
  Touch(from_cell, account);
  Touch(to_cell, account);
  --from_cell->alloc_objects;
  from_cell->alloc_bytes -= bytes;
  ++to_cell->alloc_objects;
  to_cell->alloc_bytes += bytes;
  if (sites_.At(to).is_segment) account.pool_bytes += bytes;
  CountEvent(*shard, 0);
  return true;
}

bool Ledger::EnterFreed(SiteId site, int64_t bytes) {
  Shard* const shard = ShardFor(site, kNoSite);
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
#ifdef HBMPROF_TRACE_LEDGER
  TraceLedger();
#endif
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
#ifdef HBMPROF_TRACE_LEDGER
  TraceLedger();
#endif
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
