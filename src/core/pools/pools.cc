#include "src/core/pools/pools.h"

#include <algorithm>

#include "src/base/pages.h"
#include "src/core/ledger/trace.h"

namespace hbmprof::internal {

class Pools::DetachedBlocks {
 public:
  DetachedBlocks() = default;
  ~DetachedBlocks() {
    if (blocks_ != few_) UnmapPages(blocks_, capacity_ * sizeof(Block));
  }
  DetachedBlocks(const DetachedBlocks&) = delete;
  DetachedBlocks& operator=(const DetachedBlocks&) = delete;

  // Reserves space for `count` blocks. The list must be empty. Returns false if the host has no memory.
  bool Reserve(size_t count) {
    if (count <= capacity_) return true;
    auto* blocks = static_cast<Block*>(MapPages(count * sizeof(Block)));
    if (blocks == nullptr) return false;
    blocks_ = blocks;
    capacity_ = count;
    return true;
  }
  void Clear() { size_ = 0; }
  // Returns false if the list is full.
  bool Add(const Block& block) {
    if (size_ == capacity_) return false;
    blocks_[size_++] = block;
    return true;
  }
  size_t size() const { return size_; }
  // Makes ReattachBlocks skip this block.
  void Skip(size_t i) { blocks_[i].id = 0; }
  const Block& operator[](size_t i) const { return blocks_[i]; }

