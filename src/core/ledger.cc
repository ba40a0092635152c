#include "src/core/ledger.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "src/base/pages.h"
#include "src/base/saturating.h"
#include "src/core/segments.h"

namespace hbmprof::internal {
namespace {

int ShardCount(int max_shards) {
  // Read once: sysconf may call malloc, and a forked child makes its ledgers before malloc may be used (fork.h). Not a
  // constant with a dynamic initialization: another thread may be in that during a fork.
  static std::atomic<int64_t> known_processors{0};
  int64_t processors = known_processors.load(std::memory_order_relaxed);
  if (processors == 0) known_processors.store(processors = sysconf(_SC_NPROCESSORS_CONF), std::memory_order_relaxed);
  const int64_t wanted = std::clamp<int64_t>(2 * processors, 16, max_shards);
  int count = 1;
  while (count < wanted) count *= 2;
  return count;
}

}  // namespace

Ledger::Ledger(const SiteTable& sites, int flush_every, uint32_t min_cached_cells)
    : sites_(sites),
      usual_flush_every_(flush_every),
      flush_every_(flush_every),
      min_cached_cells_(min_cached_cells),
      shard_count_(ShardCount(kMaxShards)),
      shards_(static_cast<Shard*>(MapPages(sizeof(Shard) * static_cast<size_t>(shard_count_)))),
      owners_(static_cast<std::atomic<uint8_t>*>(MapPages(ChunkCount()))) {}

Ledger::~Ledger() {
  ForEachActiveShard([&](Shard& shard) {
    UnmapRetiredPages(shard.cells, BytesOfCells());
    UnmapPages(shard.cache.cells, Cache::BytesOf(shard.cache.count));
  });
  if (owners_ != nullptr) {
    const auto owned = std::count_if(owners_, owners_ + ChunkCount(), [](const auto& owner) { return owner != 0; });
    CountHostBytes(-owned * kChunkBytes);
  }
  UnmapPages(shards_, sizeof(Shard) * static_cast<size_t>(shard_count_));
  UnmapPages(owners_, ChunkCount());
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
  if (shards_ == nullptr || owners_ == nullptr) return nullptr;
  const uint32_t thread_number = ThreadNumber();
  const uint32_t number = thread_number % static_cast<uint32_t>(shard_count_);
  Shard* shard = &shards_[number];
  SpinLockHolder hold(all_lock_);
  if (shard->cells == nullptr) {
    shard->cells = static_cast<Cell*>(ReservePages(BytesOfCells()));
    if (shard->cells == nullptr) return nullptr;
    SpinLockHolder hold_shard(shard->lock);
    shard->log.last_time = last_instant_ + EventClock::kStep;
    OpenLog(*shard);
  }
  active_.fetch_or(uint64_t{1} << number, std::memory_order_release);
  shard_of_[thread_number].store(shard, std::memory_order_release);
  return shard;
}

Ledger::Cell* Ledger::Cache::CellOf(SiteId site) const {
  if (count == 0) return nullptr;
  const SiteId* set = SetOf(site);
  for (uint32_t way = 0; way < kWays; ++way) {
    if (set[way] == site + 1) return cells + (set + way - sites);
  }
  return nullptr;
}

Ledger::Shard* Ledger::MakeOwner(Shard& shard, SiteId site) {
  if (Shard* owner = OwnerOf(site); owner != nullptr) return owner;
  if (!TakeHostBytes(kChunkBytes)) return nullptr;
  owners_[site >> kChunkBits].store(static_cast<uint8_t>(&shard - shards_ + 1), std::memory_order_release);
  return &shard;
}

uint32_t Ledger::CacheSize() const {
  const uint64_t share = uint64_t{sites_.size()} * kCachedCellsPerSite / static_cast<uint64_t>(shard_count_);
  uint32_t count = min_cached_cells_;
  while (2 * count <= share && count < kMaxCachedCells) count *= 2;
  return count;
}

bool Ledger::WantsToCache(Shard& shard, SiteId site) {
  if (shard.cache.count == 0) return true;
  const SiteId* set = shard.cache.SetOf(site);
  const bool has_space = std::find(set, set + Cache::kWays, 0u) != set + Cache::kWays;
  return has_space || ++shard.misses % kMissesPerReplacement == 0;
}

bool Ledger::CacheCell(Shard& shard, SiteId site, bool is_locked) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Cache& cache = shard.cache;
  // Another thread of the same shard may have added the cell since the caller looked for it.
  if (cache.CellOf(site) != nullptr) return true;
  if (const uint32_t size = CacheSize(); cache.count < size) {
    if (!is_locked) shard.lock.Lock();
    // While a snapshot reads the cells by their positions, they must not move.
    if (shard.reading == nullptr) {
      shard.view.Clear();
      GrowCache(&cache, size);
    }
    if (!is_locked) shard.lock.Unlock();
  }
  if (cache.count == 0) return false;
  SiteId* const set = cache.SetOf(site);
  SiteId* slot = std::find(set, set + Cache::kWays, 0u);
  Shard* owner = nullptr;  // of the cell that leaves the cache
  if (slot == set + Cache::kWays) {
    slot = set + cache.next_way;
    owner = OwnerOf(*slot - 1);
  }

