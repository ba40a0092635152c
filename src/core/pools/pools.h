// Pools: enters the events of all records (of buffers, segments and blocks) into the live table and into the ledger, so
// that every reserved byte is counted once, at any nesting of segments (src/README.md).
//
// The depth of a segment is the number of segments that contain it. A block has a level: one more than the depth of the
// innermost other segment at its address (the level of a block that is a segment is its depth). It takes its bytes from
// the innermost segments whose depth is below its level. The id of its record in the live table holds address and
// level, so a segment and the blocks at its address have different ids.
//
// Example: a segment of 20 MiB (depth 0) has a block of 4 MiB and a block of 6 MiB (both of level 1). Its site counts
// the 10 MiB that are idle, the sites of the blocks count 4 and 6 MiB: together 20 MiB. Then the block of 6 MiB becomes
// a segment (depth 1) in which a block of 1 MiB is recorded (level 2). This takes 1 MiB from the inner segment, whose
// site now counts its 5 idle MiB. The sum is still 10 + 4 + 5 + 1 = 20 MiB. The idle bytes of the outer segment do not
// change.
//
// Thread safety: all methods may be called from any thread at any time.
//
// Invariants, whenever no event is in progress:
// 1. Every event of a record, of whatever kind, holds a shard's lock while it changes the live table and the ledger.
//    So with all shards' locks, records and segments do not change, except by this thread.
// 2. A live record of SiteKind::kBlock has taken its bytes, as described above, from the segments of its own account.
//    These bytes are subtracted from the idle bytes of the segments, and in the ledger from the cells of the segments'
//    sites.
// 3. Every other block counts all of its bytes itself. Either no byte of it lies in a segment of its account, or these
//    segments had too few idle bytes, for example because a block's free was not recorded.
// 4. A segment inside another has taken its bytes from that one, in the same way (Segment::taken).
// 5. blocks_outside_ is the number of live blocks with at least one byte that the block has not taken from a segment.
//    While it is 0, a change of segments concerns only blocks that have taken bytes from segments (HoldsBlocks).
// 6. The segments of the segment map are the live records of SiteKind::kSegment. Both change only with all shards'
//    locks.
#ifndef HBMPROF_SRC_CORE_POOLS_POOLS_H_
#define HBMPROF_SRC_CORE_POOLS_POOLS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "hbmprof/allocation.h"
#include "src/core/ledger/ledger.h"
#include "src/core/pools/segments.h"
#include "src/core/tables/live_table.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

// The records that DropDevice removes: those of a device, without those of the allocator `survivor` and of the ids in
// `kept`.
struct DroppedRecords {
  bool HasKind(const Attributes& attributes) const {
    return attributes.device == device && attributes.allocator != survivor;
  }
  bool Keeps(uint64_t id) const { return std::binary_search(kept.begin(), kept.end(), id); }

  DeviceId device;
  std::optional<AllocatorId> survivor;
  std::vector<uint64_t> kept;  // sorted
};

class Pools {
  using Change = Ledger::Change;
  using Event = Ledger::Event;

 public:
  Pools(SiteTable& sites, LiveTable& live, Ledger& ledger) : sites_(sites), live_(live), ledger_(ledger) {}

  // Returns whether an id in the live table is that of a block. (A block may also be a segment.)
  static bool IsBlockId(uint64_t id) { return (id & kBlockBit) != 0; }
  // Returns whether a block may have this address. In an id, bits 50 to 56 hold the level minus 1; bit 63 marks a
  // block.
  static bool IsBlockAddress(uint64_t address) { return (address & (kBlockBit | kLevelBits)) == 0; }
  static uint64_t AddressOf(uint64_t id) { return IsBlockId(id) ? id & ~(kBlockBit | kLevelBits) : id; }

  // Returns whether a block in a segment may be of this kind.
  static bool IsForBlocks(MemoryKind kind) {
    return SpaceOf(kind) == MemorySpace::kDevice && kind != MemoryKind::kPool;
  }
  // The position of a block among the segments.
  struct Position {
    // Returns the attributes of the site of a block there. `named`: those that its caller names.
    Attributes AttributesOf(Attributes named) const;

    uint64_t id = 0;        // of its record
    bool in_pool = false;   // some byte lies in a segment
    AccountId account = 0;  // if in_pool, the segment's
  };
  // Returns the position of a block. It may be another one as soon as the function returns.
  Position PositionOfBlock(uint64_t address, int64_t bytes);