 private:
  static constexpr size_t kFew = 8;  // they fit on a small stack
  Block few_[kFew];
  Block* blocks_ = few_;
  size_t size_ = 0;
  size_t capacity_ = kFew;
};

// --- A block's bytes ------------------------------------------------------------------------------------------------

Pools::Position Pools::PositionIn(uint64_t address, int64_t bytes) const {
  Position position;
  position.address = address;
  position.generation = segments_.generation();
  if (const Segment* segment = segments_.At(address); segment != nullptr) {
    position.level = std::min(segment->depth + 1, kMaxLevel);
    position.in_pool = true;
    position.account = segment->account;
    return position;
  }
  segments_.ForEachPart(address, address + static_cast<uint64_t>(bytes), 1, [&](const Segment* segment, int64_t) {
    position.in_pool = true;
    position.account = segment->account;
    return false;
  });
  return position;
}

Pools::Position Pools::PositionOfBlock(uint64_t address, int64_t bytes) {
  Change shared(ledger_, Change::Scope::kOwnShard);
  return shared.is_usable() ? PositionIn(address, bytes) : Position{};
}

Pools::Position Pools::PositionOfSegment(uint64_t address, int64_t bytes) {
  Change shared(ledger_, Change::Scope::kOwnShard);
  Position position;
  position.address = address;
  if (!shared.is_usable()) return position;
  const Segment* outer = segments_.Around(address, address + static_cast<uint64_t>(bytes));
  if (outer == nullptr) return position;
  position.level = outer->depth + 1;
  position.in_pool = true;
  position.account = outer->account;
  return position;
}

bool Pools::PrepareFree(Change& change, uint64_t id, const LiveRecord& record) const {
  if (!change.Prepare(record.site)) return false;
  const uint64_t address = AddressOf(id);
  return sites_.At(record.site).kind != SiteKind::kBlock ||
         segments_.ForEachPart(address, address + static_cast<uint64_t>(record.bytes), LevelOf(id),
                               [&](const Segment* segment, int64_t) { return change.Prepare(segment->site); });
}

Pools::Taken Pools::TakeParts(Change& change, uint64_t address, int64_t bytes, int level, AccountId account,
                              Parts* parts) {
  *parts = {};
  Taken taken = Taken::kTaken;
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  segments_.ForEachPart(address, end, level, [&](Segment* segment, int64_t part) {
    if (segment->account != account) return true;
    if (!change.Prepare(segment->site)) {
      taken = Taken::kNeedsAll;
    } else if (!SegmentMap::Take(*segment, part)) {
      taken = Taken::kTooFew;
    } else {
      if (parts->count++ == 0) parts->first = segment;
      parts->bytes += part;
    }
    return taken == Taken::kTaken;
  });
  if (taken != Taken::kTaken) {
    ReturnParts(address, bytes, level, account, *parts);
    *parts = {};
  }
  return taken;
}

template <typename Visit>
void Pools::ForEachTaken(uint64_t address, int64_t bytes, int level, AccountId account, const Parts& parts,
                         const Visit& visit) {
  // The common case: all of it lies in one piece of one segment.
  if (parts.count == 0) return;
  if (parts.count == 1) return visit(parts.first, parts.bytes);
  int rest = parts.count;
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  segments_.ForEachPart(address, end, level, [&](Segment* segment, int64_t part) {
    if (segment->account != account) return true;
    visit(segment, part);
    return --rest > 0;
  });
}

void Pools::ReturnParts(uint64_t address, int64_t bytes, int level, AccountId account, const Parts& parts) {
  ForEachTaken(address, bytes, level, account, parts,
               [](Segment* segment, int64_t part) { SegmentMap::Return(*segment, part); });
}

void Pools::ChargeParts(Change& change, uint64_t address, int64_t bytes, int level, AccountId account,
                        const Parts& parts, int64_t sign) {
  ForEachTaken(address, bytes, level, account, parts,
               [&](Segment* segment, int64_t part) { change.Charge(segment->site, sign * part); });
  if (parts.bytes != 0) change.AddBlockBytes(sign * parts.bytes);
}

Pools::Parts Pools::PartsOf(uint64_t address, int64_t bytes, int level, AccountId account) const {
  Parts parts;
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  segments_.ForEachPart(address, end, level, [&](Segment* segment, int64_t part) {
    if (segment->account != account) return true;
    if (parts.count++ == 0) parts.first = segment;
    parts.bytes += part;
    return true;
  });
  return parts;
}

int64_t Pools::GiveBack(Change& change, uint64_t id, const LiveRecord& record) {
  const Site& site = sites_.At(record.site);
  if (site.kind != SiteKind::kBlock) return 0;
  const uint64_t address = AddressOf(id);
  const int level = LevelOf(id);
  const Parts parts = PartsOf(address, record.bytes, level, site.account);
  ReturnParts(address, record.bytes, level, site.account, parts);
  ChargeParts(change, address, record.bytes, level, site.account, parts, -1);
  return parts.bytes;
}

int Pools::FreeBlock(Change& change, uint64_t id, const LiveRecord& record) {
  const int octave = OctaveNow(record.birth);
  change.Enter(Event::kFree, id, record.site, record.bytes, octave);
  const int64_t taken = GiveBack(change, id, record);
  if (taken < record.bytes) RemoveOutside();
  return octave;
}

// --- Blocks ---------------------------------------------------------------------------------------------------------

bool Pools::LoadViewOutOfLine(Ledger::OwnShard& own, uint64_t address) const { return LoadView(own, address); }

std::optional<Pools::Added> Pools::AddBlockBy(Change& change, const Position& position, const LiveRecord& record,
                                              Event event, int octave, bool* replaced) {
  constexpr std::optional<Added> kNeedsAll = std::nullopt;
  const SiteId site = record.site;
  const int64_t bytes = record.bytes;
  if (!change.is_usable()) return Added::kNoMemory;
  if (!change.Prepare(site)) return change.holds_all() ? Added::kNoMemory : kNeedsAll;
  if (segments_.generation() != position.generation) {
    const Position now = PositionIn(position.address, bytes);
    if (now.level != position.level || now.in_pool != position.in_pool || now.account != position.account) {
      return Added::kMoved;
    }
  }
  const uint64_t id = position.id();
  const AccountId account = sites_.At(site).account;
  Parts parts;
  LiveRecord stale;
  if (change.holds_all() && live_.Find(id, &stale) && sites_.At(stale.site).account != account) {
    return Added::kReplaces;
  }
  if (sites_.At(site).kind == SiteKind::kBlock) {
    Taken taken = TakeParts(change, position.address, bytes, position.level, account, &parts);
    // A block that does not fit may fit after the removal of a block whose free was not recorded.
    if (taken == Taken::kTooFew && change.holds_all() && live_.Erase(id, &stale)) {
      *replaced = true;
      FreeBlock(change, id, stale);
      taken = TakeParts(change, position.address, bytes, position.level, account, &parts);
    }
    // The block of an unrecorded free can be removed only with all shards' locks.
    if (taken == Taken::kNeedsAll || (taken == Taken::kTooFew && !change.holds_all())) return kNeedsAll;
    if (taken == Taken::kTooFew) return Added::kRefused;
  }
  LiveTable::Inserted inserted = LiveTable::Inserted::kReplaced;
  if (change.holds_all()) {
    inserted = live_.Insert(id, record, &stale);
  } else if (change.Admits(account, bytes - parts.bytes)) {
    inserted = live_.InsertNew(id, record);
  }
  const bool is_stale = inserted == LiveTable::Inserted::kReplaced;
  if (inserted == LiveTable::Inserted::kNoMemory || (is_stale && !change.holds_all())) {
    ReturnParts(position.address, bytes, position.level, account, parts);
    return is_stale ? kNeedsAll : Added::kNoMemory;
  }
  if (is_stale) {
    *replaced = true;
    FreeBlock(change, id, stale);
  }
  change.Enter(event, id, site, bytes, octave);
  ChargeParts(change, position.address, bytes, position.level, account, parts, 1);
  if (parts.bytes < bytes) blocks_outside_.fetch_add(1, std::memory_order_relaxed);
  return Added::kAdded;
}

Pools::Added Pools::AddBlock(const Position& position, const LiveRecord& record, Event event, int octave,
                             bool* replaced) {
  {
    Change change(ledger_, Change::Scope::kOwnShard);
    const std::optional<Added> added = AddBlockBy(change, position, record, event, octave, replaced);
    if (added.has_value()) return *added;
  }
  for (;;) {
    {
      Change change(ledger_, Change::Scope::kAllShards);
      const Added added = *AddBlockBy(change, position, record, event, octave, replaced);
      if (added != Added::kReplaces) return added;
    }
    // A Change is for one account, so the other block is removed by a Change of its own.
    if (RemoveBlock(position.address).has_value()) *replaced = true;
  }
}

bool Pools::RemoveBlockBy(Change& change, uint64_t address, std::optional<Block>* removed) {
  if (!change.is_usable()) return true;
  // Another thread may change the record between FindBlock and EraseExactly, unless this thread holds all shards.
  while (std::optional<Block> found = FindBlock(address)) {
    const uint64_t id = found->id;
    const LiveRecord& record = found->record;
    const bool is_segment = sites_.At(record.site).kind == SiteKind::kSegment;
    if (!change.holds_all() && (is_segment || !PrepareFree(change, id, record))) return false;
    if (is_segment) {
      *removed = RemoveWithContents(change, segments_.Find(address, id));
      return true;
    }
    if (!live_.EraseExactly(id, record)) continue;
    found->octave = FreeBlock(change, id, record);
    *removed = found;
    return true;
  }
  return true;
}

std::optional<Pools::Block> Pools::RemoveBlock(uint64_t address) {
  std::optional<Block> removed;
  {
    Change change(ledger_, Change::Scope::kOwnShard);
    if (RemoveBlockBy(change, address, &removed)) return removed;
  }
  Change change(ledger_, Change::Scope::kAllShards);
  RemoveBlockBy(change, address, &removed);
  return removed;
}

std::optional<Pools::Block> Pools::LookUpBlock(uint64_t address) {
  Change shared(ledger_, Change::Scope::kOwnShard);
  return shared.is_usable() ? FindBlock(address) : std::nullopt;
}

std::optional<Pools::Block> Pools::FindBlock(uint64_t address) {
  const Segment* segment = segments_.At(address);
  for (int level = segment == nullptr ? 1 : std::min(segment->depth + 1, kMaxLevel); level > 0; --level) {
    Block found{IdOf(address, level), {}};
    if (live_.Find(found.id, &found.record)) return found;
  }
  return std::nullopt;
}

// --- Blocks while segments change: all of these functions hold all shards' locks -------------------------------------

template <typename Matches>
bool Pools::Collect(const Matches& matches, DetachedBlocks* list) const {
  size_t count = 0;
  const auto collect = [&] {
    count = 0;
    list->Clear();
    live_.ForEach([&](uint64_t id, const LiveRecord& record) {
      if (!IsBlockId(id) || sites_.At(record.site).kind == SiteKind::kSegment || !matches(id, record)) return;
      list->Add({id, record, -1});
      ++count;
    });
  };
  collect();
  if (count > list->size() && list->Reserve(count)) collect();
  return count == list->size();
}

bool Pools::DetachBlocks(Change& change, uint64_t start, uint64_t end, AccountId account, DetachedBlocks* list) {
  const auto overlaps = [&](uint64_t id, const LiveRecord& record) {
    const uint64_t address = AddressOf(id);
    return sites_.At(record.site).account == account && address < end &&
           start < address + std::max<uint64_t>(static_cast<uint64_t>(record.bytes), 1);
  };
  if (!Collect(overlaps, list)) return false;
  for (size_t i = 0; i < list->size(); ++i) {
    const Block& block = (*list)[i];
    if (GiveBack(change, block.id, block.record) < block.record.bytes) RemoveOutside();
  }
  return true;
}

void Pools::ReattachBlocks(Change& change, const DetachedBlocks& list) {
  // First the blocks that had taken bytes from segments before the change, then the others.
  for (const bool is_block : {true, false}) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].id != 0 && (sites_.At(list[i].record.site).kind == SiteKind::kBlock) == is_block)
        ReattachOne(change, list[i]);
    }
  }
}