  Shard* const locked[] = {owner == nullptr ? &shard : std::min(&shard, owner),
                           owner == nullptr ? nullptr : std::max(&shard, owner)};
  for (Shard* one : locked) {
    if (one != nullptr && !is_locked) one->lock.Lock();
  }
  Cell* const cell = cache.cells + (slot - cache.sites);
  if (owner != nullptr) {
    shard.view.Clear();
    MoveToOwner(shard, *slot - 1, cell, *owner);
    cache.next_way = (cache.next_way + 1) % Cache::kWays;
  }
  *cell = Cell{};
  *slot = site + 1;
  for (Shard* one : locked) {
    if (one != nullptr && !is_locked) one->lock.Unlock();
  }
  return true;
}

void Ledger::GrowCache(Cache* cache, uint32_t count) {
  auto* cells = static_cast<Cell*>(MapPages(Cache::BytesOf(count)));
  if (cells == nullptr) return;
  const Cache grown = {cells, reinterpret_cast<SiteId*>(cells + count), count, 0};
  for (uint32_t i = 0; i < cache->count; ++i) {
    if (cache->sites[i] == 0) continue;
    // Cells that share a set here shared one before, so there is space.
    SiteId* const set = grown.SetOf(cache->sites[i] - 1);
    SiteId* const slot = std::find(set, set + Cache::kWays, 0u);
    *slot = cache->sites[i];
    cells[slot - grown.sites] = cache->cells[i];
  }
  Cell* const old_cells = cache->cells;
  const size_t old_bytes = Cache::BytesOf(cache->count);
  cache->sites = grown.sites;
  cache->next_way = 0;
  cache->cells = grown.cells;
  __atomic_store_n(&cache->count, count, __ATOMIC_RELEASE);  // never more than `cells` has, for the destructor
  UnmapPages(old_cells, old_bytes);
}

void Ledger::MoveToOwner(Shard& shard, SiteId site, Cell* cell, Shard& owner) {
  const AccountId account = sites_.At(site).account;
  Cell* const sum = OwnedCellOf(owner, site);
  BringToEpoch(shard, account, site, cell);
  BringToEpoch(owner, account, site, sum);
  sum->alloc_objects += cell->alloc_objects;
  sum->AddAllocBytes(cell->alloc_bytes);
  sum->freed_objects += cell->freed_objects;
  sum->freed_bytes += cell->freed_bytes;
  sum->peak_objects += cell->peak_objects;
  sum->peak_bytes += cell->peak_bytes;
}

void Ledger::Flush(Shard& shard) {
  // The low bits, with their sign.
  const int64_t change = ((shard.unflushed + kOneEvent / 2) & (kOneEvent - 1)) - kOneEvent / 2;
  live_records_.fetch_add(change, std::memory_order_relaxed);
  shard.unflushed = (flush_every_.load(std::memory_order_relaxed) - 1) * kOneEvent;
}

void Ledger::CountRecords() {
  Shard* const shard = ShardOfThisThread();
  if (shard == nullptr) return;
  SpinLockHolder hold(shard->lock);
  if (shard->unflushed < 0) Flush(*shard);
}

