#include "src/core/pools/pools.h"

#include <algorithm>

#include "src/base/pages.h"
#include "src/core/ledger/trace.h"

namespace hbmprof::internal {

class Pools::BlockList {
 public:
  BlockList() = default;
  ~BlockList() {
    if (blocks_ != few_) UnmapPages(blocks_, capacity_ * sizeof(Block));
  }
  BlockList(const BlockList&) = delete;
  BlockList& operator=(const BlockList&) = delete;

  // Reserves space for `count` blocks, once. Returns false if the host has no memory.
  bool Reserve(size_t count) {
    auto* blocks = static_cast<Block*>(MapPages(count * sizeof(Block)));
    if (blocks == nullptr) return false;
    blocks_ = blocks;
    capacity_ = count;
    return true;
  }
  void Clear() { size_ = 0; }
  // Has no effect if the list is full.
  void Add(const Block& block) {
    if (size_ < capacity_) blocks_[size_++] = block;
  }
  size_t capacity() const { return capacity_; }
  Block* begin() const { return blocks_; }
  Block* end() const { return blocks_ + size_; }

 private:
  Block few_[kFewBlocks];
  Block* blocks_ = few_;
  size_t size_ = 0;
  size_t capacity_ = kFewBlocks;
};

// --- A block's bytes ------------------------------------------------------------------------------------------------

Pools::Position Pools::PositionIn(uint64_t address, int64_t bytes) const {
  const Segment* const around = segments_.At(address);
  Position position{IdOf(address, around == nullptr ? 1 : around->depth + 1)};
  segments_.ForEachPart(address, address + static_cast<uint64_t>(std::max<int64_t>(bytes, 1)), kMaxLevel,
                        [&](const Segment* segment, int64_t) {
                          position.in_pool = true;
                          position.account = segment->account;
                          return false;
                        });
  return position;
}

Pools::Position Pools::PositionOfBlock(uint64_t address, int64_t bytes) {
  Change shared(ledger_, Change::Scope::kOwnShard);
  return shared.is_usable() ? PositionIn(address, bytes) : Position{IdOf(address, 1)};
}

Attributes Pools::Position::AttributesOf(Attributes named) const {
  if (in_pool) named.device = DeviceOf(account);
  // Only segments have the kind kPool, also where a segment is recorded around the block later.
  if (named.kind == MemoryKind::kPool || (in_pool && !IsForBlocks(named.kind))) named.kind = MemoryKind::kDevice;
  return named;
}

template <typename Visit>
bool Pools::ForEachPart(uint64_t id, const LiveRecord& record, const Visit& visit) const {
  const Site& site = sites_.At(record.site);
  if (site.kind != SiteKind::kBlock || record.bytes == 0) return true;
  const uint64_t start = AddressOf(id);
  return segments_.ForEachPart(
      start, start + static_cast<uint64_t>(record.bytes), LevelOf(id),
      [&](Segment* segment, int64_t bytes) { return segment->account != site.account || visit(*segment, bytes); });
}

Pools::Taken Pools::TakeParts(Change& change, uint64_t id, const LiveRecord& record, int64_t* taken) {
  *taken = 0;
  Taken result = Taken::kTaken;
  ForEachPart(id, record, [&](Segment& segment, int64_t bytes) {
    if (!change.Prepare(segment.site)) {
      result = Taken::kNeedsAll;
    } else if (!SegmentMap::Take(segment, bytes)) {
      result = Taken::kTooFew;
    } else {
      *taken += bytes;
    }
    return result == Taken::kTaken;
  });
  if (result != Taken::kTaken) ReturnParts(id, record, *taken);
  return result;
}

void Pools::ReturnParts(uint64_t id, const LiveRecord& record, int64_t taken) {
  ForEachPart(id, record, [&](Segment& segment, int64_t bytes) {
    if (taken == 0) return false;
    SegmentMap::Return(segment, bytes);
    taken -= bytes;
    return true;
  });
}

int64_t Pools::ChargeParts(Change& change, uint64_t id, const LiveRecord& record, int64_t sign) {
  int64_t charged = 0;
  ForEachPart(id, record, [&](const Segment& segment, int64_t bytes) {
    change.Charge(segment.site, sign * bytes);
    charged += bytes;
    return true;
  });
  change.AddBlockBytes(sign * charged);
  return charged;
}

void Pools::GiveBack(Change& change, uint64_t id, const LiveRecord& record) {
  const int64_t taken = ChargeParts(change, id, record, -1);
  ReturnParts(id, record, taken);
  CountOutside(id, record, taken, -1);
}

void Pools::Keep(Change& change, uint64_t id, const LiveRecord& record) {
  CountOutside(id, record, ChargeParts(change, id, record, 1), 1);
}

void Pools::CountOutside(uint64_t id, const LiveRecord& record, int64_t taken, int64_t sign) {
  if (IsBlockId(id) && taken < record.bytes) blocks_outside_.fetch_add(sign, std::memory_order_relaxed);
}

// --- Buffers and blocks ---------------------------------------------------------------------------------------------

bool Pools::LoadViewOutOfLine(Ledger::OwnShard& own, uint64_t address) const { return LoadView(own, address); }

SiteId Pools::SiteWith(SiteId site, const Attributes& attributes, bool in_pool) {
  SiteKey key = sites_.Key(site);
  key.attributes = attributes;
  key.in_pool = in_pool;
  return SiteWord(key) == sites_.At(site).word ? site : sites_.InternSite(key);
}

std::optional<Pools::Added> Pools::AddBy(Change& change, const Addition& addition, uint64_t* id_of_record) {
  constexpr std::optional<Added> kNeedsAll = std::nullopt;
  if (!change.is_usable()) return Added::kNoMemory;
  uint64_t id = addition.id;
  LiveRecord record = addition.record;
  Attributes attributes;  // of a block
  if (IsBlockId(id)) {
    const Position position = PositionIn(AddressOf(id), record.bytes);
    id = position.id;
    attributes = position.AttributesOf(addition.named);
    record.site = SiteWith(record.site, attributes, position.in_pool);
  }
  *id_of_record = id;
  if (record.site == kNoSite) return Added::kNoMemory;
  if (!change.Prepare(record.site)) return change.holds_all() ? Added::kNoMemory : kNeedsAll;
  int64_t taken = 0;
  if (TakeParts(change, id, record, &taken) != Taken::kTaken) {
    // Without the other shards' locks, another thread may be about to give back what it has taken.
    if (!change.holds_all()) return kNeedsAll;
    // The block may fit after the removal of a block whose free was not recorded.
    LiveRecord other;
    if (live_.Find(id, &other)) return Added::kReplaces;
    taken = 0;
    record.site = SiteWith(record.site, attributes, /*in_pool=*/false);
    if (record.site == kNoSite || !change.Prepare(record.site)) return Added::kNoMemory;
  }
  const Site& site = sites_.At(record.site);
  const bool is_admitted = change.Admits(site.account, record.bytes - taken);
  const LiveTable::Inserted inserted = is_admitted ? live_.Insert(id, record) : LiveTable::Inserted::kNoMemory;
  if (inserted != LiveTable::Inserted::kNew) {
    ReturnParts(id, record, taken);
    if (!is_admitted) return kNeedsAll;
    return inserted == LiveTable::Inserted::kTaken ? Added::kReplaces : Added::kNoMemory;
  }
  change.Enter(Event::kAlloc, id, record);
  if (site.kind == SiteKind::kPool) change.AddPoolBytes(record.bytes);
  Keep(change, id, record);
  return Added::kAdded;
}

Pools::Added Pools::Add(const Addition& addition, bool* replaced) {
  for (;;) {
    Added added = Added::kNoMemory;
    uint64_t id = 0;
    ledger_.InChange([&](Change& change) {
      const std::optional<Added> result = AddBy(change, addition, &id);
      if (result.has_value()) added = *result;
      return result.has_value();
    });
    if (added != Added::kReplaces) return added;
    if (Remove(id).has_value()) *replaced = true;
  }
}

void Pools::EnterFree(Change& change, uint64_t id, const LiveRecord& record) {
  change.Enter(Event::kFree, id, record);
  if (sites_.At(record.site).kind == SiteKind::kPool) change.AddPoolBytes(-record.bytes);
  GiveBack(change, id, record);
}

bool Pools::RemoveBy(Change& change, uint64_t id, const LiveRecord* expected, std::optional<Block>* removed) {
  if (!change.is_usable()) return true;
  Block block{id, {}};
  bool is_segment = false;
  bool needs_all = false;
  const bool is_erased = live_.EraseWhere(id, &block.record, [&] {
    if (expected != nullptr && LiveTable::Pack(*expected) != LiveTable::Pack(block.record)) return false;
    is_segment = sites_.At(block.record.site).kind == SiteKind::kSegment;
    // A Change of all shards has the cells that EnterFree needs. Preparing them takes no lock.
    const auto prepares = [&](const Segment& segment, int64_t) { return change.Prepare(segment.site); };
    needs_all = !change.holds_all() &&
                (is_segment || !change.Prepare(block.record.site) || !ForEachPart(id, block.record, prepares));
    return !is_segment && !needs_all;
  });
  if (needs_all) return false;
  if (is_erased) {
    EnterFree(change, id, block.record);
    *removed = block;
  } else if (is_segment) {
    *removed = RemoveWithContents(change, segments_.Find(AddressOf(id), id));
  }
  return true;
}

std::optional<Pools::Block> Pools::Remove(uint64_t id, const LiveRecord* expected) {
  std::optional<Block> removed;
  {
    Change change(ledger_, Change::Scope::kOwnShard);
    if (RemoveBy(change, id, expected, &removed)) return removed;
  }
  TraceStep(EventStep::kSegmentFreed);
  Change change(ledger_, Change::Scope::kAllShards);
  RemoveBy(change, id, expected, &removed);
  return removed;
}

std::optional<Pools::Block> Pools::RemoveBlock(uint64_t address) {
  // Another thread may free the block, or give it another id, after LookUpBlock.
  while (const std::optional<Block> block = LookUpBlock(address)) {
    if (std::optional<Block> removed = Remove(block->id); removed.has_value()) return removed;
  }
  return std::nullopt;
}

std::optional<Pools::Block> Pools::LookUpBlock(uint64_t address) {
  Change shared(ledger_, Change::Scope::kOwnShard);
  return shared.is_usable() ? FindBlock(address) : std::nullopt;
}

std::optional<Pools::Block> Pools::FindBlock(uint64_t address) const {
  const Segment* segment = segments_.At(address);
  for (int level = segment == nullptr ? 1 : segment->depth + 1; level > 0; --level) {
    Block found{IdOf(address, level), {}};
    if (live_.Find(found.id, &found.record)) return found;
  }
  return std::nullopt;
}

bool Pools::ChangeSite(uint64_t id, const LiveRecord& expected, SiteId site) {
  Change change(ledger_, Change::Scope::kAllShards);
  LiveRecord record;
  if (!change.is_usable() || !live_.Find(id, &record)) return false;
  if (LiveTable::Pack(record) != LiveTable::Pack(expected)) return false;
  if (!change.Prepare(site)) return true;
  live_.Update(id, site, record.bytes);
  change.Move(id, record.site, site, record.bytes, record.bytes);
  return true;
}

bool Pools::Rename(uint64_t id, uint64_t new_id) {
  Change change(ledger_, Change::Scope::kAllShards);
  LiveRecord record;
  if (!change.is_usable() || !live_.Find(id, &record) || !live_.Rename(id, new_id)) return false;
  change.Rename(id, new_id, record.site, record.bytes);
  return true;
}

// --- Blocks while segments change: all of these functions hold all shards' locks ------------------------------------

bool Pools::DetachBlocks(Change& change, uint64_t start, uint64_t end, AccountId account, BlockList* list) {
  size_t count = 0;
  const auto collect = [&] {
    count = 0;
    list->Clear();
    live_.ForEach([&](uint64_t id, const LiveRecord& record) {
      const Site& site = sites_.At(record.site);
      const uint64_t address = AddressOf(id);
      if (!IsBlockId(id) || site.kind == SiteKind::kSegment || site.account != account || address >= end ||
          start >= address + std::max<uint64_t>(static_cast<uint64_t>(record.bytes), 1)) {
        return;
      }
      list->Add({id, record});
      ++count;
    });
  };
  collect();
  if (count > list->capacity()) {
    if (!list->Reserve(count)) return false;
    collect();
  }
  for (const Block& block : *list) GiveBack(change, block.id, block.record);
  return true;
}

void Pools::FreeDetached(Change& change, uint64_t start, uint64_t end, int depth, BlockList* list) {
  for (Block& block : *list) {
    const uint64_t address = AddressOf(block.id);
    if (address < start || address >= end || static_cast<uint64_t>(block.record.bytes) > end - address) continue;
    if (LevelOf(block.id) <= depth || sites_.At(block.record.site).kind != SiteKind::kBlock) continue;
    FreeOne(change, block);
    block.id = 0;
  }
}

void Pools::FreeOne(Change& change, const Block& block) {
  LiveRecord erased;
  live_.Erase(block.id, &erased);
  change.Enter(Event::kFree, block.id, erased);
}

void Pools::ReattachBlocks(Change& change, const BlockList& list) {
  // First the blocks that had taken bytes from segments before the change, then the others.
  for (const bool is_block : {true, false}) {
    for (const Block& block : list) {
      if (block.id != 0 && (sites_.At(block.record.site).kind == SiteKind::kBlock) == is_block) Reattach(change, block);
    }
  }
}

void Pools::Reattach(Change& change, const Block& block) {
  const Attributes attributes = sites_.Key(block.record.site).attributes;
  const int64_t bytes = block.record.bytes;
  const Position position = PositionIn(AddressOf(block.id), bytes);
  uint64_t id = block.id;
  if (position.id != id && live_.Rename(id, position.id)) {
    id = position.id;
    change.Rename(block.id, id, block.record.site, bytes);
  }
  LiveRecord record = block.record;
  const auto set_site = [&](bool in_pool) {
    const SiteId site = SiteWith(block.record.site, attributes, in_pool);
    if (site == kNoSite || !change.Prepare(site)) return false;
    record.site = site;
    return true;
  };
  int64_t taken = 0;
  const bool in_pool = position.in_pool && position.account == AccountOf(attributes) && set_site(true) &&
                       TakeParts(change, id, record, &taken) == Taken::kTaken;
  if (!in_pool && !set_site(false)) {
    // The tables have no space for the site of a block that is in no segment any more.
    record.site = block.record.site;
    return FreeOne(change, {id, record});
  }
  if (record.site != block.record.site) {
    live_.Update(id, record.site, bytes);
    change.Move(id, block.record.site, record.site, bytes, bytes);
  }
  Keep(change, id, record);
}

// --- Segments: all of these functions hold all shards' locks --------------------------------------------------------

bool Pools::HoldsBlocks(uint64_t start, uint64_t end, int depth) {
  bool holds = false;
  segments_.ForEachSegment(start, end, [&](const Segment* segment) {
    holds = holds || (segment->depth >= depth && (segment->block_bytes() > 0 || (segment->depth > 0 && HasOutside())));
  });
  return holds;
}

void Pools::TakeBytes(Change& change, Segment* segment, int64_t bytes) {
  const auto take = [&](Segment* from, int64_t more) {
    segment->taken += more;
    if (from == nullptr) return change.AddPoolBytes(more);
    if (more == 0) return;
    SegmentMap::Return(*from, -more);
    from->inner_bytes += more;
    change.Charge(from->site, more);
  };
  if (segment->taken_from != segment->outer) take(segment->taken_from, -segment->taken);
  segment->taken_from = segment->outer;
  take(segment->outer, bytes - segment->taken);
}

void Pools::TakeBytesOfAll(Change& change, uint64_t start, uint64_t end) {
  segments_.ForEachSegment(start, end, [&](Segment* segment) { TakeBytes(change, segment, segment->bytes()); });
}

Pools::Added Pools::InsertSegment(Change& change, uint64_t id, SiteId site, int64_t bytes, bool was_block) {
  const uint64_t address = AddressOf(id);
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  const AccountId account = sites_.At(site).account;
  if (end < address || !segments_.Fits(address, end)) return Added::kRefused;
  if (!change.Prepare(site)) return Added::kNoMemory;
  const Segment* outer = segments_.Around(address, end);
  const int depth = outer == nullptr ? 0 : outer->depth + 1;
  if (outer != nullptr && outer->account != account) return Added::kRefused;
  if (IsBlockId(id) && (outer == nullptr || IdOf(address, depth) != id)) return Added::kRefused;
  // The segments that will be directly inside the new one.
  bool is_one_account = true;
  int64_t inner_bytes = 0;
  int deepest = depth;
  segments_.ForEachSegment(address, end, [&](const Segment* inner) {
    if (inner->depth >= depth) deepest = std::max(deepest, inner->depth + 1);
    if (inner->depth != depth || inner->outer != outer) return;
    is_one_account = is_one_account && inner->account == account;
    inner_bytes += inner->bytes();
  });
  if (!is_one_account || deepest >= kMaxLevel || (was_block && inner_bytes > 0)) return Added::kRefused;
  // Blocks in an inner segment get another level. Blocks that lie partly in an inner segment take bytes from the new
  // segment, too. No other block has taken the bytes of one that becomes a segment.
  BlockList blocks;
  const bool holds_blocks = HasOutside() || HoldsBlocks(address, end, depth - (was_block ? 0 : 1));
  if (holds_blocks && !DetachBlocks(change, address, end, account, &blocks)) return Added::kNoMemory;
  Added added = Added::kRefused;
  if (outer == nullptr || outer->idle() + inner_bytes >= bytes) {
    added = segments_.Add(address, end, id, site, account) != nullptr ? Added::kAdded : Added::kNoMemory;
  }
  if (added == Added::kAdded) {
    TakeBytesOfAll(change, address, end);
    if (inner_bytes > 0) SetLevels(change, address, end, depth);
  }
  ReattachBlocks(change, blocks);
  return added;
}

void Pools::SetLevels(Change& change, uint64_t start, uint64_t end, int around) {
  // Deepest first, so that no id is in use when a segment gets it. (If an id is in use nevertheless, or the host has no
  // memory, the segment keeps its old id.)
  for (int depth = DeepestIn(start, end)->depth; depth > around; --depth) {
    segments_.ForEachSegment(start, end, [&](Segment* inner) {
      const uint64_t id = IdOf(inner->start, depth);
      if (inner->depth != depth || !IsBlockId(inner->id) || id == inner->id || !live_.Rename(inner->id, id)) return;
      change.Rename(inner->id, id, inner->site, inner->bytes());
      inner->id = id;
    });
  }
}

Pools::Added Pools::AddSegment(Change& change, uint64_t id, const LiveRecord& record) {
  const LiveTable::Inserted inserted = live_.Insert(id, record);
  if (inserted == LiveTable::Inserted::kTaken) return Added::kRefused;
  if (inserted == LiveTable::Inserted::kNoMemory) return Added::kNoMemory;
  const Added added = InsertSegment(change, id, record.site, record.bytes, /*was_block=*/false);
  LiveRecord erased;
  if (added == Added::kAdded) {
    change.Enter(Event::kAlloc, id, record);
  } else {
    live_.Erase(id, &erased);
  }
  return added;
}

Pools::Added Pools::AddSegment(uint64_t address, SiteId site, int64_t bytes) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return Added::kNoMemory;
  const uint64_t end = address + static_cast<uint64_t>(bytes);
  const Segment* outer = segments_.Around(address, end);
  if (outer != nullptr && outer->start == address && outer->end == end) return Added::kRefused;
  if (outer != nullptr && outer->account != sites_.At(site).account) {
    Attributes attributes = sites_.Key(site).attributes;
    attributes.device = DeviceOf(outer->account);
    site = SiteWith(site, attributes, /*in_pool=*/true);
    if (site == kNoSite) return Added::kNoMemory;
  }
  // The address may already be the id of a live record: that of the segment around the new one. Then the new segment
  // gets the id of a block in that segment.
  LiveRecord other;
  const bool is_taken = live_.Find(address, &other);
  if (is_taken && !IsBlockAddress(address)) return Added::kRefused;
  const uint64_t id = is_taken ? IdOf(address, outer == nullptr ? 1 : outer->depth + 1) : address;
  return AddSegment(change, id, {site, PresentGeneration(), bytes});
}