void Pools::ReattachOne(Change& change, const Block& block) {
  const Site& site = sites_.At(block.record.site);
  const uint64_t address = AddressOf(block.id);
  const int64_t bytes = block.record.bytes;
  const Position position = PositionIn(address, bytes);
  LiveRecord other;
  const bool keeps_id = position.id() == block.id || live_.Find(position.id(), &other);
  const uint64_t id = keeps_id ? block.id : position.id();
  Parts parts;
  const bool in_pool = position.in_pool && position.account == site.account &&
                       TakeParts(change, address, bytes, LevelOf(id), site.account, &parts) == Taken::kTaken;
  LiveRecord record = block.record;
  bool is_kept = true;
  if (in_pool != (site.kind == SiteKind::kBlock)) {
    SiteKey key = site.key();
    key.in_pool = in_pool;
    const SiteId changed = sites_.InternSite(key);
    if (changed != kNoSite && change.Prepare(changed)) {
      change.Move(block.id, record.site, changed, bytes, bytes);
      record.site = changed;
    } else {
      // The tables are full. A block that counted its bytes itself continues to do so. A block that had taken its bytes
      // from segments is removed.
      ReturnParts(address, bytes, LevelOf(id), site.account, parts);
      parts = {};
      is_kept = site.kind != SiteKind::kBlock;
    }
  }
  if (is_kept && keeps_id) {
    live_.Replace(id, block.record, record);
  } else if (is_kept && !live_.Rename(block.id, block.record, id, record)) {
    ReturnParts(address, bytes, LevelOf(id), site.account, parts);
    is_kept = false;
  }
  if (!is_kept) live_.Erase(block.id, &other);
  if (is_kept) {
    if (!keeps_id) change.Rename(block.id, id, record.site, bytes);
    ChargeParts(change, address, bytes, LevelOf(id), site.account, parts, 1);
    if (parts.bytes < bytes) blocks_outside_.fetch_add(1, std::memory_order_relaxed);
  } else {
    change.Enter(Event::kFree, block.id, record.site, bytes, OctaveNow(record.birth));
  }
}

