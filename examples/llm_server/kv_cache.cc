#include "examples/llm_server/kv_cache.h"

namespace llm {

absl::Status KvCache::Extend(KvSequence& sequence, int tokens) {
  const int length = sequence.length + tokens;
  while (static_cast<int>(sequence.pages.size()) * kPageTokens < length) {
    const absl::StatusOr<float*> page = AllocatePage();
    if (!page.ok()) return page.status();
    sequence.pages.push_back(*page);
  }
  sequence.length = length;
  return absl::OkStatus();
}

// Not inlined, so that profiles name it.
[[gnu::noinline]] absl::StatusOr<float*> KvCache::AllocatePage() {
  if (pages_in_use_ >= max_pages_) return absl::ResourceExhaustedError("the KV cache is full");
  const absl::StatusOr<void*> page = device_.Allocate(page_bytes());
  if (!page.ok()) return page.status();
  ++pages_in_use_;
  return static_cast<float*>(*page);
}

void KvCache::Release(KvSequence& sequence) {
  for (float* page : sequence.pages) {
    if (device_.Free(page).ok()) --pages_in_use_;
  }
  sequence = KvSequence();
}

}  // namespace llm