Ledger::Shard* Ledger::ShardFor(SiteId site) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Shard* const own = ShardOfThisThread();
  Shard* owner = OwnerOf(site);
  if (own == nullptr || own == owner) return owner;
  if (owner != nullptr) {
    SpinLockHolder hold(own->lock);
    if (own->cache.CellOf(site) != nullptr) return own;
    if (!WantsToCache(*own, site)) return owner;
  }
  SpinLockHolder hold(all_lock_);
  owner = MakeOwner(*own, site);
  if (owner == nullptr || owner == own) return owner;
  return CacheCell(*own, site, /*is_locked=*/false) ? own : owner;
}

Ledger::Shard* Ledger::AnyShard() {
  Shard* found = ShardOfThisThread();
  if (found == nullptr) ForEachActiveShard([&](Shard& shard) { found = &shard; });
  return found;
}

bool Ledger::TouchFirst(Shard& shard, const Account& account, SiteId site, Cell* cell) {
  if (!account.is_active()) return false;
  BringToEpoch(shard, static_cast<AccountId>(&account - shard.accounts), site, cell);
  return true;
}

void Ledger::BringToEpoch(Shard& shard, AccountId account, SiteId site, Cell* cell) {
  const Common& common = common_[account];
  if (cell->epoch == common.epoch) return;
  if (Reading* const reading = shard.reading; reading != nullptr) {
    const bool is_owned = OwnedCellOf(shard, site) != nullptr;
    const bool is_unread = is_owned ? site >= shard.unread : cell - shard.cache.cells >= shard.unread_cached;
    if (is_unread) {
      SpinLockHolder hold(reading->lock);
      if (site < reading->changed.size()) Reading::Add(*cell, reading->accounts[account], &reading->changed[site]);
    }
  }
  if (cell->epoch < common.peak_epoch) {
    cell->peak_objects = cell->inuse_objects();
    cell->peak_bytes = cell->inuse_bytes();
  }
  cell->epoch = common.epoch;
}

void Ledger::Unpark(Shard& shard, AccountId account) {
  Common& common = common_[account];
  Account& part = shard.accounts[account];
  common.parked_in_use -= part.in_use();
  part.SetHeadroom(0);
  part.SetEpoch(common.epoch, shard.next_event != nullptr);
  common.active |= Bit(shards_, shard);
  common.is_used = true;
}

Ledger::Entered Ledger::EnterSlow(Event event, uint64_t id, SiteId site, int64_t bytes) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (Shard* own = ShardOfThisThread(); own != nullptr) {
    SpinLockHolder hold(own->lock);
    Cell* const cell = own->cache.CellOf(site);
    const Entered entered = cell == nullptr ? kNotEntered : EnterPlain(event, *own, cell, id, site, bytes);
    if (entered != kNotEntered) return entered;
  }
  const Site& record = sites_.At(site);
  // While no lock is held, a cached cell may leave the cache. Then the loop continues with the owner's cell, which
  // always exists.
  for (Shard* shard = ShardFor(site); shard != nullptr; shard = OwnerOf(site)) {
    Account& account = shard->accounts[record.account];
    {
      SpinLockHolder hold(shard->lock);
      Cell* const cell = CellOf(*shard, site);
      if (cell == nullptr) continue;
      if (account.is_active() && account.headroom >= AddedBytes(event, bytes) && Touch(*shard, account, site, cell)) {
        SetAccountWord(record, account, cell);
        Log(*shard, KindOf(event), id, site, bytes);
        return Apply(*shard, event, account, record.is_pool, bytes, cell);
      }
    }

    const uint64_t locked = LockAccount(record.account, shard);
    Cell* const cell = CellOf(*shard, site);
    if (cell == nullptr) {
      UnlockAccount(locked);
      continue;
    }
    if (!account.is_active()) Unpark(*shard, record.account);
    int64_t in_use;
    const int64_t added = AddedBytes(event, bytes);
    const bool is_peak = added > 0 && MakeHeadroom(*shard, record.account, added, &in_use);
    Touch(*shard, account, site, cell);
    SetAccountWord(record, account, cell);
    const int64_t time = LogInstant(locked, *shard, KindOf(event), id, site, bytes);
    const Entered entered = Apply(*shard, event, account, record.is_pool, bytes, cell);
    if (is_peak) BeginPeak(record.account, in_use, time);
    UnlockAccount(locked);
    return entered;
  }
  return kNotEntered;
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
  // The free bytes below the peak are distributed evenly. This shard also gets the bytes of the event.
  const int64_t share = std::max<int64_t>(slack, 0) / shards;
  ForEachShardOf(common.active & ~bit_of_own, [&](Shard& shard) { shard.accounts[account].SetHeadroom(share); });
  own.accounts[account].SetHeadroom(share + bytes);
  return slack < 0;
}

