#include "src/tool/advice/pool.h"

namespace hbmprof::tool {
namespace {

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

CachingPool::CachingPool(int64_t segment_bytes)
    : segment_bytes_(RoundUp(std::max<int64_t>(segment_bytes, 1), kSegmentUnit)) {}

void CachingPool::AddSegment(int64_t bytes) {
  const int64_t size = std::max(segment_bytes_, RoundUp(bytes, kSegmentUnit));
  const int64_t address = reserved_;
  reserved_ += size;
  segments_ += 1;
  blocks_[address] = {size, kNone, kNone, true};
  free_.emplace(size, address);
}

int64_t CachingPool::Allocate(int64_t bytes) {
  const int64_t size = RoundUp(bytes, kAlignment);
  auto best = free_.lower_bound({size, 0});
  if (best == free_.end()) {
    AddSegment(size);
    best = free_.lower_bound({size, 0});
  }
  const int64_t address = best->second;
  free_.erase(best);
  Block block = blocks_[address];
  if (block.bytes > size) {
    const int64_t rest = address + size;
    blocks_[rest] = {block.bytes - size, address, block.after, true};
    if (block.after != kNone) blocks_[block.after].before = rest;
    free_.emplace(block.bytes - size, rest);
    block.after = rest;
  }
  block.bytes = size;
  block.is_free = false;
  blocks_[address] = block;
  return address;
}

void CachingPool::Free(int64_t address) {
  Block block = blocks_[address];
  const auto join = [this, &block](int64_t neighbour) {
    const Block other = blocks_[neighbour];
    free_.erase({other.bytes, neighbour});
    blocks_.erase(neighbour);
    block.bytes += other.bytes;
    return other;
  };
  if (block.after != kNone && blocks_[block.after].is_free) block.after = join(block.after).after;
  if (block.before != kNone && blocks_[block.before].is_free) {
    blocks_.erase(address);
    address = block.before;
    block.before = join(address).before;
  }
  block.is_free = true;
  blocks_[address] = block;
  if (block.before != kNone) blocks_[block.before].after = address;
  if (block.after != kNone) blocks_[block.after].before = address;
  free_.emplace(block.bytes, address);
}

}  // namespace hbmprof::tool
