// SegmentMap: the live segments of pools by address, and how many bytes of each are idle. Segments nest: a pool's block
// may itself be a segment. Two segments either have no byte in common, or one contains the other.
//
// Thread safety: the caller synchronises. Const methods may run concurrently with each other; all others need exclusive
// access. (A Ledger::Change with Scope::kOwnShard gives shared access, one with Scope::kAllShards gives exclusive
// access.) empty(), only_account(), Take, Return and a Segment's idle_bytes may be used from any thread at any time.
//
// Invariants:
// 1. pieces_[0, count_) are sorted, do not overlap, and are not empty. Each names the innermost segment at its
//    addresses. Addresses without a segment have no piece.
// 2. A segment's `outer` is the innermost segment that contains it. Its depth is the number of segments that contain
//    it.
// 3. idle_bytes = the segment's bytes minus the bytes that were taken from it: inner_bytes by segments inside it, the
//    others by blocks.
#ifndef HBMPROF_SRC_CORE_POOLS_SEGMENTS_H_
#define HBMPROF_SRC_CORE_POOLS_SEGMENTS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/base/pages.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

// A Segment stays readable for the life of the map. After its removal it is reused for a later segment.
struct Segment {
  int64_t bytes() const { return static_cast<int64_t>(end - start); }
  int64_t idle() const { return idle_bytes.load(std::memory_order_relaxed); }
  // The bytes that blocks have taken from it.
  int64_t block_bytes() const { return bytes() - idle() - inner_bytes; }
  bool Contains(uint64_t from, uint64_t to) const { return start <= from && to <= end; }

  uint64_t start = 0;
  uint64_t end = 0;  // one past the last byte
  uint64_t id = 0;   // of its record in the live table
  SiteId site = kNoSite;
  AccountId account = 0;
  int depth = 0;
  Segment* outer = nullptr;
  // The bytes that the segment has taken, and from which segment (null: from none, they are the account's pool bytes).
  int64_t taken = 0;
  Segment* taken_from = nullptr;
  int64_t inner_bytes = 0;
  uint64_t visit = 0;  // number of the last ForEachSegment that visited it
  std::atomic<int64_t> idle_bytes{0};
  Segment* next_free = nullptr;
};

class SegmentMap {
 public:
  bool empty() const { return segments_.load(std::memory_order_relaxed) == 0; }
  // Returns the account of all segments, or -1 if they have had several accounts since the map was last empty. If the
  // map is empty, the result has no meaning.
  AccountId only_account() const { return only_account_.load(std::memory_order_relaxed); }

  // The innermost segment at `address`; null if there is none.
  Segment* At(uint64_t address) const {
    const Piece* piece = PieceAt(address);
    return piece != nullptr ? piece->segment : nullptr;
  }
  // See invariant 1.
  struct Piece {
    uint64_t start;
    uint64_t end;
    Segment* segment;
  };
  // The piece at `address`; null if no segment is there.
  const Piece* PieceAt(uint64_t address) const {
    const size_t i = PieceAfter(address);
    return i < count_ && pieces_[i].start <= address ? &pieces_[i] : nullptr;
  }
  // Calls `visit(segment, bytes)` for each part of [start, end) that lies in a segment, by ascending address, with the
  // innermost segment there whose depth is below `level`. Stops and returns false if `visit` returns false.
  template <typename Visit>
  bool ForEachPart(uint64_t start, uint64_t end, int level, const Visit& visit) const {
    for (size_t i = PieceAfter(start); i < count_ && pieces_[i].start < end; ++i) {
      Segment* segment = pieces_[i].segment;
      while (segment != nullptr && segment->depth >= level) segment = segment->outer;
      if (segment == nullptr) continue;
      const uint64_t bytes = std::min(pieces_[i].end, end) - std::max(pieces_[i].start, start);
      if (!visit(segment, static_cast<int64_t>(bytes))) return false;
    }
    return true;
  }
  // The innermost segment that contains all of [start, end); null if none does.
  Segment* Around(uint64_t start, uint64_t end) const;
  // The segment whose record is `id` and that begins at `start`; null if there is none.
  Segment* Find(uint64_t start, uint64_t id) const;
  // Returns whether a segment [start, end) could be added. If `except` is not null, that segment is ignored.
  bool Fits(uint64_t start, uint64_t end, const Segment* except = nullptr) const;