  enum class Added : uint8_t {
    kAdded,
    kRefused,   // not added: see AddSegment
    kNoMemory,  // not added: the host has no memory, or a table is full
    kReplaces,  // not added: there is a record of that id, or it has the bytes; only AddBy returns it
  };
  // A new record of a buffer or a block.
  struct Addition {
    uint64_t id;  // of a block: with any level
    LiveRecord record;
    Attributes named{};  // of a block: the attributes that its caller names
  };
  // Adds a buffer or a block. A block gets the site that differs from the record's in what depends on its position: if
  // some byte lies in a segment, a site of SiteKind::kBlock. But it counts all of its bytes itself, at a site of
  // kPlain, if the segments have too few idle bytes. If there is a record of that id, its free was not recorded: Add
  // removes it, by an event of its own, and sets `*replaced` to true.
  Added Add(const Addition& addition, bool* replaced);
  // A record of the live table with its id.
  struct Block {
    uint64_t id;
    LiveRecord record;
  };
  // Removes and returns the record of this id. If it is a segment, all segments in it, and all blocks that lie in it
  // and have taken their bytes from it, are removed, too. If `expected` is not null, removes nothing unless the record
  // has its site and its bytes.
  std::optional<Block> Remove(uint64_t id, const LiveRecord* expected = nullptr);
  // The same for the innermost block at `address`. Looks up its id by a Change of its own, and again if that is gone.
  std::optional<Block> RemoveBlock(uint64_t address);
  // Returns the innermost block at `address`.
  std::optional<Block> LookUpBlock(uint64_t address);

  // The common cases of Add and of Remove. In any other case they do nothing and return kNotEntered. The cell of the
  // site has changed in the present epoch, and the needed locks are free (of a bucket: see below). A removed record was
  // born in the present generation, so that its age is not counted. `position` comes from LiveTable::Prefetch or
  // PrefetchBlock. They call only LoadViewOutOfLine and, to wait for a bucket as stated below, LiveTable::Insert.
  //
  // A buffer whose site is plain.
  Ledger::Entered TryAdd(const LiveTable::Position& position, uint64_t id, SiteId site, int64_t bytes);
  // Sets `*packed` (LiveTable::Pack).
  Ledger::Entered TryRemove(uint64_t id, uint64_t* packed);
  // A block that lies in one segment of its account and in no segment inside that one. `site` is a site of blocks.
  // If the block's bucket is full or locked, waits for its lock.
  Ledger::Entered TryAddBlock(const LiveTable::Position& position, uint64_t address, SiteId site, int64_t bytes);
  // Sets `*packed`.
  Ledger::Entered TryRemoveBlock(uint64_t address, uint64_t* packed);
  // Starts loading the live table's bucket for a block whose segment lies in no other segment.
  LiveTable::Position PrefetchBlock(uint64_t address) const { return live_.Prefetch(IdOf(address, 1)); }

  // Gives the record of `id` the site `site` of the same account and kind. Returns false if there is none, or if it
  // does not have the site and the bytes of `expected` any more. Changes nothing if the host has no memory.
  bool ChangeSite(uint64_t id, const LiveRecord& expected, SiteId site);
  // Changes the id of a buffer's record. Returns false if there is none, if `new_id` is live, or if the host has no
  // memory.
  bool Rename(uint64_t id, uint64_t new_id);

  // Makes a live record a segment: the record with the id `address`, unless it is a segment already. Otherwise the
  // innermost block at `address`, if it has `bytes` bytes and lies in a segment. The kind of its site becomes kPool.
  // Its allocator becomes `allocator`, unless that is 0. Returns nullopt if there is no such record. Returns false if
  // the record cannot become a segment: it is not in MemorySpace::kDevice, it is of kind kPool already, it overlaps
  // another segment in part, the segments there belong to another device, have too few idle bytes or nest too deeply,
  // or the host has no memory. Then nothing changes.
  std::optional<bool> MakeSegment(uint64_t address, int64_t bytes, AllocatorId allocator);
  // Adds a segment with a new record. `site` is a site of segments; the segment gets the device of the one around it.
  // Returns kRefused if the segment overlaps another in part, has exactly the addresses of another, needs more than the
  // idle bytes of the segment around it, belongs to another device than those inside it, nests too deeply, or if its id
  // is in the live table already.
  Added AddSegment(uint64_t address, SiteId site, int64_t bytes);

