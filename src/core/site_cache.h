// SiteCache: from a stack with the allocation's other attributes straight to the site. Either from the path of a
// remembered stack, so that it is neither hashed nor compared frame by frame; or from a stack's hash, in one step
// instead of a stack table's and a site table's.
//
// Thread safety: everything from any thread, without a lock. An entry is two words, of which one proves the other: an
// entry read while another thread replaces it does not match (but for one in 2^64 of such reads).
#ifndef HBMPROF_SRC_CORE_SITE_CACHE_H_
#define HBMPROF_SRC_CORE_SITE_CACHE_H_

#include <atomic>
#include <cstdint>

#include "src/base/hash.h"
#include "src/base/pages.h"
#include "src/capture/paths.h"
#include "src/core/site_table.h"

namespace hbmprof::internal {

class SiteCache {
 public:
  SiteCache() : entries_(static_cast<Entry*>(MapPages(kBytes))) {}
  ~SiteCache() { UnmapPages(entries_, kBytes); }
  SiteCache(const SiteCache&) = delete;
  SiteCache& operator=(const SiteCache&) = delete;

  // The site of the stack that `path` (not null) stands for, with everything else as in `words`; kNoSite if it is
  // not in the cache.
  SiteId FindByPath(const Path* path, const SiteWords& words, const SiteTable& sites) const {
    return Find(KeyOf(path), words, sites);
  }
  void RememberByPath(const Path* path, const SiteWords& words, SiteId site) { Remember(KeyOf(path), words, site); }

  // The same for any stack; `hash` is SiteTable::HashOf it.
  SiteId FindByHash(uint64_t hash, const CapturedStack& stack, const SiteWords& words, const SiteTable& sites) const {
    const SiteId site = Find(KeyOf(hash), words, sites);
    return site != kNoSite && sites.Key(site).stack->Is(stack, hash) ? site : kNoSite;
  }
  void RememberByHash(uint64_t hash, const SiteWords& words, SiteId site) { Remember(KeyOf(hash), words, site); }

 private:
  struct Entry {
    std::atomic<uint64_t> proof;
    std::atomic<uint64_t> site_plus_one;
  };
  static constexpr uint32_t kEntryBits = 15;
  static constexpr size_t kBytes = sizeof(Entry) << kEntryBits;

  // What stands for a path never stands for a hash.
  static uint64_t KeyOf(const Path* path) { return reinterpret_cast<uintptr_t>(path); }
  static uint64_t KeyOf(uint64_t hash) { return hash | 1; }

  SiteId Find(uint64_t stack, const SiteWords& words, const SiteTable& sites) const {
    if (entries_ == nullptr) return kNoSite;
    const Entry& entry = entries_[SlotOf(stack, words)];
    const uint64_t site_plus_one = entry.site_plus_one.load(std::memory_order_acquire);
    if (site_plus_one == 0 || entry.proof.load(std::memory_order_relaxed) != Proof(stack, site_plus_one)) {
      return kNoSite;
    }
    const auto site = static_cast<SiteId>(site_plus_one - 1);
    // A site with a rounded size is found through its table, which knows when to round.
    return sites.At(site).Is(words) ? site : kNoSite;
  }
  void Remember(uint64_t stack, const SiteWords& words, SiteId site) {
    if (entries_ == nullptr) return;
    Entry& entry = entries_[SlotOf(stack, words)];
    const uint64_t site_plus_one = uint64_t{site} + 1;
    entry.site_plus_one.store(site_plus_one, std::memory_order_release);
    entry.proof.store(Proof(stack, site_plus_one), std::memory_order_relaxed);
  }

  static uint64_t Proof(uint64_t stack, uint64_t site_plus_one) { return stack ^ site_plus_one * kHashSeed1; }
  static uint64_t SlotOf(uint64_t stack, const SiteWords& words) {
    return (stack + words.block_bytes + (words.context << 32)) * kHashSeed0 >> (64 - kEntryBits);
  }

  Entry* const entries_;  // null where there is no memory
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SITE_CACHE_H_
