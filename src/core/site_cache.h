// SiteCache: from the path of a remembered stack, with the allocation's other attributes, straight to the site; so that
// a stack that repeats is neither hashed nor compared frame by frame.
//
// Thread safety: everything from any thread, without a lock. An entry is two words, of which one proves the other: an
// entry read while another thread replaces it does not match (but for one in 2^64 of such reads).
#ifndef HBMPROF_SRC_CORE_SITE_CACHE_H_
#define HBMPROF_SRC_CORE_SITE_CACHE_H_

#include <atomic>
#include <cstdint>

#include "src/base/hash.h"
#include "src/capture/paths.h"
#include "src/core/site_table.h"

namespace hbmprof::internal {

class SiteCache {
 public:
  // The site of `path` (not null; see CapturedStack) with everything in `key` but its stack; kNoSite if it is
  // not in the cache.
  SiteId Find(const Path* path, const SiteKey& key, const SiteTable& sites) const {
    const Entry& entry = entries_[SlotOf(path, key)];
    const uint64_t site_plus_one = entry.site_plus_one.load(std::memory_order_acquire);
    if (site_plus_one == 0 || entry.proof.load(std::memory_order_relaxed) != Proof(path, site_plus_one)) return kNoSite;
    const auto site = static_cast<SiteId>(site_plus_one - 1);
    // A site with a rounded size is found through its table, which knows when to round.
    return sites.At(site).IsLike(key) ? site : kNoSite;
  }

  void Remember(const Path* path, const SiteKey& key, SiteId site) {
    Entry& entry = entries_[SlotOf(path, key)];
    const uint64_t site_plus_one = uint64_t{site} + 1;
    entry.site_plus_one.store(site_plus_one, std::memory_order_release);
    entry.proof.store(Proof(path, site_plus_one), std::memory_order_relaxed);
  }

 private:
  struct Entry {
    std::atomic<uint64_t> proof{0};
    std::atomic<uint64_t> site_plus_one{0};
  };
  static constexpr uint32_t kEntryBits = 12;

  static uint64_t Proof(const Path* path, uint64_t site_plus_one) {
    return reinterpret_cast<uintptr_t>(path) ^ site_plus_one * kHashSeed1;
  }
  static uint32_t SlotOf(const Path* path, const SiteKey& key) {
    const uint64_t sum = reinterpret_cast<uintptr_t>(path) + key.block_bytes + (uint64_t{key.tags} << 32);
    return static_cast<uint32_t>(sum * kHashSeed0 >> (64 - kEntryBits));
  }

  Entry entries_[1u << kEntryBits];
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SITE_CACHE_H_
