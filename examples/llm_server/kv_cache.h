// KvCache: the keys and values of every sequence that is being served, in pages of device memory.
//
// A page holds kPageTokens consecutive positions of one sequence, for all layers; it is one allocation.
// Sequences of any length share the device without copies or gaps: each has only the pages that it uses.
#ifndef HBMPROF_EXAMPLES_LLM_SERVER_KV_CACHE_H_
#define HBMPROF_EXAMPLES_LLM_SERVER_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "hbmprof/device_allocator.h"

namespace llm {

// One sequence's page table. The pages belong to the cache: call Release before the table is destroyed.
struct KvSequence {
  std::vector<float*> pages;
  int length = 0;  // positions, all backed by pages
};

class KvCache {
 public:
  static constexpr int kPageTokens = 16;

  // At most `max_pages` pages at a time; keys and values have `width` floats each. `device` must live longer than the
  // cache.
  KvCache(hbmprof::DeviceAllocator& device, int layers, int width, int max_pages)
      : device_(device), layers_(layers), width_(width), max_pages_(max_pages) {}

  // Adds `tokens` positions to the sequence, and the pages they need. Error: kResourceExhausted if the cache or the
  // device is full. In this case the length does not change, and the sequence keeps the pages that were added.
  absl::Status Extend(KvSequence& sequence, int tokens);
  // Frees the sequence's pages and empties it.
  void Release(KvSequence& sequence);

  // These return the address of `width` floats. REQUIRES: position < sequence.length.
  float* Key(const KvSequence& sequence, int layer, int position) const { return At(sequence, 2 * layer, position); }
  float* Value(const KvSequence& sequence, int layer, int position) const {
    return At(sequence, 2 * layer + 1, position);
  }

  size_t page_bytes() const { return size_t{2} * layers_ * kPageTokens * width_ * sizeof(float); }
  // Returns the number of pages that are allocated and not released, including pages that are no longer in any page
  // table.
  int64_t pages_in_use() const { return pages_in_use_; }

 private:
  absl::StatusOr<float*> AllocatePage();
  // A page is [layer][key, value][position][width].
  float* At(const KvSequence& sequence, int plane, int position) const {
    return sequence.pages[position / kPageTokens] + (plane * kPageTokens + position % kPageTokens) * width_;
  }

  hbmprof::DeviceAllocator& device_;
  const int layers_;
  const int width_;
  const int max_pages_;
  int64_t pages_in_use_ = 0;
};

}  // namespace llm

#endif  // HBMPROF_EXAMPLES_LLM_SERVER_KV_CACHE_H_
