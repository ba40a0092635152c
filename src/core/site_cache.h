// SiteCache: from a stack with the allocation's other attributes straight to the site, in one step and one cache line
// instead of a stack table's and a site table's. A stack is known by its hash.
//
// Thread safety: everything from any thread, without a lock. An entry is two words, which hold 104 bits of a hash of
// all that makes the site; that is taken for the thing itself. (Among a million sites, two have the same with a
// probability of 2^-65.) The two words of an entry that another thread is replacing do not match either.
#ifndef HBMPROF_SRC_CORE_SITE_CACHE_H_
#define HBMPROF_SRC_CORE_SITE_CACHE_H_

#include <atomic>
#include <cstdint>

#include "src/base/hash.h"
#include "src/base/pages.h"
#include "src/core/site_table.h"

namespace hbmprof::internal {

class SiteCache {
 public:
  SiteCache() : lines_(static_cast<Line*>(MapPages(kBytes))) {}
  ~SiteCache() { UnmapPages(lines_, kBytes); }
  SiteCache(const SiteCache&) = delete;
  SiteCache& operator=(const SiteCache&) = delete;

  // Stands for a stack with everything else as in `words`.
  class Key {
   public:
    // `hash` is SiteTable::HashOf the stack.
    Key(const Hash128& hash, const SiteWords& words) {
      // For one stack, each of the two products is another one for every value of its word.
      const auto one = static_cast<unsigned __int128>(hash.low ^ kHashSeed0) * (words.block ^ kHashSeed1);
      const auto other = static_cast<unsigned __int128>(hash.high ^ kHashSeed2) * (words.context ^ kHashSeed3);
      low_ = static_cast<uint64_t>(one) ^ static_cast<uint64_t>(other >> 64);
      high_ = static_cast<uint64_t>(one >> 64) ^ static_cast<uint64_t>(other);
    }

   private:
    friend class SiteCache;
    uint64_t low_;
    uint64_t high_;
  };

  // kNoSite if it is not in the cache.
  SiteId Find(const Key& key) const {
    if (lines_ == nullptr) return kNoSite;
    for (const Entry& entry : LineOf(key).entries) {
      const SiteId site = entry.SiteOf(key);
      if (site != kNoSite) return site;
    }
    return kNoSite;
  }
  // In place of what has been in its line longest, once the line is full.
  void Remember(const Key& key, SiteId site) {
    if (lines_ == nullptr) return;
    Line& line = LineOf(key);
    size_t place = 0;
    while (place < kPlaces - 1 && !line.entries[place].is_empty()) ++place;
    for (; place > 0; --place) line.entries[place].CopyFrom(line.entries[place - 1]);
    line.entries[0].Set(key.low_, (key.high_ & ~kSiteMask) | (uint64_t{site} + 1));
  }

 private:
  static constexpr uint64_t kSiteMask = (uint64_t{1} << 24) - 1;
  static_assert(SiteTable::kMaxSites < kSiteMask);

  struct Entry {
    SiteId SiteOf(const Key& key) const {
      const uint64_t site_plus_one = high_and_site.load(std::memory_order_acquire) ^ (key.high_ & ~kSiteMask);
      if (site_plus_one - 1 >= kSiteMask || low.load(std::memory_order_relaxed) != key.low_) return kNoSite;
      return static_cast<SiteId>(site_plus_one - 1);
    }
    bool is_empty() const { return high_and_site.load(std::memory_order_relaxed) == 0; }
    // Acquires the site, for those who find the copy.
    void CopyFrom(const Entry& other) {
      const uint64_t word = other.high_and_site.load(std::memory_order_acquire);
      Set(other.low.load(std::memory_order_relaxed), word);
    }
    void Set(uint64_t new_low, uint64_t new_high_and_site) {
      low.store(new_low, std::memory_order_relaxed);
      high_and_site.store(new_high_and_site, std::memory_order_release);
    }

    std::atomic<uint64_t> low;
    std::atomic<uint64_t> high_and_site;
  };
  static constexpr size_t kPlaces = 4;
  struct alignas(64) Line {
    Entry entries[kPlaces];
  };
  static_assert(sizeof(Line) == 64, "one cache line");
  static constexpr uint32_t kLineBits = 14;
  static constexpr size_t kBytes = sizeof(Line) << kLineBits;

  Line& LineOf(const Key& key) const { return lines_[key.low_ >> (64 - kLineBits)]; }

  Line* const lines_;  // null where there is no memory
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SITE_CACHE_H_