template <typename Matches>
void Pools::DropBlocks(Change& change, const Matches& matches) {
  const auto in_pool = [&](uint64_t id, const LiveRecord& record) {
    return sites_.At(record.site).kind == SiteKind::kBlock && matches(id, record);
  };
  DetachedBlocks some;
  // Removes all at once, or a few at a time if the host has no memory for the list.
  for (bool is_all = false; !is_all;) {
    is_all = Collect(in_pool, &some);
    for (size_t i = 0; i < some.size(); ++i) {
      LiveRecord erased;
      if (live_.Erase(some[i].id, &erased)) FreeBlock(change, some[i].id, erased);
    }
  }
}

// --- Segments: all of these functions hold all shards' locks -------------------------------------------------------

int64_t Pools::BlockBytes(const Segment* segment) {
  int64_t bytes = segment->bytes() - segment->idle_bytes.load(std::memory_order_relaxed);
  if (bytes == 0) return 0;
  segments_.ForEachSegment(segment->start, segment->end, [&](const Segment* inner) {
    if (inner->outer == segment) bytes -= inner->bytes();
  });
  return bytes;
}

bool Pools::HoldsBlocks(const Segment* around) {
  // A segment has taken its bytes from the segment around it. These are not bytes of blocks, so they are subtracted.
  int64_t taken = 0;
  segments_.ForEachSegment(around->start, around->end, [&](const Segment* segment) {
    if (segment->depth < around->depth) return;
    taken += segment->bytes() - segment->idle_bytes.load(std::memory_order_relaxed);
    if (segment != around) taken -= segment->bytes();
  });
  return taken > 0;
}

bool Pools::TakeFromOuter(Change& change, const Segment& segment, int64_t bytes) {
  if (segment.outer == nullptr) {
    change.AddPoolBytes(bytes);
    return true;
  }
  if (!SegmentMap::Take(*segment.outer, bytes)) return false;
  change.Charge(segment.outer->site, bytes);
  return true;
}

Pools::Added Pools::InsertSegment(Change& change, uint64_t id, SiteId site, int64_t bytes, bool was_block) {
  const uint64_t address = AddressOf(id);
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  const AccountId account = sites_.At(site).account;
  if (end < address || !segments_.Fits(address, end)) return Added::kRefused;
  if (!change.Prepare(site)) return Added::kNoMemory;
  Segment* outer = segments_.Around(address, end);
  if (outer != nullptr && (outer->account != account || outer->depth + 2 > kMaxLevel)) return Added::kRefused;
  if (IsBlockId(id) && (outer == nullptr || IdOf(address, outer->depth + 1) != id)) return Added::kRefused;

  // The segments that will be directly inside the new one leave the segment around it (`outer`).
  const auto for_each_inner = [&](const auto& visit) {
    segments_.ForEachSegment(address, end, [&](Segment* inner) {
      if (inner->outer == outer && inner != outer && address <= inner->start && inner->end <= end) visit(inner);
    });
  };
  bool is_one_account = true;
  bool holds_blocks = HasOutside();
  int64_t inner_bytes = 0;
  for_each_inner([&](const Segment* inner) {
    is_one_account = is_one_account && inner->account == account;
    inner_bytes += inner->bytes();
  });
  if (!is_one_account || (was_block && inner_bytes > 0)) return Added::kRefused;
  if (outer != nullptr && !was_block) holds_blocks = holds_blocks || BlockBytes(outer) > 0;
  // Blocks in an inner segment get another level. Blocks that lie partly in an inner segment take bytes from the new
  // segment, too.
  if (inner_bytes > 0 && !holds_blocks) {
    for_each_inner([&](Segment* inner) { holds_blocks = holds_blocks || !IsIdle(inner); });
  }
  DetachedBlocks blocks;
  if (holds_blocks && !DetachBlocks(change, address, end, account, &blocks)) return Added::kNoMemory;
  for_each_inner([&](const Segment* inner) { TakeFromOuter(change, *inner, -inner->bytes()); });
  Added added = Added::kRefused;
  Segment* segment = nullptr;
  if (outer == nullptr || outer->idle_bytes.load(std::memory_order_relaxed) >= bytes) {
    segment = segments_.Add(address, end, id, site, account);
    added = segment != nullptr ? Added::kAdded : Added::kNoMemory;
  }
  if (segment == nullptr) {
    for_each_inner([&](const Segment* inner) { TakeFromOuter(change, *inner, inner->bytes()); });
  } else {
    TakeFromOuter(change, *segment, bytes);
    if (inner_bytes > 0) {
      SegmentMap::Take(*segment, inner_bytes);
      change.Charge(site, inner_bytes);
      SetLevels(change, segment);
    }
  }
  ReattachBlocks(change, blocks);
  return added;
}