void Ledger::BeginPeak(AccountId account, int64_t bytes, int64_t time) {
  common_[account].peak = bytes;
  common_[account].peak_time = time;
  BeginEpoch(account);
  common_[account].peak_epoch = common_[account].epoch;
}

void Ledger::BeginEpoch(AccountId account) const {
  Common& common = common_[account];
  ++common.epoch;
  ForEachShardOf(common.active,
                 [&](Shard& shard) { shard.accounts[account].SetEpoch(common.epoch, shard.next_event != nullptr); });
}

void Ledger::SegmentView::Clear() {
  if (reserved != 0) SegmentMap::Return(*segment, reserved);
  *this = {};
}

Ledger::Change::Change(Ledger& ledger, Scope scope) : ledger_(ledger), scope_(scope), own_(ledger.AnyShard()) {
  if (own_ == nullptr) return;
  if (scope == Scope::kAllShards) {
    ledger.LockAll();
    ledger.ForEachActiveShard([](Shard& shard) { shard.view.Clear(); });
  } else {
    own_->lock.Lock();
  }
}

bool Ledger::Change::Prepare(SiteId site) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (!holds_all()) {
    return ledger_.CellOf(*own_, site) != nullptr && own_->accounts[ledger_.sites_.At(site).account].is_active();
  }
  const Shard* const owner = ledger_.MakeOwner(*own_, site);
  if (owner == nullptr) return false;
  if (ledger_.CellOf(*own_, site) == nullptr && WantsToCache(*own_, site))
    ledger_.CacheCell(*own_, site, /*is_locked=*/true);
  return true;
}

Ledger::Cell& Ledger::Change::Changed(SiteId site) {
  has_event_ = true;
  const Site& record = ledger_.sites_.At(site);
  account_ = record.account;
  Shard* with_cell = own_;
  Cell* cell = ledger_.CellOf(*own_, site);
  if (cell == nullptr) {
    with_cell = ledger_.OwnerOf(site);
    cell = with_cell->cells + site;
  }
  // If the change holds its own shard only, Prepare has found the account active there.
  if (!with_cell->accounts[account_].is_active()) ledger_.Unpark(*with_cell, account_);
  ledger_.Touch(*with_cell, with_cell->accounts[account_], site, cell);
  SetAccountWord(record, with_cell->accounts[account_], cell);
  return *cell;
}

Ledger::Account& Ledger::Change::OwnAccount() {
  Account& account = own_->accounts[account_];
  // The changed cells may all be in other shards. Then the account may still be parked in this shard.
  if (!account.is_active()) ledger_.Unpark(*own_, account_);
  return account;
}

void Ledger::Change::AddPart(RecordedKind kind, uint64_t id, SiteId site, int64_t bytes) {
  RecordedEvent part = {0, id, bytes, site, 0, kind, true};
  if (has_part_) {
    ledger_.WriteEvent(*own_, part_);
    part.time = part_.time;
  } else if (scope_ == Scope::kAllShards) {
    part.time = ledger_.TimeOfInstant(ledger_.active_.load(std::memory_order_relaxed));
  } else {
    part.time = ledger_.log_.TimeInShard(&own_->log);
  }
  has_part_ = true;
  part_ = part;
}

void Ledger::Change::Enter(Event event, uint64_t id, SiteId site, int64_t bytes) {
  Log(KindOf(event), id, site, bytes);
  Cell& cell = Changed(site);
  Count(event, OwnAccount(), bytes, &cell);
  in_use_ += event == Event::kFree ? -bytes : bytes;
  records_ += event == Event::kFree ? -1 : 1;
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
  Account& account = OwnAccount();
  account.largest_alloc = std::max(account.largest_alloc, new_bytes);
  in_use_ += new_bytes - old_bytes;
}

