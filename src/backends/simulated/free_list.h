// FreeList: the free blocks of an arena. Allocation is best fit; adjacent blocks are always merged.
//
// Not in this file: the buffers in use, streams, locks (simulated_device.cc).
#ifndef HBMPROF_SRC_BACKENDS_SIMULATED_FREE_LIST_H_
#define HBMPROF_SRC_BACKENDS_SIMULATED_FREE_LIST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace hbmprof::internal {

// Not thread-safe. Invariants:
//   1. by_size_ holds exactly the blocks of by_address_.
//   2. No two blocks overlap or are adjacent.
//   3. total_bytes() is the sum of the blocks' sizes.
class FreeList {
 public:
  // Adds the block [address, address + bytes). REQUIRES: bytes > 0, and the block overlaps no block of this list.
  void Add(uintptr_t address, size_t bytes);
  // Removes `bytes` bytes from the start of the smallest block that is large enough (among blocks of the same size, the
  // one with the lowest address). The rest of the block stays in the list. Returns the address; nullopt if no block is
  // large enough. REQUIRES: bytes > 0.
  std::optional<uintptr_t> Take(size_t bytes);
  // Moves every block to `other`.
  void MoveTo(FreeList& other);

  size_t total_bytes() const { return total_bytes_; }
  // Returns 0 if the list is empty.
  size_t largest_block_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void Insert(uintptr_t address, size_t bytes);
  void Erase(std::map<uintptr_t, size_t>::iterator block);

  std::map<uintptr_t, size_t> by_address_;
  std::set<std::pair<size_t, uintptr_t>> by_size_;
  size_t total_bytes_ = 0;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_SIMULATED_FREE_LIST_H_
