// Pools: enters the events of all records (of buffers, segments and blocks) into the live table and into the ledger.
//
// A record says who has handed its memory out (SiteLabels::from): the device or a pool. A segment also says for which
// pool it is reserved (its allocator). That is all: no address is compared with the range of another record, except
// when a segment ends. So three sums describe a pool, each changed by one addition per event:
//   reserved   the bytes of its segments
//   allocated  the bytes of the records that it has handed out: blocks, and segments of pools inside it
//   idle       reserved - allocated
// and for each account: bytes in use = bytes of the records that the device has handed out = bytes of all records that
// are not segments + idle bytes of all pools, at every instant, for any nesting and any order of events. (All records
// minus segments, plus segments minus records of pools, are the records of the device.)
//
// Ids: a buffer or a segment has its address or handle. A block has kBlockBit, the number of its pool and its address;
// it keeps this id when it becomes a segment of a pool inside that pool.
//
// A segment can end while blocks in it are live, for example because a whole pool is destroyed. Then the address range
// of the segment is kept as an ended range, and a check ends the records that the pool has handed out there. It reads
// the whole live table, so it is not made at once, but before the blocks can be seen or confused with others:
// 1. if the pool has more allocated than reserved after the end, or if there are too many ended ranges
// 2. before a segment begins to exist
// 3. before an event that may raise a peak
// 4. before totals are read or peaks are reset (Ledger::PendingEvents)
//
// Thread safety: all methods may be called from any thread at any time. Invariant: each event of a record holds the
// lock of a shard while it changes the live table and the ledger, that of a segment the locks of all shards.
#ifndef HBMPROF_SRC_CORE_LEDGER_POOLS_H_
#define HBMPROF_SRC_CORE_LEDGER_POOLS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "hbmprof/allocation.h"
#include "src/base/pages.h"
#include "src/base/spin_lock.h"
#include "src/core/ledger/ledger.h"
#include "src/core/tables/live_table.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

class Pools final : private Ledger::PendingEvents {
  using Locks = Ledger::Locks;
  using Event = Ledger::Event;

 public:
  Pools(SiteTable& sites, LiveTable& live, Ledger& ledger) : sites_(sites), live_(live), ledger_(ledger) {
    ledger.SetPendingEvents(this);
  }
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // Returns whether an id in the live table is that of a block, also of one that has become a segment.
  static bool IsBlockId(uint64_t id) { return (id & kBlockBit) != 0; }
  // Returns whether a buffer can have this id: it is not null, and not that of a block.
  static bool IsBufferId(BufferId id) { return static_cast<int64_t>(id.value()) > 0; }
  // Returns whether a block may have this address.
  static bool IsBlockAddress(uint64_t address) { return (address & (kBlockBit | kPoolBits)) == 0; }
  static uint64_t AddressOf(uint64_t id) { return IsBlockId(id) ? id & ~(kBlockBit | kPoolBits) : id; }
  // REQUIRES: IsBlockAddress(address).
  static uint64_t IdOfBlock(PoolNumber pool, uint64_t address) {
    return address | kBlockBit | uint64_t{pool} << kPoolShift;
  }

  // Adds a record. If there is one of that id, whose free was not recorded, it ends before; or, if `is_live` is not
  // null, `*is_live` becomes true and nothing else changes. Returns false then, and if the host has no memory.
  bool Add(uint64_t id, SiteId site, int64_t bytes, bool* is_live) {
    const LiveRecord record = {site, PresentGeneration(), bytes};
    {
      Event event(ledger_, Locks::kOwnShard);
      const Event::CounterRef counter = event.Prepare(site, bytes);
      if (counter != nullptr &&
          (live_.TryInsert(id, record) || live_.Insert(id, record) == LiveTable::Inserted::kNew)) {
        event.Alloc(counter, id, site, bytes);
        return true;
      }
    }
    return AddWithAllLocks(id, record, is_live);
  }
  // Removes and returns the record of this id. Returns no value if there is none.
  std::optional<LiveRecord> Remove(uint64_t id) {
    LiveRecord record;
    {
      Event event(ledger_, Locks::kOwnShard);
      Event::CounterRef counter = nullptr;
      const bool is_erased = live_.TryErase(id, &record, [&] {
        counter = event.Prepare(record.site, 0);
        return counter != nullptr;
      });
      if (is_erased) {
        event.Free(counter, id, record);
        return record;
      }
    }
    return RemoveSlow(id);
  }

  // Removes a record whose free was not recorded, and counts it in replaced(). Returns whether there was one.
  bool RemoveReplaced(uint64_t id) {
    const bool is_removed = Remove(id).has_value();
    if (is_removed) replaced_.fetch_add(1, std::memory_order_relaxed);
    return is_removed;
  }
  // The number of such records so far.
  int64_t replaced() const { return replaced_.load(std::memory_order_relaxed); }

