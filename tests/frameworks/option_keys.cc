// For torch_npu with PyPI's PyTorch for x86-64, which contains CUDA: both name an option of their allocators alike, and
// libc10.so lets only one do so. Preloaded, these replace two functions of libc10.so, so that both can.
#include <string>
#include <unordered_set>

namespace c10::CachingAllocator {

using Names = std::unordered_set<std::string>;

class AcceleratorAllocatorConfig {
 public:
  static Names& getMutableKeys();
  static const Names& getKeys();
};

// The names are inserted into it; each call has a set of its own.
Names& AcceleratorAllocatorConfig::getMutableKeys() { return *new Names; }

const Names& AcceleratorAllocatorConfig::getKeys() {
  static const Names& names = *new Names{"expandable_segments", "max_split_size_mb", "garbage_collection_threshold"};
  return names;
}

}  // namespace c10::CachingAllocator