std::optional<bool> Pools::MakeSegment(uint64_t address, int64_t bytes, AllocatorId allocator) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return std::nullopt;
  Block block{address, {}};
  if (!live_.Find(address, &block.record) || sites_.At(block.record.site).kind == SiteKind::kSegment) {
    const std::optional<Block> inner = FindBlock(address);
    if (!inner.has_value() || inner->record.bytes != bytes || sites_.At(inner->record.site).kind != SiteKind::kBlock) {
      return std::nullopt;
    }
    block = *inner;
  }
  const LiveRecord& record = block.record;
  Attributes attributes = sites_.Key(record.site).attributes;
  if (!IsForBlocks(attributes.kind)) return false;
  attributes.kind = MemoryKind::kPool;
  if (allocator != AllocatorId{}) attributes.allocator = allocator;
  const SiteId site = SiteWith(record.site, attributes, /*in_pool=*/true);
  if (site == kNoSite || !change.Prepare(site)) return false;
  // A block's bytes return to the segments around it, and the segment takes them again.
  GiveBack(change, block.id, record);
  live_.Update(block.id, site, record.bytes);
  if (InsertSegment(change, block.id, site, record.bytes, IsBlockId(block.id)) == Added::kAdded) {
    change.Move(block.id, record.site, site, record.bytes, record.bytes);
    return true;
  }
  live_.Update(block.id, record.site, record.bytes);
  if (IsBlockId(block.id)) Reattach(change, block);
  return false;
}