  // Gives the live record of `id` another size, except if its kind is kAlias. Returns false, and changes nothing, if
  // there is none, if a segment cannot have that size (it would be empty, overlap another in part, cut a segment inside
  // it in two, or not lie inside the one around it), or if the host has no memory. If a segment shrinks, the blocks and
  // segments that lie wholly in the removed part are removed.
  bool Resize(uint64_t id, int64_t bytes);
  // The same for the innermost block at `address`.
  bool ResizeBlock(uint64_t address, int64_t bytes);
  // Splits the segment with the id `address` into two: the second begins at `at`. Returns false, and changes nothing,
  // if there is none, if `at` is not inside, if a segment inside it has bytes on both sides, if there is a live record
  // of id `at`, or if the host has no memory.
  bool SplitSegment(uint64_t address, uint64_t at);
  // Merges two adjacent segments of the same device, whose ids are their addresses. The result keeps the record of the
  // first one. Returns false, and changes nothing, if there are no such segments, if their sum exceeds
  // LiveTable::kMaxBytes, or if the host has no memory.
  bool MergeSegments(uint64_t first, uint64_t second);

  bool has_segments() const { return !segments_.empty(); }
  // Returns the device of all segments if they have one account, else `device`, the device that the caller of an event
  // names. This is probably the device of the block; TryAddBlock checks it.
  DeviceId ProbableDevice(DeviceId device) const {
    const AccountId account = segments_.only_account();
    return account >= 0 ? DeviceOf(account) : device;
  }
  // Removes all records that `dropped` names. For blocks and segments in a segment, the attributes of the outermost
  // segment decide. If a segment is kept only because of its id, all blocks and segments in it are removed. Records
  // that are added meanwhile may stay.
  void DropDevice(const DroppedRecords& dropped);

  // Frees all blocks of the device with this allocator, one by one. Segments stay.
  void EndBlocks(DeviceId device, AllocatorId allocator);
  // Returns the bytes of the live blocks of the device with this allocator. Reads the whole live table. Returns nullopt
  // if the host has no memory.
  std::optional<int64_t> BlockBytes(DeviceId device, AllocatorId allocator);

 private:
  // The highest bit is 0 in all addresses and in all handles of the backends.
  static constexpr uint64_t kBlockBit = uint64_t{1} << 63;
  static constexpr int kLevelShift = 50;
  static constexpr uint64_t kLevelBits = uint64_t{0x7f} << kLevelShift;
  static constexpr int kMaxLevel = 0x7f;  // above the depth of each segment, so that each block has a level
  static_assert(((kBlockBit | kLevelBits) & uint64_t{0x3f} << 57) == 0, "the bits of a handle's name space");
  static uint64_t IdOf(uint64_t address, int level) {
    return address ^ kBlockBit ^ static_cast<uint64_t>(level - 1) << kLevelShift;
  }
  static DeviceId DeviceOf(AccountId account) { return DeviceId(account / kMemorySpaceCount); }
  static int LevelOf(uint64_t id) { return static_cast<int>((id & kLevelBits) >> kLevelShift) + 1; }

  enum class Taken : uint8_t {
    kTaken,
    kTooFew,    // not taken: fewer bytes are idle
    kNeedsAll,  // not taken: a Change of all shards is needed
  };
  static constexpr size_t kFewBlocks = 16;  // they fit on a small stack
  // A list of blocks.
  class BlockList;

  // The functions below need a Change. Those that have no parameter for it need any.

  Position PositionIn(uint64_t address, int64_t bytes) const;
  std::optional<Block> FindBlock(uint64_t address) const;
  // Calls `visit(segment, bytes)` for each part of the record that takes bytes from a segment. Stops and returns false
  // if `visit` returns false.
  template <typename Visit>
  bool ForEachPart(uint64_t id, const LiveRecord& record, const Visit& visit) const;
  // Takes a record's bytes from the segments, and sets `*taken` to their number.
  Taken TakeParts(Change& change, uint64_t id, const LiveRecord& record, int64_t* taken);
  // Undoes TakeParts, which has taken that many bytes.
  void ReturnParts(uint64_t id, const LiveRecord& record, int64_t taken);
  // Enters into the ledger that the parts were taken (`sign` is 1) or returned (-1). Returns the number of their bytes.
  int64_t ChargeParts(Change& change, uint64_t id, const LiveRecord& record, int64_t sign);
  // Keep completes what TakeParts has begun: enters it into the ledger, and counts a block that has not taken all of
  // its bytes. GiveBack undoes both.
  void Keep(Change& change, uint64_t id, const LiveRecord& record);
  void GiveBack(Change& change, uint64_t id, const LiveRecord& record);
  // Adds `sign` to blocks_outside_ if the record is that of a block that has taken fewer bytes than it has.
  void CountOutside(uint64_t id, const LiveRecord& record, int64_t taken, int64_t sign);
  bool HasOutside() const { return blocks_outside_.load(std::memory_order_relaxed) > 0; }
  // Enters the free of a record that is no segment, after it left the live table, and calls GiveBack.
  void EnterFree(Change& change, uint64_t id, const LiveRecord& record);
  // Returns the site that differs from `site` only in its attributes and in_pool. Returns kNoSite if there is no memory
  // or the tables are full.
  SiteId SiteWith(SiteId site, const Attributes& attributes, bool in_pool);
  // The body of Add. Returns nullopt if a Change of all shards is needed. Sets `*id` to the id of the record.
  std::optional<Added> AddBy(Change& change, const Addition& addition, uint64_t* id);
  // The body of Remove. Returns false if a Change of all shards is needed.
  bool RemoveBy(Change& change, uint64_t id, const LiveRecord* expected, std::optional<Block>* removed);