void Pools::SetLevels(Change& change, const Segment* around) {
  // Deepest first, so that no id is in use when a segment gets it. (If an id is in use nevertheless, or the host has no
  // memory, the segment keeps its old id.)
  for (int depth = DeepestIn(around->start, around->end)->depth; depth > around->depth; --depth) {
    segments_.ForEachSegment(around->start, around->end, [&](Segment* inner) {
      if (inner->depth != depth || !IsBlockId(inner->id)) return;
      const uint64_t id = IdOf(inner->start, depth);
      LiveRecord record;
      if (id == inner->id || !live_.Find(inner->id, &record) || !live_.Rename(inner->id, record, id, record)) return;
      change.Rename(inner->id, id, record.site, record.bytes);
      inner->id = id;
    });
  }
}

Pools::Added Pools::AddSegment(Change& change, uint64_t id, const LiveRecord& record, Event event, int octave) {
  const LiveTable::Inserted inserted = live_.InsertNew(id, record);
  if (inserted == LiveTable::Inserted::kReplaced) return Added::kRefused;
  if (inserted == LiveTable::Inserted::kNoMemory) return Added::kNoMemory;
  const Added added = InsertSegment(change, id, record.site, record.bytes, /*was_block=*/false);
  if (added == Added::kAdded) {
    change.Enter(event, id, record.site, record.bytes, octave);
  } else {
    live_.EraseExactly(id, record);
  }
  return added;
}

Pools::Added Pools::AddSegment(const Position& position, SiteId site, int64_t bytes) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return Added::kNoMemory;
  const uint64_t end = position.address + static_cast<uint64_t>(bytes);
  const Segment* outer = segments_.Around(position.address, end);
  if (outer != nullptr && outer->start == position.address && outer->end == end) return Added::kRefused;
  if (position.in_pool != (outer != nullptr)) return Added::kMoved;
  if (outer != nullptr && (position.level != outer->depth + 1 || position.account != outer->account)) {
    return Added::kMoved;
  }
  // The address may already be the id of a live record: that of the segment around the new one. Then the new segment
  // gets the id of a block in that segment.
  LiveRecord other;
  const bool is_taken = live_.Find(position.address, &other);
  if (is_taken && !IsBlockAddress(position.address)) return Added::kRefused;
  const uint64_t id = is_taken ? position.id() : position.address;
  return AddSegment(change, id, {site, PresentGeneration(), bytes}, Event::kAlloc, -1);
}

Pools::Added Pools::RestoreSegment(uint64_t id, const LiveRecord& record, int octave) {
  Change change(ledger_, Change::Scope::kAllShards);
  return change.is_usable() ? AddSegment(change, id, record, Event::kUndoFree, octave) : Added::kNoMemory;
}

std::optional<bool> Pools::MakeSegment(uint64_t address, int64_t bytes, AllocatorId allocator) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return std::nullopt;
  LiveRecord record;
  if (live_.Find(address, &record) && sites_.At(record.site).kind != SiteKind::kSegment) {
    return MakeSegment(change, address, record, allocator);
  }
  const std::optional<Block> block = FindBlock(address);
  if (!block.has_value() || block->record.bytes != bytes || sites_.At(block->record.site).kind != SiteKind::kBlock) {
    return std::nullopt;
  }
  return MakeSegment(change, block->id, block->record, allocator);
}

bool Pools::MakeSegment(Change& change, uint64_t id, const LiveRecord& record, AllocatorId allocator) {
  SiteKey key = sites_.Key(record.site);
  if (SpaceOf(key.attributes.kind) != MemorySpace::kDevice || key.attributes.kind == MemoryKind::kPool) return false;
  key.attributes.kind = MemoryKind::kPool;
  key.in_pool = true;
  if (allocator != AllocatorId{}) key.attributes.allocator = allocator;
  const SiteId site = sites_.InternSite(key);
  if (site == kNoSite || !change.Prepare(site)) return false;
  TraceStep(EventStep::kSegmentFound);
  const LiveRecord as_segment = {site, record.birth, record.bytes};
  if (!live_.Replace(id, record, as_segment)) return false;
  // A block's bytes return to the segments around it, and the segment takes them again.
  const int64_t taken = GiveBack(change, id, record);
  if (InsertSegment(change, id, site, record.bytes, IsBlockId(id)) == Added::kAdded) {
    if (IsBlockId(id) && taken < record.bytes) RemoveOutside();
    change.Move(id, record.site, site, record.bytes, record.bytes);
    return true;
  }
  live_.Replace(id, as_segment, record);
  if (IsBlockId(id)) {
    if (taken < record.bytes) RemoveOutside();
    ReattachOne(change, {id, record});
  }
  return false;
}