Pools::Block Pools::RemoveWithContents(Change& change, Segment* segment) {
  const uint64_t start = segment->start;
  const uint64_t end = segment->end;
  BlockList blocks;
  if (HoldsBlocks(start, end, segment->depth)) {
    // If the host has no memory to list the blocks, they are removed a few at a time, and with them those that lie
    // partly outside of the segment.
    while (!DetachBlocks(change, start, end, segment->account, &blocks)) {
      for (const Block& block : blocks) {
        GiveBack(change, block.id, block.record);
        FreeOne(change, block);
      }
    }
    FreeDetached(change, start, end, segment->depth, &blocks);
  }
  for (Segment* inner = DeepestIn(start, end); inner != segment; inner = DeepestIn(start, end)) {
    RemoveEmpty(change, inner);
  }
  const Block removed = RemoveEmpty(change, segment);
  ReattachBlocks(change, blocks);
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
  Block removed{segment->id, {}};
  live_.Erase(segment->id, &removed.record);
  change.Enter(Event::kFree, segment->id, removed.record);
  TakeBytes(change, segment, 0);
  segments_.Remove(segment);
  return removed;
}

// --- Sizes ---------------------------------------------------------------------------------------------------------

void Pools::SetSegmentBytes(Change& change, const Segment& segment, int64_t old_bytes) {
  live_.Update(segment.id, segment.site, segment.bytes());
  change.Move(segment.id, segment.site, segment.site, old_bytes, segment.bytes());
}

