// SiteCache: finds the site for a stack and the other attributes of an allocation by one lookup in one cache line,
// instead of two in the tables of stacks and of sites. A stack is identified by its hash. Each profiler has one cache.
//
// Thread safety: any thread may call any function; no lock is taken. An entry is two words. They hold 104 bits of a
// hash of everything that identifies the site. If these bits are equal, the site counts as found; its key is not
// compared. (The probability that two of a million sites have the same hash is 2^-65.) An entry that is read while
// another thread replaces it does not match.
#ifndef HBMPROF_SRC_CORE_TABLES_SITE_CACHE_H_
#define HBMPROF_SRC_CORE_TABLES_SITE_CACHE_H_

#include <atomic>
#include <cstdint>
#include <new>

#include "src/base/hash.h"
#include "src/base/pages.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

class SiteCache {
 public:
  // Throws std::bad_alloc.
  SiteCache() : buckets_(static_cast<Bucket*>(MapPages(kBytes))) {
    if (buckets_ == nullptr) throw std::bad_alloc();
  }
  ~SiteCache() { UnmapPages(buckets_, kBytes); }
  SiteCache(const SiteCache&) = delete;
  SiteCache& operator=(const SiteCache&) = delete;

  // The hash of what identifies a site.
  class Key {
   public:
    // `hash`: of the stack.
    Key(const Hash128& hash, SiteLabels labels) {
      // For one stack, different labels have different keys, because the factor is odd. They are a part of both, so
      // that an entry that is read while it is replaced does not match.
      low_ = hash.low ^ labels.value * kHashSeed0;
      high_ = hash.high ^ low_ * kHashSeed0;
    }

   private:
    friend class SiteCache;
    uint64_t low_;
    uint64_t high_;
  };

  // Returns kNoSite if the key is not in the cache.
  SiteId Find(const Key& key) const {
#pragma GCC unroll 4
    for (const Entry& entry : BucketOf(key).entries) {
      const SiteId site = entry.SiteOf(key);
      if (site != kNoSite) return site;
    }
    return kNoSite;
  }
  // Stores the site of a key. If the bucket of the key is full, the oldest entry there is replaced.
  void Store(const Key& key, SiteId site) {
    Bucket& bucket = BucketOf(key);
    size_t i = 0;
    while (i < kEntries - 1 && !bucket.entries[i].is_empty()) ++i;
    for (; i > 0; --i) bucket.entries[i].CopyFrom(bucket.entries[i - 1]);
    bucket.entries[0].Set(key.low_, (key.high_ & ~kSiteMask) | site);
  }

 private:
  static constexpr uint64_t kSiteMask = (uint64_t{1} << 24) - 1;
  static_assert(SiteTable::kMaxSites < kSiteMask);

  struct Entry {
    SiteId SiteOf(const Key& key) const {
      const uint64_t site = high_and_site.load(std::memory_order_acquire) ^ (key.high_ & ~kSiteMask);
      if (site > kSiteMask || low.load(std::memory_order_relaxed) != key.low_) return kNoSite;
      return static_cast<SiteId>(site);
    }
    bool is_empty() const { return high_and_site.load(std::memory_order_relaxed) == 0; }
    // The acquire order makes the site visible to the threads that find the copy.
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
  static constexpr size_t kEntries = 4;
  struct alignas(64) Bucket {
    Entry entries[kEntries];
  };
  static_assert(sizeof(Bucket) == 64, "one cache line");
  static constexpr uint32_t kBucketBits = 14;
  static constexpr size_t kBytes = sizeof(Bucket) << kBucketBits;

  Bucket& BucketOf(const Key& key) const { return buckets_[key.low_ >> (64 - kBucketBits)]; }

  Bucket* const buckets_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_TABLES_SITE_CACHE_H_
