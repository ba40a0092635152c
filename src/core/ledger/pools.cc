#include "src/core/ledger/pools.h"

namespace hbmprof::internal {

// --- Records ---

bool Pools::AddWithAllLocks(uint64_t id, LiveRecord record, bool* is_live) {
  for (;;) {
    RecordPending();
    {
      Event event(ledger_, Locks::kAllShards);
      if (HasPending()) continue;
      const LiveTable::Inserted inserted = live_.Insert(id, record);
      if (inserted == LiveTable::Inserted::kNoMemory) return false;
      if (inserted == LiveTable::Inserted::kNew) {
        event.Alloc(event.Prepare(record.site, record.bytes), id, record.site, record.bytes);
        return true;
      }
    }
    if (is_live != nullptr) {
      *is_live = true;
      return false;
    }
    RemoveReplaced(id);
  }
}

std::optional<LiveRecord> Pools::RemoveSlow(uint64_t id) {
  const std::optional<LiveRecord> removed = EraseIf(id, [](const LiveRecord&) { return true; });
  RecordPendingIfDue();
  return removed;
}

template <typename Agrees>
std::optional<LiveRecord> Pools::EraseIf(uint64_t id, const Agrees& agrees) {
  for (const Locks locks : {Locks::kOwnShard, Locks::kAllShards}) {
    Event event(ledger_, locks);
    std::optional<LiveRecord> erased;
    bool has_agreed = false;
    live_.Change(id, [&](LiveRecord* record) {
      has_agreed = agrees(*record);
      const Event::CounterRef counter = has_agreed ? event.Prepare(record->site, 0) : nullptr;
      if (counter == nullptr) return LiveTable::Then::kKeep;
      event.Free(counter, id, *record);
      KeepEnded(event, id, *record, 0);
      erased = *record;
      return LiveTable::Then::kErase;
    });
    if (erased.has_value() || !has_agreed) return erased;
  }
  return std::nullopt;
}

bool Pools::Move(uint64_t id, const LiveRecord& record, const Attributes& attributes) {
  const Site& site = sites_.At(record.site);
  const SiteId to = sites_.InternSite(site.stack, site.labels.With(attributes));
  return to != kNoSite && ChangeSite(id, record, to, Locks::kAllShards);
}

bool Pools::ChangeSite(uint64_t id, const LiveRecord& expected, SiteId to, Ledger::Locks locks) {
  Event event(ledger_, locks);
  bool is_changed = false;
  live_.Change(id, [&](LiveRecord* record) {
    is_changed = record->site == expected.site;
    if (!is_changed) return LiveTable::Then::kKeep;
    event.Move(event.Prepare(record->site, 0), event.Prepare(to, 0), id, *record, to);
    KeepEnded(event, id, *record, 0);
    record->site = to;
    return LiveTable::Then::kKeep;
  });
  return is_changed;
}

bool Pools::Resize(uint64_t id, int64_t bytes) {
  bool exists = false;
  bool is_done = false;
  for (Locks locks = Locks::kOwnShard; !is_done; locks = Locks::kAllShards) {
    if (locks == Locks::kAllShards) RecordPending();
    Event event(ledger_, locks);
    if (event.holds_all() && HasPending()) continue;
    exists = live_.Change(id, [&](LiveRecord* record) {
      is_done = sites_.At(record->site).labels.attributes().kind == MemoryKind::kAlias || bytes == record->bytes;
      if (is_done) return LiveTable::Then::kKeep;
      const Event::CounterRef counter = event.Prepare(record->site, std::max<int64_t>(bytes - record->bytes, 0));
      if (counter == nullptr) return LiveTable::Then::kKeep;
      event.Resize(counter, id, *record, bytes);
      KeepEnded(event, id, *record, bytes);
      record->bytes = bytes;
      is_done = true;
      return LiveTable::Then::kKeep;
    });
    if (!exists) return false;
  }
  RecordPendingIfDue();
  return true;
}

// --- Segments ---

std::optional<bool> Pools::MakeSegment(uint64_t id, const Pool& pool, int64_t bytes) {
  for (;;) {
    LiveRecord record;
    if (!live_.Find(id, &record)) return std::nullopt;
    const SiteLabels labels = sites_.At(record.site).labels;
    const Attributes attributes = labels.attributes();
    if (attributes.device != pool.device || SpaceOf(attributes.kind) != MemorySpace::kDevice) return false;
    if (attributes.kind == MemoryKind::kPool) {
      if (attributes.allocator != pool.allocator) return false;
      if (bytes != -1 && bytes != record.bytes) return std::nullopt;
      return true;
    }
    const PoolNumber number = sites_.pools().FindOrMake(pool);
    if (number == 0 || number == labels.from()) return false;
    RecordPending();
    if (Move(id, record, {pool.device, MemoryKind::kPool, pool.allocator})) return true;
    // Another thread has changed or ended the record meanwhile, or there is no place for the site.
    LiveRecord now;
    if (live_.Find(id, &now) && now.site == record.site) return false;
  }
}

std::optional<bool> Pools::MakeSegmentOfBlock(uint64_t address, const Pool& pool) {
  const PoolNumbers& pools = sites_.pools();
  for (int number = 1; number <= pools.size(); ++number) {
    const Pool& outer = pools.Of(static_cast<PoolNumber>(number));
    if (outer.device != pool.device || outer.allocator == pool.allocator) continue;
    const std::optional<bool> made = MakeSegment(IdOfBlock(static_cast<PoolNumber>(number), address), pool);
    // A block that is a segment of another pool has that pool's blocks in it.
    if (made.value_or(false)) return made;
  }
  return std::nullopt;
}

std::optional<int64_t> Pools::EndSegment(uint64_t address, const Pool& pool) {
  const PoolNumber number = sites_.pools().Find(pool);
  if (number == 0) return std::nullopt;
  const auto is_segment_of_pool = [&](const LiveRecord& record) {
    const SiteBooks books = sites_.At(record.site).books;
    return books.is_segment != 0 && books.pool == number;
  };
  if (const auto removed = EraseIf(address, is_segment_of_pool); removed.has_value()) {
    RecordPendingIfDue();
    return removed->bytes;
  }
  if (!IsBlockAddress(address)) return std::nullopt;
  for (int outer = 1; outer <= sites_.pools().size(); ++outer) {
    const Pool& outer_pool = sites_.pools().Of(static_cast<PoolNumber>(outer));
    const uint64_t id = IdOfBlock(static_cast<PoolNumber>(outer), address);
    LiveRecord record;
    if (outer_pool.device != pool.device || !live_.Find(id, &record) || !is_segment_of_pool(record)) continue;
    if (!Move(id, record, {pool.device, MemoryKind::kDevice, outer_pool.allocator})) continue;
    RecordPendingIfDue();
    return record.bytes;
  }
  return std::nullopt;
}

// --- Ended ranges ---

void Pools::KeepEnded(const Event& event, uint64_t id, const LiveRecord& record, int64_t kept_bytes) {
  const SiteBooks books = sites_.At(record.site).books;
  const uint64_t address = AddressOf(id);
  if (books.is_segment == 0 || kept_bytes >= record.bytes) return;
  const PoolTotals totals = event.TotalsOf(books.pool);
  if (totals.bytes_allocated == 0) return;
  SpinLockHolder hold(ended_lock_);
  const size_t count = pending_count_.load(std::memory_order_relaxed);
  if (count == ended_capacity_) {
    const size_t capacity = std::max<size_t>(2 * count, 64);
    auto* const larger = static_cast<EndedRange*>(ended_arena_.Allocate(capacity * sizeof(EndedRange)));
    if (larger == nullptr) return;  // the host has no memory: the blocks stay
    std::copy_n(ended_, count, larger);
    ended_ = larger;
    ended_capacity_ = capacity;
  }
  ended_[count] = {address + static_cast<uint64_t>(kept_bytes), address + static_cast<uint64_t>(record.bytes),
                   books.pool};
  pending_count_.store(count + 1, std::memory_order_release);
  if (count >= kMostEnded || totals.bytes_allocated > totals.bytes_reserved) {
    is_check_due_.store(true, std::memory_order_release);
  }
}

void Pools::RecordPending() {
  if (!HasPending()) return;
  SpinLockHolder one_at_a_time(check_lock_);
  while (HasPending()) {
    const EndedRange* ranges;
    size_t count;
    {
      SpinLockHolder hold(ended_lock_);
      is_check_due_.store(false, std::memory_order_relaxed);
      ranges = ended_;
      count = pending_count_.load(std::memory_order_relaxed);
      std::sort(ended_, ended_ + count);
    }
    // Others only append to the list, and an array that they replace stays readable.
    RemoveWhere([&](uint64_t id, const LiveRecord& record) {
      const SiteBooks books = sites_.At(record.site).books;
      if (!books.is_from_pool()) return false;
      const EndedRange* const after =
          std::upper_bound(ranges, ranges + count, EndedRange{AddressOf(id), UINT64_MAX, books.from()});
      return after != ranges && after[-1].pool == books.from() && AddressOf(id) < after[-1].end;
    });
    SpinLockHolder hold(ended_lock_);
    const size_t now = pending_count_.load(std::memory_order_relaxed);
    std::copy(ended_ + count, ended_ + now, ended_);
    pending_count_.store(now - count, std::memory_order_release);
  }
}

template <typename Matches>
void Pools::RemoveWhere(const Matches& matches) {
  constexpr size_t kAtOnce = 16;  // they fit on a small stack
  uint64_t next = LiveTable::kFirstHash;
  for (bool has_more = true; has_more;) {
    uint64_t ids[kAtOnce];
    size_t count = 0;
    bool is_again = false;
    const uint64_t from = next;
    has_more = live_.VisitSome(&next, [&](uint64_t id, const LiveRecord& record) {
      if (is_again || !matches(id, record)) return;
      is_again = count == kAtOnce;
      if (!is_again) ids[count++] = id;
    });
    for (size_t i = 0; i < count; ++i) {
      EraseIf(ids[i], [&](const LiveRecord& record) { return matches(ids[i], record); });
    }
    if (!is_again) continue;
    next = from;
    has_more = true;
  }
}

void Pools::EndBlocks(PoolNumber pool, uint64_t start, uint64_t end) {
  RemoveWhere([&](uint64_t id, const LiveRecord& record) {
    const SiteBooks books = sites_.At(record.site).books;
    return books.is_from_pool() && books.from() == pool && AddressOf(id) >= start && AddressOf(id) < end;
  });
  RecordPendingIfDue();
}

void Pools::EndDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<uint64_t>& kept) {
  RemoveWhere([&](uint64_t id, const LiveRecord& record) {
    const SiteLabels labels = sites_.At(record.site).labels;
    const Attributes attributes = labels.attributes();
    if (attributes.device != device) return false;
    return labels.from() != 0 ||
           (attributes.allocator != survivor && !std::binary_search(kept.begin(), kept.end(), id));
  });
  RecordPending();
}

}  // namespace hbmprof::internal
