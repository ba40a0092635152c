// Pools: the blocks and segments of allocators that hand out parts of larger allocations, so that every reserved byte
// is counted once.
//
// A segment is memory that a pool has reserved; a block is a part that it handed out. A block takes its bytes from the
// segments that it lies in: from several, if they are adjacent, and only as far as it lies in one. What no block takes
// is idle and is counted in the segment's own site. A block can itself be a segment, of a pool inside the pool: so
// segments nest, and each level counts what it holds beyond the levels inside it.
//
// A block has a level: one more than the depth of the innermost segment at its address. It takes its bytes from the
// innermost segments whose depth is below its level. Its record in the live table has an id that holds address and
// level, so that a segment and the blocks at its address are told apart.
//
// Thread safety: everything from any thread at any time, unless annotated.
//
// Invariants, whenever no Ledger::Change is in progress:
// 1. A live record whose site is_block has taken its bytes from the segments as described above, of its own account:
//    both from their idle bytes and from the ledger's cells of their sites.
// 2. Every other block counts all of its bytes itself: there is no segment at its address, or it did not fit into what
//    was idle, as when the pool's free of another block was missed.
// 3. A segment inside another has taken its bytes from that one, in the same way.
// 4. loose_blocks_ is the number of live blocks of which some byte is taken from no segment.
// A block's event holds one shard's lock over both its change of the live table and of the ledger; whoever changes
// segments holds all shards' locks. So segments never change between the two.
//
// Any other buffer, also one that is a segment, is freed without a lock of the ledger's: first its record leaves the
// live table, then RemoveSegment is called. Whoever changes such a record meanwhile replaces it in one step, or sees
// that it is gone. A segment without a record is about to be removed; if it is ended otherwise before, RemoveSegment
// finds none.
//
// Order of locks: the ledger's, the live table's, the site table's.
#ifndef HBMPROF_SRC_CORE_POOLS_H_
#define HBMPROF_SRC_CORE_POOLS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "hbmprof/allocation.h"
#include "src/core/ledger.h"
#include "src/core/live_table.h"
#include "src/core/segments.h"
#include "src/core/site_table.h"

namespace hbmprof::internal {

// What DropDevice forgets: a device's records, but those of the allocator `survivor` and those of the ids in `kept`.
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

  // Whether a live-table id is a block's, or that of a segment that is a block of another.
  static bool IsBlockId(uint64_t id) { return (id & kBlockBit) != 0; }
  // Whether a block may have this address: its bits 50 to 56 hold the level in an id.
  static bool IsBlockAddress(uint64_t address) { return (address & (kBlockBit | kLevelBits)) == 0; }
  static uint64_t AddressOf(uint64_t id) { return IsBlockId(id) ? id & ~(kBlockBit | kLevelBits) : id; }

  // Where a block or segment would lie.
  struct Position {
    uint64_t address = 0;
    uint64_t generation = 0;  // of the segments, when they were looked at
    int level = 1;            // as a block
    bool in_pool = false;     // a block: some byte lies in a segment; a segment: all of it lies in one
    AccountId account = 0;    // if in_pool, the segment's
    uint64_t id() const { return IdOf(address, level); }
    DeviceId device() const { return DeviceId(account / kMemorySpaceCount); }
  };
  Position PositionOfBlock(uint64_t address, int64_t bytes);
  Position PositionOfSegment(uint64_t address, int64_t bytes);