  static bool IsInView(const Ledger::SegmentView& view, uint64_t address) { return address - view.start < view.bytes; }
  // Makes the shard's view that of the innermost segment at `address`. Returns false, and clears the view, if there is
  // none.
  bool LoadView(Ledger::OwnShard& own, uint64_t address) const;
  // The same, for TryAddBlock: if it were inlined there, the common case would have too few registers.
  [[gnu::noinline]] bool LoadViewOutOfLine(Ledger::OwnShard& own, uint64_t address) const;

  // The functions below need a Change of all shards.

  // Calls GiveBack for each block of the account that has a byte in [start, end), and adds the block to `list`. After
  // that, segments can change. If the host has no memory for the list, returns false, and changes nothing; `list` then
  // has some of the blocks.
  bool DetachBlocks(Change& change, uint64_t start, uint64_t end, AccountId account, BlockList* list);
  // Removes those of the listed blocks that lie wholly in [start, end) and have taken bytes from segments of at least
  // this depth.
  void FreeDetached(Change& change, uint64_t start, uint64_t end, int depth, BlockList* list);
  // Removes a block that has given its bytes back.
  void FreeOne(Change& change, const Block& block);
  // Undoes DetachBlocks after the change: each listed block takes its bytes from the segments that now exist at its
  // addresses. If a block now has another level, it gets another id; if it now counts its bytes itself, or no longer
  // does, it gets another site. A block for which the tables have no space is removed.
  void ReattachBlocks(Change& change, const BlockList& list);
  // The same, for one block.
  void Reattach(Change& change, const Block& block);
  // Returns whether blocks have taken bytes from a segment of at least this depth that has a byte in [start, end), or
  // may have their level because of such a segment within another, without taking bytes from it.
  bool HoldsBlocks(uint64_t start, uint64_t end, int depth);
  // Makes the segment take `bytes` bytes, instead of those that it has taken, from the segment around it. If there is
  // none, they are pool bytes of the account.
  void TakeBytes(Change& change, Segment* segment, int64_t bytes);
  // Makes each segment with a byte in [start, end) take its bytes from the segment that is around it now.
  void TakeBytesOfAll(Change& change, uint64_t start, uint64_t end);
  // Adds the segment to the map. The blocks and segments at its addresses then lie in it. The caller enters the segment
  // itself into the ledger. `was_block`: the segment was a block, so no other block has taken its bytes.
  Added InsertSegment(Change& change, uint64_t id, SiteId site, int64_t bytes, bool was_block);
  Added AddSegment(Change& change, uint64_t id, const LiveRecord& record);
  // Gives each segment in [start, end) that is deeper than `around` and also a block the id of its present depth.
  void SetLevels(Change& change, uint64_t start, uint64_t end, int around);
  // Removes a segment with all blocks and segments in it. Returns its record.
  Block RemoveWithContents(Change& change, Segment* segment);
  // Removes a segment without blocks and segments in it. Returns its record.
  Block RemoveEmpty(Change& change, Segment* segment);
  // Returns the segment of the greatest depth among those with a byte in [start, end), or null if there is none.
  Segment* DeepestIn(uint64_t start, uint64_t end);
  bool ResizeRecord(Change& change, uint64_t id, int64_t bytes);
  bool ResizeSegment(Change& change, Segment* segment, int64_t bytes);
  // Enters the new size of a segment, which had `old_bytes` bytes. The bytes that were taken from the segment stay
  // taken.
  void SetSegmentBytes(Change& change, const Segment& segment, int64_t old_bytes);

