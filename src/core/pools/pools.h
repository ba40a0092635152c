// Pools: the blocks and segments of allocators that hand out parts of larger allocations, so that every reserved byte
// is counted once.
//
// A segment is memory that a pool has reserved. A block is a part of it that the pool handed out. A block takes its
// bytes from the segments that it lies in: from several, if they are adjacent. The block itself counts its bytes that
// are outside of all segments. The bytes of a segment that no block takes are idle and are counted in the segment's own
// site. A block can itself be a segment, of a pool inside the pool. So segments nest, and each level counts the bytes
// that no inner level counts.
//
// The depth of a segment is the number of segments that contain it. A block has a level: one more than the depth of the
// innermost segment at its address. It takes its bytes from the innermost segments whose depth is below its level. The
// id of its record in the live table holds address and level, so a segment and the blocks at its address have different
// ids.
//
// Example: a segment of 20 MiB (depth 0) has a block of 4 MiB and a block of 6 MiB (both of level 1). Its site counts
// the 10 MiB that are idle, the sites of the blocks count 4 and 6 MiB: together 20 MiB. Then the block of 6 MiB becomes
// a segment (depth 1) in which a block of 1 MiB is recorded (level 2). This takes 1 MiB from the inner segment, whose
// site now counts its 5 idle MiB. The sum is still 10 + 4 + 5 + 1 = 20 MiB. The idle bytes of the outer segment do not
// change.
//
// Thread safety: all methods may be called from any thread at any time, unless annotated.
//
// Invariants, whenever no Ledger::Change is in progress:
// 1. A live record of SiteKind::kBlock has taken its bytes, as described above, from the segments of its own account.
//    These bytes are subtracted from the idle bytes of the segments, and in the ledger from the cells of the segments'
//    sites.
// 2. Every other block counts all of its bytes itself. Either no byte of it lies in a segment of its account, or these
//    segments had too few idle bytes, for example because a block's free was not recorded.
// 3. A segment inside another has taken its bytes from that one, in the same way.
// 4. blocks_outside_ is the number of live blocks with at least one byte that the block has not taken from a segment.
//
// Frees and concurrent changes:
// - An event of a block holds one shard's lock while it changes the live table and the ledger. A change of segments
//   holds all shards' locks. So segments do not change between these two steps of a block's event.
// - The record of a segment is made and removed only while all shards are locked. So the segments in the segment map
//   are those that have a record in the live table.
// - Only the records of other buffers, which have taken no bytes from segments, can be freed at any time. Two functions
//   change such a record: MakeSegment and ResizeRecord. They compare and replace it in one step (LiveTable::Replace),
//   and find out in that step if it is gone.
//
// Order of locks: the ledger's, the live table's, the site table's.
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
 public:
  Pools(SiteTable& sites, LiveTable& live, Ledger& ledger) : sites_(sites), live_(live), ledger_(ledger) {}

  // Returns whether an id in the live table is that of a block. (A block may also be a segment.)
  static bool IsBlockId(uint64_t id) { return (id & kBlockBit) != 0; }
  // Returns whether a block may have this address. In an id, bits 50 to 56 hold the level minus 1; bit 63 marks a
  // block.
  static bool IsBlockAddress(uint64_t address) { return (address & (kBlockBit | kLevelBits)) == 0; }
  static uint64_t AddressOf(uint64_t id) { return IsBlockId(id) ? id & ~(kBlockBit | kLevelBits) : id; }

  // The position of a new block or segment.
  struct Position {
    uint64_t address = 0;
    uint64_t generation = 0;  // of the segment map for which the position was computed
    int level = 1;            // as a block
    bool in_pool = false;     // of a block: some byte lies in a segment; of a segment: all bytes lie in one
    AccountId account = 0;    // if in_pool, the segment's
    uint64_t id() const { return IdOf(address, level); }
    DeviceId device() const { return DeviceId(account / kMemorySpaceCount); }
  };
  Position PositionOfBlock(uint64_t address, int64_t bytes);
  Position PositionOfSegment(uint64_t address, int64_t bytes);

  enum class Added : uint8_t {
    kAdded,
    kMoved,     // not added: segments have changed, and the position must be computed again
    kRefused,   // not added: for a block, the segments have too few idle bytes; for a segment, see AddSegment
    kNoMemory,  // not added: the host has no memory
    kReplaces,  // not added: a block of another account is recorded at that address; only AddBlockBy returns it
  };
  // Adds a block. `event` is kAlloc, or kUndoFree with the `octave` of the free (Ledger::CountAge). If the position is
  // in_pool, the record's site must be a site of SiteKind::kBlock. If that call returns kRefused, the caller calls
  // AddBlock again, with a site of kPlain. If another block is recorded at that address, its free was not recorded:
  // AddBlock removes it and sets `*replaced` to true.
  Added AddBlock(const Position& position, const LiveRecord& record, Ledger::Event event, int octave, bool* replaced);
  // A record of the live table with its id.
  struct Block {
    uint64_t id;
    LiveRecord record;
    int octave = -1;  // of a removed block: see Ledger::CountAge
  };
  // The common case of AddBlock and of RemoveBlock: the whole block lies in one segment of its account and in no
  // segment inside that one. The segment has enough idle bytes, no other block is recorded at that address, and no
  // memory is needed; and what OwnShard requires. In any other case they do nothing and return kNotEntered. `site` is a
  // site of blocks. `position` comes from PrefetchBlock. TryRemoveBlock requires that the block was born in the present
  // generation, so that its age is not counted. It sets `*id` and `*packed` (LiveTable::Pack). It calls nothing.
  Ledger::Entered TryAddBlock(const LiveTable::Position& position, uint64_t address, SiteId site, int64_t bytes);
  Ledger::Entered TryRemoveBlock(uint64_t address, uint64_t* id, uint64_t* packed);
  // Starts loading the live table's bucket for a block whose segment lies in no other segment.
  LiveTable::Position PrefetchBlock(uint64_t address) const { return live_.Prefetch(IdOf(address, 1)); }
  // Removes and returns the innermost block at `address`. If it is a segment, all blocks and segments in it are
  // removed, too.
  std::optional<Block> RemoveBlock(uint64_t address);
  // Returns the innermost block at `address`.
  std::optional<Block> LookUpBlock(uint64_t address);

  // Makes a live record a segment: the record with the id `address`, unless it is a segment already. Otherwise the
  // innermost block at `address`, if it has `bytes` bytes and lies in a segment. The kind of its site becomes kPool.
  // Its allocator becomes `allocator`, unless that is 0. Returns nullopt if there is no such record. Returns false if
  // the record cannot become a segment: it is not in MemorySpace::kDevice, it is of kind kPool already, it overlaps
  // another segment in part, the segments there belong to another device, have too few idle bytes or nest too deeply,
  // or the host has no memory. Then nothing changes.
  std::optional<bool> MakeSegment(uint64_t address, int64_t bytes, AllocatorId allocator);
  // Adds a segment with a new record. `site` is a site of segments. Returns kRefused if the segment overlaps another in
  // part, has exactly the addresses of another, needs more than the idle bytes of the segment around it, belongs to
  // another device than the segments there, nests too deeply, or if its id is in the live table already.
  Added AddSegment(const Position& position, SiteId site, int64_t bytes);
  // Adds a segment again, because its free is undone. `octave`: see Ledger::CountAge.
  Added RestoreSegment(uint64_t id, const LiveRecord& record, int octave);
  // Removes and returns the segment with this id, with all blocks and segments in it. Returns nullopt if there is none.
  std::optional<Block> RemoveSegment(uint64_t id);

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
    return account >= 0 ? DeviceId(account / kMemorySpaceCount) : device;
  }
  // Removes all blocks and segments that `dropped` names. The blocks and segments in an outermost segment are removed
  // together with it, whatever their attributes are. If an outermost segment is kept only because of its id, all blocks
  // and segments in it are removed.
  void DropDevice(const DroppedRecords& dropped);

  // Frees all blocks of the device with this allocator. Segments stay.
  void EndBlocks(DeviceId device, AllocatorId allocator);
  // Returns the bytes of the live blocks of the device with this allocator. Reads the whole live table. Returns nullopt
  // if the host has no memory.
  std::optional<int64_t> BlockBytes(DeviceId device, AllocatorId allocator);

 private:
  using Change = Ledger::Change;
  using Event = Ledger::Event;

  // The highest bit is 0 in all addresses and in all handles of the backends.
  static constexpr uint64_t kBlockBit = uint64_t{1} << 63;
  static constexpr int kLevelShift = 50;
  static constexpr uint64_t kLevelBits = uint64_t{0x7f} << kLevelShift;
  static constexpr int kMaxLevel = 0x7f;
  static_assert(((kBlockBit | kLevelBits) & uint64_t{0x3f} << 57) == 0, "the bits of a handle's name space");
  static uint64_t IdOf(uint64_t address, int level) {
    return address ^ kBlockBit ^ static_cast<uint64_t>(level - 1) << kLevelShift;
  }
  static int LevelOf(uint64_t id) { return static_cast<int>((id & kLevelBits) >> kLevelShift) + 1; }

  // The bytes that a block takes from segments.
  struct Parts {
    int count = 0;
    int64_t bytes = 0;
    Segment* first = nullptr;
  };
  enum class Taken : uint8_t {
    kTaken,
    kTooFew,    // not taken: fewer bytes are idle
    kNeedsAll,  // not taken: a Change of all shards is needed
  };
  // Blocks that were taken out of their segments while these change.
  class DetachedBlocks;

  Position PositionIn(uint64_t address, int64_t bytes) const;
  // Returns whether the Change has the cells that FreeBlock needs for this record. A Change of all shards always has
  // them.
  bool PrepareFree(Change& change, uint64_t id, const LiveRecord& record) const;
  Taken TakeParts(Change& change, uint64_t address, int64_t bytes, int level, AccountId account, Parts* parts);
  template <typename Visit>
  void ForEachTaken(uint64_t address, int64_t bytes, int level, AccountId account, const Parts& parts,
                    const Visit& visit);
  void ReturnParts(uint64_t address, int64_t bytes, int level, AccountId account, const Parts& parts);
  void ChargeParts(Change& change, uint64_t address, int64_t bytes, int level, AccountId account, const Parts& parts,
                   int64_t sign);
  Parts PartsOf(uint64_t address, int64_t bytes, int level, AccountId account) const;
  // Gives the bytes that the block of this record has taken back to their segments, where they become idle. Returns the
  // number of these bytes.
  int64_t GiveBack(Change& change, uint64_t id, const LiveRecord& record);
  // Enters the free of a block, and gives its bytes back, after its record left the live table. Returns the octave of
  // its age.
  int FreeBlock(Change& change, uint64_t id, const LiveRecord& record);
  // Subtracts one block from blocks_outside_.
  void RemoveOutside() { blocks_outside_.fetch_sub(1, std::memory_order_relaxed); }
  bool HasOutside() const { return blocks_outside_.load(std::memory_order_relaxed) > 0; }
  static bool IsInView(const Ledger::SegmentView& view, uint64_t address) { return address - view.start < view.bytes; }
  // Makes the shard's view that of the innermost segment at `address`. Returns false, and clears the view, if there is
  // none, or if it is nested so deeply that a block in it has the level of the segment.
  bool LoadView(Ledger::OwnShard& own, uint64_t address) const;
  // The same, for TryAddBlock: if it were inlined there, the common case would have too few registers.
  [[gnu::noinline]] bool LoadViewOutOfLine(Ledger::OwnShard& own, uint64_t address) const;
  // Returns nullopt if a Change of all shards is needed.
  std::optional<Added> AddBlockBy(Change& change, const Position& position, const LiveRecord& record, Event event,
                                  int octave, bool* replaced);
  // Returns false if a Change of all shards is needed.
  bool RemoveBlockBy(Change& change, uint64_t address, std::optional<Block>* removed);

  // The functions below need a Change of all shards; FindBlock needs any Change.

  // The innermost block at `address`.
  std::optional<Block> FindBlock(uint64_t address);
  // Lists the blocks for which `matches(id, record)` returns true. Returns false if the host has no memory for the
  // list.
  template <typename Matches>
  bool Collect(const Matches& matches, DetachedBlocks* list) const;
  // Calls GiveBack for each block of the account that has a byte in [start, end), and adds the block to `list`. After
  // that, segments can change. Returns false, and does nothing, if the host has no memory for the list.
  bool DetachBlocks(Change& change, uint64_t start, uint64_t end, AccountId account, DetachedBlocks* list);
  // Undoes DetachBlocks after the change: each listed block takes its bytes from the segments that now exist at its
  // addresses. If a block now has another level, it gets another id; if it now counts its bytes itself, or no longer
  // does, it gets another site. A block for which the tables have no space is removed.
  void ReattachBlocks(Change& change, const DetachedBlocks& list);
  // The same, for one block.
  void ReattachOne(Change& change, const Block& block);
  // Removes the blocks of SiteKind::kBlock for which `matches(id, record)` returns true.
  template <typename Matches>
  void DropBlocks(Change& change, const Matches& matches);
  // Removes the blocks that count all of their bytes themselves and for whose attributes `matches` returns true. Takes
  // all shards' locks itself. Returns false if the host has no memory for any shard.
  template <typename Matches>
  bool DropBlocksOutside(const Matches& matches);
  static bool IsIdle(const Segment* segment) {
    return segment->idle_bytes.load(std::memory_order_relaxed) == segment->bytes();
  }
  // Returns the bytes that blocks have taken from the segment, without the bytes that inner segments have taken from
  // it.
  int64_t BlockBytes(const Segment* segment);
  // Returns whether blocks have taken bytes from the segment or from a segment inside it.
  bool HoldsBlocks(const Segment* segment);
  // Takes `bytes` from the segment around `segment`; if `bytes` is negative, returns -`bytes` to it. Returns false if
  // that segment has too few idle bytes. If there is no such segment, changes the pool bytes of the account.
  bool TakeFromOuter(Change& change, const Segment& segment, int64_t bytes);
  // Adds the segment to the map. The blocks and segments at its addresses then lie in it. The caller enters the segment
  // itself into the ledger. `was_block`: the segment was a block, so no other block has taken its bytes.
  Added InsertSegment(Change& change, uint64_t id, SiteId site, int64_t bytes, bool was_block);
  Added AddSegment(Change& change, uint64_t id, const LiveRecord& record, Event event, int octave);
  bool MakeSegment(Change& change, uint64_t id, const LiveRecord& record, AllocatorId allocator);
  // Gives each segment inside `around` that is also a block the id that belongs to its present depth.
  void SetLevels(Change& change, const Segment* around);
  // Removes all blocks and segments in `segment`. Unless `is_kept`, also removes `segment`, and returns its record.
  Block RemoveWithContents(Change& change, Segment* segment, bool is_kept = false);
  // Removes a segment without blocks and segments in it. Returns its record.
  Block RemoveEmpty(Change& change, Segment* segment);
  // Erases the segment's record. Returns it with the octave of its age.
  Block EraseRecord(const Segment* segment);
  // Returns the segment of the greatest depth among those with a byte in [start, end), or null if there is none.
  Segment* DeepestIn(uint64_t start, uint64_t end);
  bool ResizeRecord(Change& change, uint64_t id, int64_t bytes);
  bool ResizeSegment(Change& change, Segment* segment, int64_t bytes);
  // Changes the segment's site to `site`, in the record, in the ledger and in the map, and the size of its record to
  // `new_bytes`. The bytes that were taken from the segment stay taken.
  void MoveSegment(Change& change, Segment* segment, SiteId site, int64_t old_bytes, int64_t new_bytes);
  // Returns whether a segment other than `segment` and those around it has bytes in [start, end).
  bool HasInnerEdge(const Segment* segment, uint64_t start, uint64_t end);
  // Returns the site that differs from `site` only in its block size. Returns kNoSite if the host has no memory or the
  // tables are full.
  SiteId SiteOfSize(Change& change, SiteId site, int64_t bytes);

  SiteTable& sites_;
  LiveTable& live_;
  Ledger& ledger_;
  SegmentMap segments_;
  std::atomic<int64_t> blocks_outside_{0};
};

