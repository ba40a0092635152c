#include "src/core/pools/segments.h"

#include <cstring>
#include <new>

namespace hbmprof::internal {

Segment* SegmentMap::Around(uint64_t start, uint64_t end) const {
  Segment* segment = At(start);
  while (segment != nullptr && !segment->Contains(start, end)) segment = segment->outer;
  return segment;
}

Segment* SegmentMap::Find(uint64_t start, uint64_t id) const {
  Segment* segment = At(start);
  while (segment != nullptr && (segment->start != start || segment->id != id)) segment = segment->outer;
  return segment;
}

bool SegmentMap::Fits(uint64_t start, uint64_t end, const Segment* except) const {
  if (end <= start) return false;
  for (size_t i = PieceAfter(start); i < count_ && pieces_[i].start < end; ++i) {
    for (const Segment* segment = pieces_[i].segment; segment != nullptr; segment = segment->outer) {
      if (segment == except || segment->Contains(start, end)) continue;
      if (segment->start < start || end < segment->end) return false;
    }
  }
  return true;
}

bool SegmentMap::Reserve(size_t more) {
  // A change cuts at most two pieces, and adds at most one piece in each gap between the present pieces.
  const size_t needed = 2 * count_ + 4 * more;
  if (needed <= capacity_) return true;
  const size_t capacity = std::max<size_t>(512, 2 * needed);
  auto* pieces = static_cast<Piece*>(arena_.Allocate(2 * capacity * sizeof(Piece)));
  if (pieces == nullptr) return false;
  if (count_ > 0) std::memcpy(pieces, pieces_, count_ * sizeof(Piece));
  pieces_ = pieces;
  scratch_ = pieces + capacity;
  capacity_ = capacity;
  return true;
}

void SegmentMap::ReassignPieces(uint64_t start, uint64_t end, Segment* from, Segment* to) {
  size_t first = PieceAfter(start);
  size_t last = first;
  // The pieces that replace pieces_[first, last).
  size_t made = 0;
  const auto put = [&](uint64_t piece_start, uint64_t piece_end, Segment* segment) {
    if (piece_start >= piece_end || segment == nullptr) return;
    if (made > 0 && scratch_[made - 1].end == piece_start && scratch_[made - 1].segment == segment) {
      scratch_[made - 1].end = piece_end;
    } else {
      scratch_[made++] = {piece_start, piece_end, segment};
    }
  };
  const auto painted = [&](Segment* segment) { return segment == from ? to : segment; };
  if (first > 0 && pieces_[first - 1].end == start) {
    --first;
    put(pieces_[first].start, pieces_[first].end, pieces_[first].segment);
  }
  uint64_t at = start;
  for (; last < count_ && pieces_[last].start < end; ++last) {
    const Piece& piece = pieces_[last];
    put(piece.start, std::min(piece.end, start), piece.segment);
    put(at, std::max(at, piece.start), painted(nullptr));
    put(std::max(piece.start, start), std::min(piece.end, end), painted(piece.segment));
    put(std::max(piece.start, end), piece.end, piece.segment);
    at = std::min(piece.end, end);
  }
  put(at, end, painted(nullptr));
  if (last < count_ && pieces_[last].start == end) {
    put(pieces_[last].start, pieces_[last].end, pieces_[last].segment);
    ++last;
  }
  std::memmove(pieces_ + first + made, pieces_ + last, (count_ - last) * sizeof(Piece));
  std::memcpy(pieces_ + first, scratch_, made * sizeof(Piece));
  count_ = count_ - (last - first) + made;
}

Segment* SegmentMap::NewSegment(uint64_t start, uint64_t end, uint64_t id, SiteId site, AccountId account) {
  if (!Reserve(1)) return nullptr;
  void* memory = free_;
  if (memory == nullptr) memory = arena_.Allocate(sizeof(Segment));
  if (memory == nullptr) return nullptr;
  if (free_ != nullptr) free_ = free_->next_free;
  auto* segment = new (memory) Segment;
  segment->start = start;
  segment->end = end;
  segment->id = id;
  segment->site = site;
  segment->account = account;
  segment->idle_bytes.store(segment->bytes(), std::memory_order_relaxed);
  return segment;
}

Segment* SegmentMap::Add(uint64_t start, uint64_t end, uint64_t id, SiteId site, AccountId account) {
  Segment* segment = NewSegment(start, end, id, site, account);
  if (segment == nullptr) return nullptr;
  segment->outer = Around(start, end);
  segment->depth = segment->outer == nullptr ? 0 : segment->outer->depth + 1;
  ForEachSegment(start, end, [&](Segment* other) {
    if (other == segment || other->depth < segment->depth) return;  // itself, or around it
    ++other->depth;
    if (other->outer == segment->outer) other->outer = segment;
  });
  ReassignPieces(start, end, segment->outer, segment);
  only_account_.store(empty() || only_account() == account ? account : -1, std::memory_order_relaxed);
  segments_.fetch_add(1, std::memory_order_relaxed);
  return segment;
}

void SegmentMap::Remove(Segment* segment) {
  ReassignPieces(segment->start, segment->end, segment, segment->outer);
  Free(segment);
}

bool SegmentMap::SetEnd(Segment* segment, uint64_t end) {
  if (!Reserve(1)) return false;
  if (end > segment->end) {
    ReassignPieces(segment->end, end, segment->outer, segment);
  } else {
    ReassignPieces(end, segment->end, segment, segment->outer);
  }
  Return(*segment, static_cast<int64_t>(end - segment->end));
  segment->end = end;
  return true;
}

Segment* SegmentMap::Split(Segment* segment, uint64_t at, uint64_t id, SiteId site) {
  Segment* high = NewSegment(at, segment->end, id, site, segment->account);
  if (high == nullptr) return nullptr;
  high->depth = segment->depth;
  high->outer = segment->outer;
  ForEachSegment(at, segment->end, [&](Segment* inner) {
    if (inner->outer == segment) inner->outer = high;
  });
  ReassignPieces(at, segment->end, segment, high);
  segment->end = at;
  Return(*segment, -high->bytes());
  segments_.fetch_add(1, std::memory_order_relaxed);
  return high;
}

bool SegmentMap::Merge(Segment* first, Segment* second) {
  if (!Reserve(1)) return false;
  ForEachSegment(second->start, second->end, [&](Segment* inner) {
    if (inner->outer == second) inner->outer = first;
    if (inner->taken_from == second) inner->taken_from = first;
  });
  ReassignPieces(second->start, second->end, second, first);
  first->end = second->end;
  first->taken += second->taken;
  first->inner_bytes += second->inner_bytes;
  Return(*first, second->idle());
  Free(second);
  return true;
}

}  // namespace hbmprof::internal