  // Makes a live record a segment of `pool`. Returns no value if there is no record of this id. Returns true if it is a
  // segment of this pool now. Returns false, and changes nothing, if it is a segment of another pool or a block of
  // this one, if it is of another device or not in MemorySpace::kDevice, or if there are too many pools. If `bytes` is
  // not -1, a segment of this pool with another size counts as no record: its end was not recorded.
  std::optional<bool> MakeSegment(uint64_t id, const Pool& pool, int64_t bytes = -1);
  // The same for a block at `address` of any other pool of the device.
  std::optional<bool> MakeSegmentOfBlock(uint64_t address, const Pool& pool);
  // Ends the segment of `pool` at `address`: if it was a block, it becomes a block of its pool again. Returns its size;
  // no value if there is no such segment.
  std::optional<int64_t> EndSegment(uint64_t address, const Pool& pool);

  // Gives the live record of `id` another size, except if its kind is kAlias. Returns false if there is none.
  bool Resize(uint64_t id, int64_t bytes);
  // Gives the record of `id` the site `to`, which has the same book. Returns false if it does not have the site of
  // `expected` any more. `locks`: kAllShards if one of the sites is a segment's.
  bool ChangeSite(uint64_t id, const LiveRecord& expected, SiteId to, Ledger::Locks locks = Locks::kOwnShard);

  // Ends all records that the pool has handed out and that begin in [start, end).
  void EndBlocks(PoolNumber pool, uint64_t start, uint64_t end);
  // Ends all records of a device, except those of the allocator `survivor` and of the ids in `kept`, which is sorted.
  // What pools have handed out always ends.
  void EndDevice(DeviceId device, std::optional<AllocatorId> survivor, const std::vector<uint64_t>& kept);

 private:
  // The highest bit is 0 in all addresses and in all handles of the backends.
  static constexpr uint64_t kBlockBit = uint64_t{1} << 63;
  static constexpr int kPoolShift = 50;
  static constexpr uint64_t kPoolBits = uint64_t{kMaxPools} << kPoolShift;
  static_assert(((kBlockBit | kPoolBits) & uint64_t{0x3f} << 57) == 0, "the bits of a handle's name space");

  // Addresses of a segment that has ended while its pool had blocks.
  struct EndedRange {
    bool operator<(const EndedRange& other) const {
      return std::tie(pool, start, end) < std::tie(other.pool, other.start, other.end);
    }
    uint64_t start;
    uint64_t end;
    PoolNumber pool;
  };
  static constexpr size_t kMostEnded = 1024;  // more are checked at once

  // Add for a record that needs the locks of all shards.
  [[gnu::noinline]] bool AddWithAllLocks(uint64_t id, LiveRecord record, bool* is_live);
  // Remove for any record.
  [[gnu::noinline]] std::optional<LiveRecord> RemoveSlow(uint64_t id);
  // Removes the record of `id` if `agrees(record)`. Makes no check of ended ranges.
  template <typename Agrees>
  std::optional<LiveRecord> EraseIf(uint64_t id, const Agrees& agrees);
  // Gives the record of `id` a site that differs only in its attributes: the old or the new one is a segment's. Returns
  // false if the record does not have the site of `record` any more, or if there is no place for the new one.
  bool Move(uint64_t id, const LiveRecord& record, const Attributes& attributes);

  // If `record` was a segment, of which `kept_bytes` bytes are left, keeps the rest of its addresses as an ended range.
  // `event` holds all locks.
  void KeepEnded(const Event& event, uint64_t id, const LiveRecord& record, int64_t kept_bytes);
  // Checks all ended ranges: ends the records in them. Waits for a check by another thread.
  void RecordPending() override;
  // The same if that must be done at once.
  void RecordPendingIfDue() {
    if (is_check_due_.load(std::memory_order_acquire)) RecordPending();
  }

  // Removes the records for which `matches(id, record)` returns true, one by one. Records that are added meanwhile may
  // stay.
  template <typename Matches>
  void RemoveWhere(const Matches& matches);

  SiteTable& sites_;
  LiveTable& live_;
  Ledger& ledger_;
  SpinLock check_lock_;  // held during a check, up to 25 ms for a million live records
  SpinLock ended_lock_;  // no other lock is taken under it
  // `pending_count_` ranges, with those of a check in progress. The array is in the arena. Smaller ones that it has
  // replaced stay there.
  EndedRange* ended_ ABSL_GUARDED_BY(ended_lock_) = nullptr;
  size_t ended_capacity_ ABSL_GUARDED_BY(ended_lock_) = 0;
  Arena ended_arena_ ABSL_GUARDED_BY(ended_lock_);
  std::atomic<bool> is_check_due_{false};
  std::atomic<int64_t> replaced_{0};
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_LEDGER_POOLS_H_