bool Pools::ResizeSegment(Change& change, Segment* segment, int64_t bytes) {
  const uint64_t start = segment->start;
  const uint64_t old_end = segment->end;
  const uint64_t end = start + static_cast<uint64_t>(bytes);
  const int64_t old_bytes = segment->bytes();
  const uint64_t low = std::min(end, old_end);
  const uint64_t high = std::max(end, old_end);
  const bool grows = end > old_end;
  const Segment* outer = segment->outer;
  if (bytes <= 0 || end < start || !segments_.Fits(start, end, segment)) return false;
  if (outer != nullptr && !outer->Contains(start, end)) return false;
  bool is_cut = false;
  segments_.ForEachSegment(start, high, [&](const Segment* other) {
    if (other == segment || other->depth < segment->depth) return;
    is_cut = is_cut || other->start >= old_end || (other->start < end && end < other->end);
  });
  if (is_cut) return false;
  if (!segments_.Reserve(1)) return false;
  // Blocks overlap if the free of one was not recorded. Then they may have taken more than the smaller segment has, so
  // all of them are attached again.
  const uint64_t first = !grows && old_bytes - segment->idle() > bytes ? start : low;
  BlockList blocks;
  const bool holds_blocks = (grows && HasOutside()) || HoldsBlocks(low, high, segment->depth - (grows ? 1 : 0));
  if (holds_blocks && !DetachBlocks(change, first, high, segment->account, &blocks)) return false;
  if (grows && outer != nullptr && outer->idle() < bytes - old_bytes) {
    ReattachBlocks(change, blocks);
    return false;
  }
  // Removes the inner segments that have bytes in the part that is cut off.
  for (Segment* inner = DeepestIn(low, high); inner != nullptr && inner->depth > segment->depth;
       inner = DeepestIn(low, high)) {
    RemoveEmpty(change, inner);
  }
  segments_.SetEnd(segment, end);
  TakeBytes(change, segment, bytes);
  SetSegmentBytes(change, *segment, old_bytes);
  FreeDetached(change, end, old_end, segment->depth, &blocks);
  ReattachBlocks(change, blocks);
  return true;
}