  enum class Added : uint8_t {
    kAdded,
    kMoved,     // segments have changed: look for the position again
    kRefused,   // a block: the segments have too few idle bytes; a segment: see AddSegment. Nothing was added.
    kNoMemory,  // the host has none; nothing was added
  };
  // Adds a block of `bytes` bytes: `event` is kAlloc or kUndoFree. `site` is_block exactly if the position is in_pool,
  // or it is not after kRefused. `replaced` is set if a block was there whose free was missed; it is forgotten.
  Added AddBlock(const Position& position, SiteId site, int64_t bytes, Ledger::Event event, bool* replaced);
  struct Removed {
    uint64_t id;
    LiveRecord record;
  };
  // The common case of AddBlock and of RemoveBlock: all of the block lies in one segment of its account, which has the
  // bytes idle, and in none inside that; its free was not missed, and no memory is needed. kNotEntered: it is another
  // case, and nothing was done. `site` is_block.
  // `place` comes from PrefetchBlock.
  [[gnu::always_inline]] Ledger::Entered AddCommonBlock(const LiveTable::Place& place, uint64_t address, SiteId site,
                                                        int64_t bytes);
  [[gnu::always_inline]] Ledger::Entered RemoveCommonBlock(uint64_t address, Removed* removed);
  // Starts loading the live table's line of a block in a segment that lies in no other.
  LiveTable::Place PrefetchBlock(uint64_t address) const { return live_.Prefetch(IdOf(address, 1)); }
  // Removes the innermost block at `address`, with all that is inside if it is a segment, and returns it.
  std::optional<Removed> RemoveBlock(uint64_t address);
  // The innermost block at `address`.
  std::optional<Removed> LookUpBlock(uint64_t address);

  // Makes the live record of `address` a segment, or the innermost block there if that has `bytes` bytes and lies in a
  // segment: its site's kind becomes kPool, and its allocator `allocator` unless that is 0. Nothing if there is no such
  // record; false if it cannot be one: it is not in MemorySpace::kDevice or of kind kPool already, it overlaps another
  // segment in part, or the host has no memory. Then nothing changes.
  std::optional<bool> MakeSegment(uint64_t address, int64_t bytes, AllocatorId allocator);
  // Adds a segment with a new record. `site` is_segment. kRefused if it overlaps another in part or is one already,
  // does not fit into what is idle in the one around it, or if its id is live.
  Added AddSegment(const Position& position, SiteId site, int64_t bytes);
  // Adds one that was removed.
  Added RestoreSegment(uint64_t id, SiteId site, int64_t bytes);
  // After the record of a site that is_segment was erased from the live table: removes the segment, with all blocks and
  // segments in it.
  void RemoveSegment(uint64_t id);

  // Gives the live record of `id` another size. False if there is none, if a segment cannot have that size (it would be
  // empty, overlap another in part, or not lie inside the one around it), or if the host has no memory; then nothing
  // changes. Blocks and segments that lie wholly in what is cut off a segment are removed.
  bool Resize(uint64_t id, int64_t bytes);
  // The same for the innermost block at `address`.
  bool ResizeBlock(uint64_t address, int64_t bytes);
  // Makes two segments of the one with the id `address`: the second begins at `at`. False if there is none, if `at` is
  // not inside, if a segment inside it has bytes on both sides, if there is a live record of id `at`, or if the host
  // has no memory; then nothing changes.
  bool SplitSegment(uint64_t address, uint64_t at);
  // Makes one segment of two adjacent ones, which have their addresses for ids, of the same device, with the record of
  // the first. False if they are not, or if the host has no memory; then nothing changes.
  bool MergeSegments(uint64_t first, uint64_t second);

  bool has_segments() const { return !segments_.empty(); }
  // The device on which a block probably is that its caller thinks to be on `device`.
  DeviceId ProbableDevice(DeviceId device) const {
    const AccountId account = segments_.only_account();
    return account >= 0 ? DeviceId(account / kMemorySpaceCount) : device;
  }
  // Removes all blocks and segments that `dropped` names; what is in a segment goes or stays with the outermost one,
  // and of one that is kept, all that is inside goes.
  void DropDevice(const DroppedRecords& dropped);

  // Frees all blocks of the device with this allocator. Segments stay.
  void EndBlocks(DeviceId device, AllocatorId allocator);

  // In a forked child: forgets all segments. No other thread exists.
  void Clear() {
    segments_.Clear();
    loose_blocks_.store(0, std::memory_order_relaxed);
  }

 private:
  using Change = Ledger::Change;
  using Event = Ledger::Event;

  // No address and no handle of a backend has the highest bit.
  static constexpr uint64_t kBlockBit = uint64_t{1} << 63;
  static constexpr int kLevelShift = 50;
  static constexpr uint64_t kLevelBits = uint64_t{0x7f} << kLevelShift;
  static constexpr int kMaxLevel = 0x7f;
  static uint64_t IdOf(uint64_t address, int level) {
    return address ^ kBlockBit ^ static_cast<uint64_t>(level - 1) << kLevelShift;
  }
  static int LevelOf(uint64_t id) { return static_cast<int>((id & kLevelBits) >> kLevelShift) + 1; }