Pools::Block Pools::EraseRecord(const Segment* segment) {
  Block erased{segment->id, {}};
  live_.Erase(segment->id, &erased.record);
  erased.octave = OctaveNow(erased.record.birth);
  return erased;
}

Pools::Block Pools::RemoveWithContents(Change& change, Segment* segment, bool is_kept) {
  const uint64_t start = segment->start;
  const uint64_t end = segment->end;
  const int depth = segment->depth;
  const AccountId account = segment->account;
  DetachedBlocks rest;
  if (HoldsBlocks(segment)) {
    DropBlocks(change, [&](uint64_t id, const LiveRecord& record) {
      const uint64_t address = AddressOf(id);
      return LevelOf(id) > depth && sites_.At(record.site).account == account && start <= address && address < end &&
             static_cast<uint64_t>(record.bytes) <= end - address;
    });
    // The blocks that are left lie partly outside of the segment. If the host has no memory to list them, they are
    // removed, too.
    if (HoldsBlocks(segment) && !DetachBlocks(change, start, end, account, &rest)) {
      DropBlocks(change, [&](uint64_t id, const LiveRecord& record) {
        return sites_.At(record.site).account == account && AddressOf(id) < end &&
               start < AddressOf(id) + static_cast<uint64_t>(record.bytes);
      });
    }
  }
  for (Segment* inner = DeepestIn(start, end); inner != segment; inner = DeepestIn(start, end)) {
    RemoveEmpty(change, inner);
  }
  Block removed{0, {}};
  if (!is_kept) removed = RemoveEmpty(change, segment);
  ReattachBlocks(change, rest);
  return removed;
}

Segment* Pools::DeepestIn(uint64_t start, uint64_t end) {
  Segment* deepest = nullptr;
  segments_.ForEachSegment(start, end, [&](Segment* segment) {
    if (deepest == nullptr || segment->depth > deepest->depth) deepest = segment;
  });
  return deepest;
}

Pools::Block Pools::RemoveEmpty(Change& change, Segment* segment) {
  const Block erased = EraseRecord(segment);
  change.Enter(Event::kFree, segment->id, segment->site, segment->bytes(), erased.octave);
  TakeFromOuter(change, *segment, -segment->bytes());
  segments_.Remove(segment);
  return erased;
}

std::optional<Pools::Block> Pools::RemoveSegment(uint64_t id) {
  Change change(ledger_, Change::Scope::kAllShards);
  Segment* segment = change.is_usable() ? segments_.Find(AddressOf(id), id) : nullptr;
  if (segment == nullptr) return std::nullopt;
  return RemoveWithContents(change, segment);
}

// --- Sizes ---------------------------------------------------------------------------------------------------------

SiteId Pools::SiteOfSize(Change& change, SiteId site, int64_t bytes) {
  SiteKey key = sites_.Key(site);
  key.block_bytes = static_cast<uint64_t>(bytes);
  const SiteId sized = sites_.InternSite(key);
  return sized != kNoSite && change.Prepare(sized) ? sized : kNoSite;
}

bool Pools::HasInnerEdge(const Segment* segment, uint64_t start, uint64_t end) {
  bool found = false;
  segments_.ForEachSegment(start, end, [&](const Segment* other) {
    found = found || (other != segment && !other->Contains(segment->start, segment->end) &&
                      !(other->end <= start || end <= other->start));
  });
  return found;
}

void Pools::MoveSegment(Change& change, Segment* segment, SiteId site, int64_t old_bytes, int64_t new_bytes) {
  const int64_t taken = segment->bytes() - segment->idle_bytes.load(std::memory_order_relaxed);
  live_.Replace(segment->id, {segment->site, 0, old_bytes}, {site, 0, new_bytes});
  change.Charge(segment->site, -taken);
  change.Charge(site, taken);
  change.Move(segment->id, segment->site, site, old_bytes, new_bytes);
  segment->site = site;
}