  // Calls `visit(segment)` once for each segment that has a byte in [start, end). `visit` must not change the map.
  template <typename Visit>
  void ForEachSegment(uint64_t start, uint64_t end, const Visit& visit) {
    ++visits_;
    for (size_t i = PieceAfter(start); i < count_ && pieces_[i].start < end; ++i) {
      for (Segment* segment = pieces_[i].segment; segment != nullptr && segment->visit != visits_;
           segment = segment->outer) {
        segment->visit = visits_;
        visit(segment);
      }
    }
  }

  // Adds a segment [start, end), of which all bytes are idle. Returns null if the host has no memory. REQUIRES:
  // Fits(start, end).
  Segment* Add(uint64_t start, uint64_t end, uint64_t id, SiteId site, AccountId account);
  // Removes a segment that contains no other.
  void Remove(Segment* segment);
  // Moves the end of a segment. Its idle bytes change with its size. Fits(start, new end, segment) must be true, and no
  // other segment may begin or end between the old and the new end. Returns false if the host has no memory.
  bool SetEnd(Segment* segment, uint64_t end);
  // Splits `segment` at `at`. The part from `at` becomes a new segment, all of whose bytes are idle and were idle
  // before, but for those that inner segments have taken. These then lie in the new one. No inner segment may have
  // bytes on both sides of `at`. Returns null if the host has no memory.
  Segment* Split(Segment* segment, uint64_t at, uint64_t id, SiteId site);
  // Removes `second`, which begins where `first` ends and has the same `outer`, and extends `first` over its addresses.
  // What was taken from it, and what it has taken, is then taken from and by `first`. Returns false if the host has no
  // memory.
  bool Merge(Segment* first, Segment* second);
  // Reserves memory for `more` changes, so that none of them fails. Returns false if the host has no memory.
  bool Reserve(size_t more);

  // Takes `bytes` from the idle bytes. Returns false if there are fewer.
  static bool Take(Segment& segment, int64_t bytes) {
    int64_t idle = segment.idle();
    while (idle >= bytes) {
      if (segment.idle_bytes.compare_exchange_weak(idle, idle - bytes, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  static void Return(Segment& segment, int64_t bytes) {
    segment.idle_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

 private:
  // Returns the index of the first piece that ends after `address`. It has no branches, because the processor could not
  // predict them.
  size_t PieceAfter(uint64_t address) const {
    size_t first = 0;
    for (size_t count = count_; count > 0;) {
      const size_t half = (count + 1) / 2;
      const size_t passes = static_cast<size_t>(pieces_[first + half - 1].end <= address);
      first += half & (0 - passes);
      count -= half;
    }
    return first;
  }
  // Changes the pieces of `from` in [start, end) to pieces of `to`. If `from` is null, makes pieces of `to` for the
  // addresses in [start, end) that have no segment. If `to` is null, removes the pieces. REQUIRES: capacity for the new
  // pieces (Reserve).
  void ReassignPieces(uint64_t start, uint64_t end, Segment* from, Segment* to);
  // Returns a segment of which all bytes are idle, after Reserve(1); null if the host has no memory.
  Segment* NewSegment(uint64_t start, uint64_t end, uint64_t id, SiteId site, AccountId account);
  void Free(Segment* segment) {
    segment->next_free = free_;
    free_ = segment;
    segments_.fetch_sub(1, std::memory_order_relaxed);
  }

  // The arrays are in the arena. Smaller ones that they have replaced stay there.
  Piece* pieces_ = nullptr;
  size_t count_ = 0;
  Piece* scratch_ = nullptr;  // as large as pieces_
  size_t capacity_ = 0;
  uint64_t visits_ = 0;
  std::atomic<size_t> segments_{0};
  std::atomic<AccountId> only_account_{-1};
  Segment* free_ = nullptr;
  Arena arena_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_POOLS_SEGMENTS_H_