  // What a block takes from segments.
  struct Parts {
    int count = 0;
    int64_t bytes = 0;
    Segment* first = nullptr;
  };
  enum class Taken : uint8_t {
    kTaken,
    kTooFew,    // fewer bytes are idle
    kNeedsAll,  // a Change of all shards is needed
  };
  // A block that was taken out of its segments while these change.
  struct Loosened {
    uint64_t id;
    LiveRecord record;
  };
  class LoosenedList;

  Position PositionIn(uint64_t address, int64_t bytes) const;
  // Whether the Change has the cells to forget the block of this record. One of all shards has.
  bool PrepareForget(Change& change, uint64_t id, const LiveRecord& record) const;
  Taken TakeParts(Change& change, uint64_t address, int64_t bytes, int level, AccountId account, Parts* parts);
  template <typename Visit>
  void ForEachTaken(uint64_t address, int64_t bytes, int level, AccountId account, const Parts& parts,
                    const Visit& visit);
  void ReturnParts(uint64_t address, int64_t bytes, int level, AccountId account, const Parts& parts);
  void ChargeParts(Change& change, uint64_t address, int64_t bytes, int level, AccountId account, const Parts& parts,
                   int64_t sign);
  Parts PartsOf(uint64_t address, int64_t bytes, int level, AccountId account) const;
  // What the block of this record has taken is idle again. Returns the bytes.
  int64_t GiveBack(Change& change, uint64_t id, const LiveRecord& record);
  // After the record left the live table.
  void ForgetBlock(Change& change, uint64_t id, const LiveRecord& record);
  void ForgetLoose() { loose_blocks_.fetch_sub(1, std::memory_order_relaxed); }
  bool HasLoose() const { return loose_blocks_.load(std::memory_order_relaxed) > 0; }
  // Nothing if a Change of all shards is needed.
  std::optional<Added> TryAddBlock(Change& change, const Position& position, SiteId site, int64_t bytes, Event event,
                                   bool* replaced);
  // False if a Change of all shards is needed.
  bool TryRemoveBlock(Change& change, uint64_t address, std::optional<Removed>* removed);

  // The functions below need a Change of all shards, but for FindBlock: any.

  // The innermost block at `address`.
  std::optional<Removed> FindBlock(uint64_t address);
  // Lists the blocks for which `matches(id, record)` holds; false if the host has no memory for all of them.
  template <typename Matches>
  bool Collect(const Matches& matches, LoosenedList* list) const;
  // Gives back what all blocks of the account with a byte in [start, end) have taken, and lists them, so that segments
  // can change. False if the host has no memory for the list; then nothing was done.
  bool Loosen(Change& change, uint64_t start, uint64_t end, AccountId account, LoosenedList* list);
  // The blocks take their bytes from the segments as these are now.
  void Fasten(Change& change, const LoosenedList& list);
  void FastenOne(Change& change, const Loosened& block);
  // Removes the blocks in segments for which `matches` holds.
  template <typename Matches>
  void DropBlocks(Change& change, const Matches& matches);
  // Removes the blocks that count all of their bytes themselves and for whose attributes `matches` holds. Takes all
  // shards' locks itself. Returns false if they cannot be had.
  template <typename Matches>
  bool DropBlocksOutside(const Matches& matches);
  static bool IsIdle(const Segment* segment) {
    return segment->idle_bytes.load(std::memory_order_relaxed) == segment->bytes();
  }
  // Bytes that blocks have taken from the segment itself.
  int64_t BlockBytes(const Segment* segment);
  // Whether blocks have bytes of the segment or of one inside it.
  bool HoldsBlocks(const Segment* segment);
  // `bytes` of the segment come from the segment around it (or return to it, if negative). False if that has too few.
  bool TakeFromOuter(Change& change, const Segment& segment, int64_t bytes);
  // Puts the segment into the map, with what is inside. The caller enters its object. `was_block`: it was a block, so
  // its bytes are no other block's.
  Added InsertSegment(Change& change, uint64_t id, SiteId site, int64_t bytes, bool was_block);
  Added AddSegment(Change& change, uint64_t id, SiteId site, int64_t bytes, Event event);
  bool MakeSegment(Change& change, uint64_t id, const LiveRecord& record, AllocatorId allocator);
  // Brings the ids of the segments inside `around` that are blocks to their depth.
  void SetLevels(const Segment* around);
  // Removes a segment, whose record the caller has erased, and all that is inside; if `is_kept`, only what is inside.
  void RemoveWithContents(Change& change, Segment* segment, bool is_kept = false);
  void RemoveEmpty(Change& change, Segment* segment);
  // Another thread may have erased it, or a new one may be in its place, for a segment whose free was missed.
  void EraseRecord(const Segment* segment) { live_.EraseExactly(segment->id, {segment->site, segment->bytes()}); }
  // Of those with a byte in [start, end); null if there is none.
  Segment* DeepestIn(uint64_t start, uint64_t end);
  bool ResizeRecord(Change& change, uint64_t id, int64_t bytes);
  bool ResizeSegment(Change& change, Segment* segment, int64_t bytes);
  // The segment's object moves to `site` and gets its size, with all that is charged to it.
  void MoveSegment(Change& change, Segment* segment, SiteId site, int64_t old_bytes, int64_t new_bytes);
  // Whether another segment than `segment` and those around it has bytes in [start, end).
  bool HasInnerEdge(const Segment* segment, uint64_t start, uint64_t end);
  // The site that differs from `site` in its block size alone; kNoSite if the host has no memory or the tables are
  // full.
  SiteId SiteOfSize(Change& change, SiteId site, int64_t bytes);