bool Pools::ResizeRecord(Change& change, uint64_t id, int64_t bytes) {
  Block block{id, {}};
  if (!live_.Find(id, &block.record)) return false;
  const LiveRecord before = block.record;
  const Site& site_before = sites_.At(before.site);
  if (before.bytes == bytes || site_before.key().attributes.kind == MemoryKind::kAlias) return true;
  if (site_before.kind == SiteKind::kSegment) return ResizeSegment(change, segments_.Find(AddressOf(id), id), bytes);
  block.record.bytes = bytes;
  GiveBack(change, id, before);
  live_.Update(id, before.site, bytes);
  change.Move(id, before.site, before.site, before.bytes, bytes);
  if (site_before.kind == SiteKind::kPool) change.AddPoolBytes(bytes - before.bytes);
  if (IsBlockId(id)) Reattach(change, block);
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
  segments_.ForEachSegment(segment->start, segment->end, [&](const Segment* inner) {
    is_cut = is_cut || (inner->depth > segment->depth && inner->start < at && at < inner->end);
  });
  if (is_cut || !segments_.Reserve(1)) return false;
  const int64_t old_bytes = segment->bytes();
  const auto low_bytes = static_cast<int64_t>(at - segment->start);
  LiveRecord record;
  live_.Find(segment->id, &record);
  record.bytes = old_bytes - low_bytes;
  // The blocks give their bytes back to the segment, and then take them from the part in which they lie.
  BlockList blocks;
  const uint64_t end = segment->end;
  if (segment->block_bytes() > 0 && !DetachBlocks(change, segment->start, end, segment->account, &blocks)) {
    return false;
  }
  Segment* high = nullptr;
  if (live_.Insert(at, record) == LiveTable::Inserted::kNew) {
    high = segments_.Split(segment, at, at, record.site);
    if (high == nullptr) live_.Erase(at, &record);
  }
  if (high != nullptr) {
    change.Enter(Event::kAlloc, at, record);
    TakeBytesOfAll(change, segment->start, end);
    SetSegmentBytes(change, *segment, old_bytes);
  }
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
  const int64_t second_taken = second_bytes - second->idle();
  const SiteId second_site = second->site;
  if (!segments_.Merge(first, second)) return false;
  LiveRecord erased;
  live_.Erase(second_address, &erased);
  change.Charge(second_site, -second_taken);
  change.Enter(Event::kFree, second_address, erased);
  change.Charge(first->site, second_taken);
  SetSegmentBytes(change, *first, first_bytes);
  return true;
}