  // Removes the records for which `matches(id, record)` returns true, one by one. `matches` may read the segment map.
  // Records that are added or renamed meanwhile may stay.
  template <typename Matches>
  void RemoveWhere(const Matches& matches);
  bool IsBlockOf(uint64_t id, const LiveRecord& record, DeviceId device, AllocatorId allocator) const;

  SiteTable& sites_;
  LiveTable& live_;
  Ledger& ledger_;
  SegmentMap segments_;
  std::atomic<int64_t> blocks_outside_{0};
};

inline Ledger::Entered Pools::TryAdd(const LiveTable::Position& position, uint64_t id, SiteId site, int64_t bytes) {
  Ledger::OwnShard own(ledger_, site);
  if (!own.is_usable()) return Ledger::kNotEntered;
  const auto cell = own.CellOfPlain(site);
  if (cell == nullptr || !own.Admits(bytes)) return Ledger::kNotEntered;
  const bool is_inserted = live_.TryInsert(position, id, {site, PresentGeneration(), bytes});
  return is_inserted ? own.Enter(Ledger::Event::kAlloc, cell, bytes) : Ledger::kNotEntered;
}

inline Ledger::Entered Pools::TryRemove(uint64_t id, uint64_t* packed) {
  Ledger::OwnShard own(ledger_);
  if (!own.is_usable()) return Ledger::kNotEntered;
  Ledger::OwnShard::CellRef cell = nullptr;
  const bool is_erased = live_.TryErase(id, packed, [&] {
    cell = own.CellOfPlain(LiveTable::Unpack(*packed).site);
    return cell != nullptr;
  });
  if (!is_erased) return Ledger::kNotEntered;
  return own.Enter(Ledger::Event::kFree, cell, LiveTable::Unpack(*packed).bytes);
}

inline bool Pools::LoadView(Ledger::OwnShard& own, uint64_t address) const {
  Ledger::SegmentView& view = own.view();
  view = {};
  const SegmentMap::Piece* piece = segments_.PieceAt(address);
  if (piece == nullptr) return false;
  view.start = piece->start;
  view.bytes = piece->end - piece->start;
  view.id_bits = IdOf(0, piece->segment->depth + 1);
  view.segment = piece->segment;
  view.site = piece->segment->site;
  own.CompleteView(piece->segment->account);
  return true;
}

inline Ledger::Entered Pools::TryAddBlock(const LiveTable::Position& position, uint64_t address, SiteId site,
                                          int64_t bytes) {
  Ledger::OwnShard own(ledger_);
  if (!own.is_usable()) return Ledger::kNotEntered;
  Ledger::SegmentView& view = own.view();
  if (!IsInView(view, address) && !LoadViewOutOfLine(own, address)) return Ledger::kNotEntered;
  const auto cell = own.CellOfBlock(site);
  if (cell == nullptr || view.start + view.bytes - address < static_cast<uint64_t>(bytes) || !own.HasCellOfSegment() ||
      !SegmentMap::Take(*view.segment, bytes)) {
    return Ledger::kNotEntered;
  }
  const uint64_t id = address ^ view.id_bits;
  const LiveRecord record = {site, PresentGeneration(), bytes};
  if (!live_.TryInsert(id == IdOf(address, 1) ? position : live_.Prefetch(id), id, record) &&
      live_.Insert(id, record) != LiveTable::Inserted::kNew) {
    SegmentMap::Return(*view.segment, bytes);
    return Ledger::kNotEntered;
  }
  return own.EnterBlock(Event::kAlloc, cell, bytes);
}

inline Ledger::Entered Pools::TryRemoveBlock(uint64_t address, uint64_t* packed) {
  Ledger::OwnShard own(ledger_);
  if (!own.is_usable()) return Ledger::kNotEntered;
  Ledger::SegmentView& view = own.view();
  if (!IsInView(view, address) && !LoadView(own, address)) return Ledger::kNotEntered;
  if (!own.HasCellOfSegment()) return Ledger::kNotEntered;
  Ledger::OwnShard::CellRef cell = nullptr;
  int64_t bytes = 0;
  const bool is_erased = live_.TryErase(address ^ view.id_bits, packed, [&] {
    const LiveRecord record = LiveTable::Unpack(*packed);
    bytes = record.bytes;
    cell = own.CellOfBlock(record.site);
    return cell != nullptr && static_cast<uint64_t>(bytes) <= view.start + view.bytes - address;
  });
  if (!is_erased) return Ledger::kNotEntered;
  SegmentMap::Return(*view.segment, bytes);
  return own.EnterBlock(Event::kFree, cell, bytes);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_POOLS_POOLS_H_