inline bool Pools::LoadView(Ledger::OwnShard& own, uint64_t address) const {
  Ledger::SegmentView& view = own.view();
  view = {};
  const SegmentMap::Piece* piece = segments_.PieceAt(address);
  if (piece == nullptr || piece->segment->depth >= kMaxLevel) return false;
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
  const LiveTable::Inserted inserted =
      live_.InsertNew(id == IdOf(address, 1) ? position : live_.Prefetch(id), id, {site, PresentGeneration(), bytes});
  if (inserted != LiveTable::Inserted::kNew) {
    SegmentMap::Return(*view.segment, bytes);
    return Ledger::kNotEntered;
  }
  return own.EnterBlock(Event::kAlloc, cell, bytes);
}

inline Ledger::Entered Pools::TryRemoveBlock(uint64_t address, uint64_t* id, uint64_t* packed) {
  Ledger::OwnShard own(ledger_);
  if (!own.is_usable()) return Ledger::kNotEntered;
  Ledger::SegmentView& view = own.view();
  if (!IsInView(view, address) && !LoadView(own, address)) return Ledger::kNotEntered;
  if (!own.HasCellOfSegment()) return Ledger::kNotEntered;
  *id = address ^ view.id_bits;
  Ledger::OwnShard::BlockCell cell = nullptr;
  int64_t bytes = 0;
  const bool is_erased = live_.TryErase(*id, packed, [&] {
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