// --- Many records ---------------------------------------------------------------------------------------------------

template <typename Matches>
void Pools::RemoveWhere(const Matches& matches) {
  uint64_t next = LiveTable::kFirstHash;
  for (bool has_more = true; has_more;) {
    Block some[kFewBlocks];
    size_t count = 0;
    bool is_again = false;
    const uint64_t from = next;
    {
      Change shared(ledger_, Change::Scope::kOwnShard);  // segments stay as they are
      if (!shared.is_usable()) return;
      has_more = live_.VisitSome(&next, [&](uint64_t id, const LiveRecord& record) {
        if (is_again || !matches(id, record)) return;
        is_again = count == kFewBlocks;
        if (!is_again) some[count++] = {id, record};
      });
    }
    for (size_t i = 0; i < count; ++i) is_again = !Remove(some[i].id, &some[i].record).has_value() || is_again;
    if (!is_again) continue;
    // There are more of them, or another thread has changed one. Visits those again that are left.
    next = from;
    has_more = true;
  }
}

void Pools::EndBlocks(DeviceId device, AllocatorId allocator) {
  RemoveWhere([&](uint64_t id, const LiveRecord& record) { return IsBlockOf(id, record, device, allocator); });
}

bool Pools::IsBlockOf(uint64_t id, const LiveRecord& record, DeviceId device, AllocatorId allocator) const {
  const SiteKey key = sites_.Key(record.site);
  return IsBlockId(id) && key.attributes.kind != MemoryKind::kPool && key.attributes.device == device &&
         key.attributes.allocator == allocator;
}

