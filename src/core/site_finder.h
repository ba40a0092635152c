// SiteFinder: finds the site of an event, from the function that recorded it: captures the call stack, and looks it up
// in the site cache or, if it is not there, in the site table.
//
// Thread safety: any thread may call any function, which must have entered the tracker.
#ifndef HBMPROF_SRC_CORE_SITE_FINDER_H_
#define HBMPROF_SRC_CORE_SITE_FINDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "hbmprof/options.h"
#include "src/base/hash.h"
#include "src/base/pages.h"
#include "src/capture/capture.h"
#include "src/capture/python/python_frames.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

// Finds the site for the hash of a stack and the other attributes of an allocation by one lookup in one cache line,
// instead of two in the tables of stacks and of sites. Each profiler has one cache, of 1 MiB.
//
// Thread safety: any thread may call any function; no lock is taken. An entry is two words. They hold 104 bits of a
// hash of everything that identifies the site. If these bits are equal, the site counts as found; its key is not
// compared. (The probability that two of a million sites have the same hash is 2^-65.) An entry that is read while
// another thread replaces it does not match.
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

class SiteFinder {
 public:
  // Throws std::bad_alloc.
  SiteFinder(const Options& options, SiteTable& sites);

  // Returns the site of an event whose stack begins at `caller`, or at the ScopedCaller that is in effect. It is
  // SiteTable::OtherSite if there is no place for another one; kNoSite if there are too many of these.
  SiteId SiteOf(const Caller& caller, SiteLabels labels);
  // The common case of SiteOf: returns the site if the path of the stack and the site are cached. Otherwise returns
  // kNoSite. REQUIRES: thread_state was common.
  [[gnu::always_inline]] SiteId CachedSiteOf(const Caller& caller, SiteLabels labels) const;

  const char* unwinder() const { return capture_.name(); }
  bool reads_python() const { return reads_python_; }

 private:
  // The digest of the Python functions in a stack; 0 if there are none.
  uint64_t DigestOf(const Caller& caller) const;
  static SiteCache::Key KeyOf(const Path& path, uint64_t digest, SiteLabels labels);
  // These two find a site that SiteOf has not found in the cache. `path`: of the native stack; null if it is not
  // cached.
  SiteId SiteOfNewStack(const Caller& caller, const Path* path, SiteLabels labels);
  SiteId SiteOfNamedStack(const Caller& caller, const Path* path, SiteLabels labels, uint64_t digest);
  // Finds the site in the site cache. Or finds or makes it, and caches it.
  SiteId SiteOfStack(const CapturedStack& stack, SiteLabels labels);

  const int max_depth_;
  const StackCapture capture_;
  const bool reads_python_;
  SiteTable& sites_;
  SiteCache cache_;
};

inline SiteId SiteFinder::CachedSiteOf(const Caller& caller, SiteLabels labels) const {
  const Path* const path = capture_.FindPath(caller, max_depth_);
  if (path == nullptr) return kNoSite;
  return __builtin_expect(HasPython(), 0) != 0 ? cache_.Find(KeyOf(*path, DigestOf(caller), labels))
                                               : cache_.Find({path->hash, labels});
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SITE_FINDER_H_