  SiteTable& sites_;
  LiveTable& live_;
  Ledger& ledger_;
  SegmentMap segments_;
  std::atomic<int64_t> loose_blocks_{0};
};

inline Ledger::Entered Pools::AddCommonBlock(const LiveTable::Place& place, uint64_t address, SiteId site,
                                             int64_t bytes) {
  Ledger::OwnShard own(ledger_);
  if (!own.is_usable()) return Ledger::kNotEntered;
  const SegmentMap::Piece* piece = segments_.PieceAt(address);
  if (piece == nullptr || piece->end - address < static_cast<uint64_t>(bytes)) return Ledger::kNotEntered;
  Segment& segment = *piece->segment;
  const AccountId account = segment.account;
  const Ledger::OwnShard::Cells cells = own.CellsOf(site, segment.site, account);
  if (account != sites_.At(site).account || !cells || segment.depth >= kMaxLevel || !SegmentMap::Take(segment, bytes)) {
    return Ledger::kNotEntered;
  }
  const uint64_t id = IdOf(address, segment.depth + 1);
  const LiveTable::Inserted inserted =
      live_.InsertNew(segment.depth == 0 ? place : live_.Prefetch(id), id, {site, bytes});
  if (inserted != LiveTable::Inserted::kNew) {
    SegmentMap::Return(segment, bytes);
    return Ledger::kNotEntered;
  }
  return own.EnterBlock(Event::kAlloc, cells, account, bytes);
}

inline Ledger::Entered Pools::RemoveCommonBlock(uint64_t address, Removed* removed) {
  Ledger::OwnShard own(ledger_);
  if (!own.is_usable()) return Ledger::kNotEntered;
  const SegmentMap::Piece* piece = segments_.PieceAt(address);
  if (piece == nullptr || piece->segment->depth >= kMaxLevel) return Ledger::kNotEntered;
  Segment& segment = *piece->segment;
  const AccountId account = segment.account;
  removed->id = IdOf(address, segment.depth + 1);
  const LiveRecord& record = removed->record;
  Ledger::OwnShard::Cells cells;
  const bool is_erased = live_.EraseWhere(removed->id, &removed->record, [&] {
    const Site& site = sites_.At(record.site);
    cells = own.CellsOf(record.site, segment.site, account);
    return site.is_block && site.account == account && cells &&
           static_cast<uint64_t>(record.bytes) <= piece->end - address;
  });
  if (!is_erased) return Ledger::kNotEntered;
  SegmentMap::Return(segment, record.bytes);
  return own.EnterBlock(Event::kFree, cells, account, record.bytes);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_POOLS_H_
