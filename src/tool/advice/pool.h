// CachingPool: a model of a caching pool (docs/advise.md). `hbmprof advise` sends the allocations and frees of a
// recording to it.
#ifndef HBMPROF_SRC_TOOL_ADVICE_POOL_H_
#define HBMPROF_SRC_TOOL_ADVICE_POOL_H_

#include <list>

#include "src/tool/util/common.h"

namespace hbmprof::tool {

// A pool that takes segments from the driver and never gives them back. It serves each request from the smallest free
// block that is large enough, and splits that block. A freed block is joined with the free blocks beside it.
class CachingPool {
 public:
  // Requests are rounded up to a multiple of this number of bytes.
  static constexpr int64_t kAlignment = 512;
  // Segments are a multiple of this number of bytes.
  static constexpr int64_t kSegmentUnit = int64_t{2} << 20;

  // A new segment has `segment_bytes` bytes, or more if the request is larger.
  explicit CachingPool(int64_t segment_bytes);

  struct Block {
    int64_t address;
    int64_t bytes;
    bool begins_segment = false;
    bool is_free = true;
  };
  using Blocks = std::list<Block>;  // in the order of their addresses

  // Returns a new block. REQUIRES: 0 < bytes < 2^62.
  Blocks::iterator Allocate(int64_t bytes);
  // REQUIRES: Allocate returned `block`, and it was not freed since then.
  void Free(Blocks::iterator block);

  int64_t reserved_bytes() const { return reserved_; }
  int64_t segment_count() const { return segments_; }

 private:
  void AddFree(Blocks::iterator block) { free_[{block->bytes, block->address}] = block; }
  // Joins a block with the one after it, if that is free and in the same segment.
  void JoinWithNext(Blocks::iterator block);

  const int64_t segment_bytes_;
  int64_t reserved_ = 0;
  int64_t segments_ = 0;
  Blocks blocks_;
  std::map<std::pair<int64_t, int64_t>, Blocks::iterator> free_;  // by bytes and address
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ADVICE_POOL_H_
