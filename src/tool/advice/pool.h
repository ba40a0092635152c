// CachingPool: a model of a caching pool (docs/advise.md). `hbmprof advise` sends the allocations and frees of a
// recording to it.
#ifndef HBMPROF_SRC_TOOL_ADVICE_POOL_H_
#define HBMPROF_SRC_TOOL_ADVICE_POOL_H_

#include <set>

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

  // Returns the address of a new block. REQUIRES: 0 < bytes < 2^62.
  int64_t Allocate(int64_t bytes);
  // REQUIRES: Allocate returned `address`, and it was not freed since then.
  void Free(int64_t address);

  int64_t reserved_bytes() const { return reserved_; }
  int64_t segment_count() const { return segments_; }

 private:
  static constexpr int64_t kNone = -1;
  struct Block {
    int64_t bytes = 0;
    int64_t before = kNone;  // the neighbours in the segment
    int64_t after = kNone;
    bool is_free = false;
  };

  void AddSegment(int64_t bytes);

  const int64_t segment_bytes_;
  int64_t reserved_ = 0;
  int64_t segments_ = 0;
  absl::flat_hash_map<int64_t, Block> blocks_;  // by address
  std::set<std::pair<int64_t, int64_t>> free_;  // (bytes, address)
};

}  // namespace hbmprof::tool

#endif  // HBMPROF_SRC_TOOL_ADVICE_POOL_H_