Ledger::Change::~Change() {
  if (own_ == nullptr) return;
  if (has_event_) {
    Account& account = OwnAccount();
    int64_t in_use = 0;
    const bool is_peak =
        in_use_ > 0 && scope_ == Scope::kAllShards && ledger_.MakeHeadroom(*own_, account_, in_use_, &in_use);
    account.headroom -= in_use_;
    account.pool_bytes += pool_bytes_;
    account.block_bytes += block_bytes_;
    if (is_peak) ledger_.BeginPeak(account_, in_use, part_.time);
    const bool is_many = records_ < -1 || records_ > 1;
    if (is_many) ledger_.live_records_.fetch_add(records_, std::memory_order_relaxed);
    ledger_.CountEvent(*own_, is_many ? 0 : records_);
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

AccountTotals Ledger::SumOf(AccountId account) const {
  AccountTotals totals;
  totals.peak_bytes_in_use = common_[account].peak;
  totals.peak_time = common_[account].peak_time;
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
  // In the shards in which the account is parked, it changes only while all_lock_ is held. So their locks are not
  // needed.
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
  totals->alloc_bytes = SaturatingSum(totals->alloc_bytes, cell.alloc_bytes);
  totals->inuse_objects += cell.inuse_objects();
  totals->inuse_bytes += cell.inuse_bytes();
  totals->peak_objects += has_changed_since_peak ? cell.peak_objects : cell.inuse_objects();
  totals->peak_bytes += has_changed_since_peak ? cell.peak_bytes : cell.inuse_bytes();
}

void Ledger::Snapshot(std::vector<SiteTotals>* sites, std::vector<AccountTotals>* accounts, int64_t* instant,
                      const EventLog::Mode* mode) const {
  accounts->assign(kAccounts, {});
  Reading reading;
  std::vector<uint8_t> account_of;
  static_assert(kAccounts <= 256, "an account fits in a byte");
  SpinLockHolder one_at_a_time(reading_lock_);
  // Memory for all sites is allocated before the locks are taken. Sites that are added meanwhile may make it too small;
  // then the next attempt allocates more. Nothing is allocated between LockAll and the end of ReadCells.
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
  MarkInstant(shards, instant, mode);
  ForEachShardOf(shards, [&](Shard& shard) {
    shard.reading = &reading;
    shard.unread = 0;
    shard.unread_cached = 0;
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
    totals.alloc_bytes = SaturatingSum(totals.alloc_bytes, changed.alloc_bytes);
    totals.inuse_objects += changed.inuse_objects;
    totals.inuse_bytes += changed.inuse_bytes;
    totals.peak_objects += changed.peak_objects;
    totals.peak_bytes += changed.peak_bytes;
  }
}

// A shard's lock is held for one chunk at a time, which takes a few microseconds. The lock is not fair: without the
// pause between two chunks, a waiting thread would wait until the whole shard is read.
void Ledger::ReadCells(uint64_t shards, const std::vector<uint8_t>& account_of, Reading* reading,
                       std::vector<SiteTotals>* sites) const {
  constexpr int kPauses = 32;
  const auto count = static_cast<SiteId>(sites->size());
  const auto pause = [] {
    for (int i = 0; i < kPauses; ++i) CpuRelax();
  };
  const auto add = [&](const Cell& cell, SiteId site) {
    Reading::Add(cell, reading->accounts[account_of[site]], &(*sites)[site]);
  };
  constexpr SiteId kAtOnce = 1u << kChunkBits;
  ForEachShardOf(shards, [&](Shard& shard) {
    // While shard.reading is set, the cache does not grow.
    uint32_t cached_count;
    {
      SpinLockHolder hold(shard.lock);
      cached_count = shard.cache.count;
    }
    for (uint32_t start = 0; start < cached_count; start += kAtOnce) {
      {
        SpinLockHolder hold(shard.lock);
        const uint32_t end = std::min(cached_count, start + kAtOnce);
        for (uint32_t i = start; i < end; ++i) {
          const SiteId site = shard.cache.sites[i] - 1;
          if (site < count) add(shard.cache.cells[i], site);
        }
        shard.unread_cached = end;
      }
      pause();
    }
    for (SiteId start = 0; start < count; start += kAtOnce) {
      if (OwnedCellOf(shard, start) == nullptr) continue;
      {
        SpinLockHolder hold(shard.lock);
        const SiteId end = std::min(count, start + kAtOnce);
        const Cell* cell = OwnedCellOf(shard, start);
        for (SiteId site = start; site < end; ++site, ++cell) add(*cell, site);
        shard.unread = end;
      }
      pause();
    }
    SpinLockHolder hold(shard.lock);
    shard.reading = nullptr;
  });
}

void Ledger::ResetPeak(AccountId account) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Shard* const own = AnyShard();
  const uint64_t locked = LockAccount(account, own);
  const bool is_used = own != nullptr && common_[account].is_used;
  const int64_t time =
      is_used ? LogInstant(locked, *own, RecordedKind::kResetPeak, static_cast<uint64_t>(account), kNoRecordedSite, 0)
              : 0;
  BeginPeak(account, SumOf(account).bytes_in_use, time);
  ForEachShardOf(common_[account].active, [&](Shard& shard) { shard.accounts[account].SetHeadroom(0); });
  TraceLedger();
  UnlockAccount(locked);
}

// --- The event log ---

int64_t Ledger::TimeOfInstant(uint64_t locked) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  int64_t last = last_instant_;
  ForEachShardOf(locked, [&](const Shard& shard) { last = std::max(last, shard.log.last_time); });
  const int64_t time = std::max(log_.clock().NowInOrder(), last + EventClock::kStep);
  last_instant_ = time;
  ForEachShardOf(locked, [&](Shard& shard) { shard.log.last_time = time + EventClock::kStep; });
  return time;
}

int64_t Ledger::LogInstant(uint64_t locked, Shard& shard, RecordedKind kind, uint64_t id, SiteId site,
                           int64_t bytes) const {
  if (__builtin_expect(shard.next_event == nullptr, 1) != 0) return 0;
  const int64_t time = TimeOfInstant(locked);
  WriteEvent(shard, {time, id, bytes, site, 0, kind, false});
  return time;
}

void Ledger::OpenLog(Shard& shard) const {
  if (log_.mode() != EventLog::Mode::kOff) {
    log_.Open(static_cast<uint32_t>(&shard - shards_), &shard.log, &shard.next_event);
  }
  for (AccountId account = 0; account < kAccounts; ++account) {
    Account& part = shard.accounts[account];
    if (part.is_active()) part.SetEpoch(common_[account].epoch, shard.next_event != nullptr);
  }
}

void Ledger::CloseLog(Shard& shard) const {
  if (shard.next_event != nullptr) log_.Close(&shard.log, shard.next_event);
  shard.next_event = nullptr;
}

int64_t Ledger::CollectEvents() {
  const int64_t until = log_.clock().NowInOrder();
  uint64_t shards;
  {
    SpinLockHolder hold(all_lock_);
    if (log_.mode() == EventLog::Mode::kOff) return 0;
    shards = active_.load(std::memory_order_relaxed);
  }
  ForEachShardOf(shards, [&](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    SpinLockHolder hold(shard.lock);
    if (shard.next_event == nullptr) return;
    if (shard.log.buffer == nullptr || shard.next_event != shard.log.buffer->events) {
      CloseLog(shard);
      OpenLog(shard);
    }
    shard.log.last_time = std::max(shard.log.last_time, until + EventClock::kStep);
  });
  return until;
}

void Ledger::MarkInstant(uint64_t shards, int64_t* instant,
                         const EventLog::Mode* mode) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const bool is_on = log_.mode() != EventLog::Mode::kOff;
  if (instant == nullptr) {
    const uint64_t mark = EventLog::MarkOfThread();
    if (!is_on || mark == 0 || shards == 0) return;
    LogInstant(shards, shards_[__builtin_ctzll(shards)], RecordedKind::kMark, mark - 1, kNoRecordedSite, 0);
    return;
  }
  *instant = TimeOfInstant(shards);
  if (mode == nullptr) return;
  ForEachShardOf(shards, [&](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { CloseLog(shard); });
  log_.SetMode(*mode);
  ForEachShardOf(shards, [&](Shard& shard) ABSL_NO_THREAD_SAFETY_ANALYSIS { OpenLog(shard); });
}

int64_t Ledger::SetLogMode(EventLog::Mode mode) {
  int64_t instant = 0;
  LockAll();
  MarkInstant(active_.load(std::memory_order_relaxed), &instant, &mode);
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
  Log(*shard, kind, id, site, bytes);
}

}  // namespace hbmprof::internal