bool Pools::ResizeSegment(Change& change, Segment* segment, int64_t bytes) {
  const uint64_t old_end = segment->end;
  const uint64_t end = segment->start + static_cast<uint64_t>(bytes);
  const int64_t old_bytes = segment->bytes();
  const int64_t growth = bytes - old_bytes;
  if (bytes <= 0 || end < segment->start) return false;
  const uint64_t low = std::min(end, old_end);
  const uint64_t high = std::max(end, old_end);
  if (!segments_.Fits(segment->start, end, segment) || (growth > 0 && HasInnerEdge(segment, low, high))) return false;
  const Segment* outer = segment->outer;
  if (outer != nullptr && !outer->Contains(segment->start, end)) return false;
  bool is_cut = false;
  segments_.ForEachSegment(segment->start, old_end, [&](const Segment* inner) {
    is_cut = is_cut || (inner->depth > segment->depth && inner->start < end && end < inner->end);
  });
  if (is_cut) return false;
  const SiteId site = SiteOfSize(change, segment->site, bytes);
  if (site == kNoSite || !segments_.Reserve(1)) return false;
  const bool holds_blocks =
      growth < 0 ? HoldsBlocks(segment) : HasOutside() || (outer != nullptr && BlockBytes(outer) > 0);
  // Blocks overlap if the free of one was not recorded. Then they may have taken more than the smaller segment has, so
  // all of them are attached again.
  const int64_t taken = old_bytes - segment->idle_bytes.load(std::memory_order_relaxed);
  const uint64_t first = growth < 0 && taken > bytes ? segment->start : low;
  DetachedBlocks blocks;
  if (holds_blocks && !DetachBlocks(change, first, high, segment->account, &blocks)) return false;
  if (growth > 0 && !TakeFromOuter(change, *segment, growth)) {
    ReattachBlocks(change, blocks);
    return false;
  }
  if (growth < 0) {
    // Removes the inner segments that have bytes in the part that is cut off.
    for (Segment* inner = DeepestIn(low, high); inner != nullptr && inner->depth > segment->depth;
         inner = DeepestIn(low, high)) {
      RemoveEmpty(change, inner);
    }
    TakeFromOuter(change, *segment, growth);
  }
  segments_.SetEnd(segment, end);
  MoveSegment(change, segment, site, old_bytes, bytes);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    const uint64_t address = AddressOf(block.id);
    LiveRecord erased;
    if (end <= address && address < old_end && static_cast<uint64_t>(block.record.bytes) <= old_end - address &&
        LevelOf(block.id) > segment->depth && sites_.At(block.record.site).kind == SiteKind::kBlock) {
      live_.Erase(block.id, &erased);
      change.Enter(Event::kFree, block.id, block.record.site, block.record.bytes, OctaveNow(block.record.birth));
      blocks.Skip(i);
    }
  }
  ReattachBlocks(change, blocks);
  return true;
}

bool Pools::ResizeRecord(Change& change, uint64_t id, int64_t bytes) {
  LiveRecord record;
  if (!live_.Find(id, &record)) return false;
  const Site& site_before = sites_.At(record.site);
  if (record.bytes == bytes || site_before.key().attributes.kind == MemoryKind::kAlias) return true;
  if (site_before.kind == SiteKind::kSegment) {
    Segment* segment = segments_.Find(AddressOf(id), id);
    return segment != nullptr && ResizeSegment(change, segment, bytes);
  }
  const SiteId site = SiteOfSize(change, record.site, bytes);
  const LiveRecord resized = {site, record.birth, bytes};
  // If the record is not that of a block, another thread may free it. That thread gets either the old size or the new
  // one.
  if (site == kNoSite || !live_.Replace(id, record, resized)) return false;
  if (IsBlockId(id) && GiveBack(change, id, record) < record.bytes) RemoveOutside();
  change.Move(id, record.site, site, record.bytes, bytes);
  if (site_before.kind == SiteKind::kPool) change.AddPoolBytes(bytes - record.bytes);
  if (IsBlockId(id)) ReattachOne(change, {id, resized});
  return true;
}

bool Pools::Resize(uint64_t id, int64_t bytes) {
  Change change(ledger_, Change::Scope::kAllShards);
  return change.is_usable() && ResizeRecord(change, id, bytes);
}

bool Pools::ResizeBlock(uint64_t address, int64_t bytes) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return false;
  const std::optional<Block> block = FindBlock(address);
  return block.has_value() && ResizeRecord(change, block->id, bytes);
}

bool Pools::SplitSegment(uint64_t address, uint64_t at) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return false;
  Segment* segment = segments_.Find(address, address);
  if (segment == nullptr || at <= segment->start || at >= segment->end) return false;
  bool is_cut = false;
  const auto for_each_inner = [&](const auto& visit) {
    segments_.ForEachSegment(segment->start, segment->end, [&](Segment* inner) {
      if (inner->outer == segment) visit(inner);
    });
  };
  for_each_inner([&](const Segment* inner) { is_cut = is_cut || (inner->start < at && at < inner->end); });
  if (is_cut || !segments_.Reserve(1)) return false;
  const int64_t old_bytes = segment->bytes();
  const auto low_bytes = static_cast<int64_t>(at - segment->start);
  LiveRecord old_record;
  live_.Find(segment->id, &old_record);
  const LiveRecord high_record = {SiteOfSize(change, segment->site, old_bytes - low_bytes), old_record.birth,
                                  old_bytes - low_bytes};
  const SiteId low_site = SiteOfSize(change, segment->site, low_bytes);
  if (low_site == kNoSite || high_record.site == kNoSite) return false;
  // All blocks and segments give their bytes back to the segment, and then take them from the part in which they lie.
  DetachedBlocks blocks;
  if (BlockBytes(segment) > 0 && !DetachBlocks(change, segment->start, segment->end, segment->account, &blocks))
    return false;
  for_each_inner([&](const Segment* inner) { TakeFromOuter(change, *inner, -inner->bytes()); });
  Segment* high = nullptr;
  if (live_.InsertNew(at, high_record) == LiveTable::Inserted::kNew) {
    high = segments_.Split(segment, at, at, high_record.site);
    if (high == nullptr) live_.EraseExactly(at, high_record);
  }
  if (high != nullptr) {
    MoveSegment(change, segment, low_site, old_bytes, low_bytes);
    change.Enter(Event::kAlloc, at, high_record.site, high_record.bytes);
    segments_.ForEachSegment(high->start, high->end, [&](const Segment* inner) {
      if (inner->outer == high) TakeFromOuter(change, *inner, inner->bytes());
    });
  }
  for_each_inner([&](const Segment* inner) { TakeFromOuter(change, *inner, inner->bytes()); });
  ReattachBlocks(change, blocks);
  return high != nullptr;
}

