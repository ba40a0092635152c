// The free blocks of an arena. See free_list.h.
#include "src/backends/simulated/free_list.h"

#include <iterator>

namespace hbmprof::internal {

void FreeList::Insert(uintptr_t address, size_t bytes) {
  by_address_.emplace(address, bytes);
  by_size_.emplace(bytes, address);
  total_bytes_ += bytes;
}

void FreeList::Erase(std::map<uintptr_t, size_t>::iterator block) {
  total_bytes_ -= block->second;
  by_size_.erase({block->second, block->first});
  by_address_.erase(block);
}

void FreeList::Add(uintptr_t address, size_t bytes) {
  const auto after = by_address_.lower_bound(address);
  if (after != by_address_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      address = before->first;
      bytes += before->second;
      Erase(before);
    }
  }
  if (after != by_address_.end() && address + bytes == after->first) {
    bytes += after->second;
    Erase(after);
  }
  Insert(address, bytes);
}

std::optional<uintptr_t> FreeList::Take(size_t bytes) {
  const auto best = by_size_.lower_bound({bytes, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [block_bytes, address] = *best;
  Erase(by_address_.find(address));
  if (block_bytes > bytes) Insert(address + bytes, block_bytes - bytes);
  return address;
}

void FreeList::MoveTo(FreeList& other) {
  for (const auto& [address, bytes] : by_address_) other.Add(address, bytes);
  by_address_.clear();
  by_size_.clear();
  total_bytes_ = 0;
}

}  // namespace hbmprof::internal
