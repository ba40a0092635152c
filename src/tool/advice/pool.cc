#include "src/tool/advice/pool.h"

namespace hbmprof::tool {
namespace {

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

CachingPool::CachingPool(int64_t segment_bytes)
    : segment_bytes_(RoundUp(std::max<int64_t>(segment_bytes, 1), kSegmentUnit)) {}

CachingPool::Blocks::iterator CachingPool::Allocate(int64_t bytes) {
  const int64_t size = RoundUp(bytes, kAlignment);
  auto best = free_.lower_bound({size, 0});
  if (best == free_.end()) {
    const int64_t segment = std::max(segment_bytes_, RoundUp(size, kSegmentUnit));
    AddFree(blocks_.insert(blocks_.end(), {reserved_, segment, /*begins_segment=*/true}));
    reserved_ += segment;
    segments_ += 1;
    best = free_.lower_bound({size, 0});
  }
  const auto block = best->second;
  free_.erase(best);
  if (block->bytes > size) {
    AddFree(blocks_.insert(std::next(block), {block->address + size, block->bytes - size}));
    block->bytes = size;
  }
  block->is_free = false;
  return block;
}

void CachingPool::JoinWithNext(Blocks::iterator block) {
  const auto next = std::next(block);
  if (next == blocks_.end() || !next->is_free || next->begins_segment) return;
  free_.erase({next->bytes, next->address});
  block->bytes += next->bytes;
  blocks_.erase(next);
}

void CachingPool::Free(Blocks::iterator block) {
  block->is_free = true;
  JoinWithNext(block);
  if (!block->begins_segment && std::prev(block)->is_free) {
    --block;
    free_.erase({block->bytes, block->address});
    JoinWithNext(block);
  }
  AddFree(block);
}

}  // namespace hbmprof::tool