bool Pools::MergeSegments(uint64_t first_address, uint64_t second_address) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return false;
  Segment* first = segments_.Find(first_address, first_address);
  Segment* second = segments_.Find(second_address, second_address);
  if (first == nullptr || second == nullptr || first->end != second->start || first->outer != second->outer ||
      first->account != second->account) {
    return false;
  }
  const int64_t first_bytes = first->bytes();
  const int64_t second_bytes = second->bytes();
  if (first_bytes + second_bytes > LiveTable::kMaxBytes) return false;
  const int64_t second_taken = second_bytes - second->idle_bytes.load(std::memory_order_relaxed);
  const SiteId second_site = second->site;
  const SiteId site = SiteOfSize(change, first->site, first_bytes + second_bytes);
  if (site == kNoSite || !segments_.Reserve(1)) return false;
  const int octave = EraseRecord(second).octave;
  segments_.Merge(first, second);
  change.Charge(second_site, -second_taken);
  change.Enter(Event::kFree, second_address, second_site, second_bytes, octave);
  change.Charge(first->site, second_taken);
  MoveSegment(change, first, site, first_bytes, first_bytes + second_bytes);
  return true;
}

template <typename Matches>
bool Pools::DropBlocksOutside(const Matches& matches) {
  // The blocks may be in any memory space, and a Change is for one account. So their frees are entered one by one,
  // after their records have left the live table.
  for (bool is_all = false; !is_all;) {
    DetachedBlocks some;
    {
      Change change(ledger_, Change::Scope::kAllShards);
      if (!change.is_usable()) return false;
      const auto counts_itself = [&](uint64_t, const LiveRecord& record) {
        const Site& site = sites_.At(record.site);
        return site.kind != SiteKind::kBlock && matches(site.key().attributes);
      };
      is_all = Collect(counts_itself, &some);
      for (size_t i = 0; i < some.size(); ++i) {
        LiveRecord erased;
        live_.Erase(some[i].id, &erased);
        if (some[i].record.bytes > 0) RemoveOutside();
      }
    }
    for (size_t i = 0; i < some.size(); ++i) {
      const LiveRecord& record = some[i].record;
      ledger_.Enter(Event::kFree, some[i].id, record.site, record.bytes, OctaveNow(record.birth));
    }
  }
  return true;
}

void Pools::EndBlocks(DeviceId device, AllocatorId allocator) {
  const auto matches = [&](const Attributes& attributes) {
    return attributes.device == device && attributes.allocator == allocator;
  };
  if (!DropBlocksOutside(matches)) return;
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return;
  DropBlocks(change, [&](uint64_t, const LiveRecord& record) { return matches(sites_.Key(record.site).attributes); });
}

std::optional<int64_t> Pools::BlockBytes(DeviceId device, AllocatorId allocator) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return std::nullopt;
  int64_t bytes = 0;
  live_.ForEach([&](uint64_t id, const LiveRecord& record) {
    if (!IsBlockId(id) || sites_.At(record.site).kind == SiteKind::kSegment) return;
    const Attributes& attributes = sites_.Key(record.site).attributes;
    if (attributes.device == device && attributes.allocator == allocator) bytes += record.bytes;
  });
  return bytes;
}

void Pools::DropDevice(const DroppedRecords& dropped) {
  if (!DropBlocksOutside([&](const Attributes& attributes) { return dropped.HasKind(attributes); })) return;
  Change change(ledger_, Change::Scope::kAllShards);
  const auto goes = [&](const Segment* segment) {
    while (segment->outer != nullptr) segment = segment->outer;
    return dropped.HasKind(sites_.Key(segment->site).attributes);
  };
  DropBlocks(change, [&](uint64_t id, const LiveRecord& record) {
    const Parts parts =
        PartsOf(AddressOf(id), std::max<int64_t>(record.bytes, 1), LevelOf(id), sites_.At(record.site).account);
    return parts.count > 0 && goes(parts.first);
  });
  uint64_t end = ~uint64_t{0};
  for (Segment* last = segments_.LastOutermostBefore(end); last != nullptr; last = segments_.LastOutermostBefore(end)) {
    end = last->start;
    if (!goes(last)) continue;
    RemoveWithContents(change, last, dropped.Keeps(last->id));
  }
}

}  // namespace hbmprof::internal