std::optional<int64_t> Pools::BlockBytes(DeviceId device, AllocatorId allocator) {
  Change change(ledger_, Change::Scope::kAllShards);
  if (!change.is_usable()) return std::nullopt;
  int64_t bytes = 0;
  live_.ForEach([&](uint64_t id, const LiveRecord& record) {
    if (IsBlockOf(id, record, device, allocator)) bytes += record.bytes;
  });
  return bytes;
}

void Pools::DropDevice(const DroppedRecords& dropped) {
  // Blocks go first, while their segments decide.
  for (const bool is_segment : {false, true}) {
    RemoveWhere([&](uint64_t id, const LiveRecord& record) {
      if ((sites_.At(record.site).kind == SiteKind::kSegment) != is_segment) return false;
      const Segment* segment = is_segment ? segments_.Find(AddressOf(id), id) : nullptr;
      ForEachPart(id, {record.site, 0, std::max<int64_t>(record.bytes, 1)}, [&](const Segment& first, int64_t) {
        segment = &first;
        return false;
      });
      while (segment != nullptr && segment->outer != nullptr) segment = segment->outer;
      const SiteId decides = segment != nullptr ? segment->site : record.site;
      return dropped.HasKind(sites_.Key(decides).attributes) && !dropped.Keeps(id);
    });
  }
}

}  // namespace hbmprof::internal
