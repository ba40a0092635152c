// SiteFinder: finds the site of an event, from the function that recorded it: captures the call stack, and looks it up
// in the site cache or, if it is not there, in the site table.
//
// Thread safety: any thread may call any function, which must have entered the tracker.
#ifndef HBMPROF_SRC_CORE_SITE_FINDER_H_
#define HBMPROF_SRC_CORE_SITE_FINDER_H_

#include <cstdint>

#include "hbmprof/options.h"
#include "src/capture/capture.h"
#include "src/capture/python/python_frames.h"
#include "src/core/tables/site_cache.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

class SiteFinder {
 public:
  // Throws std::bad_alloc.
  SiteFinder(const Options& options, SiteTable& sites);

  // Returns the site of an event whose stack begins at `caller`, or at the ScopedCaller that is in effect. It is
  // SiteTable::OtherSite if there is no place for another one; kNoSite if there are too many of these. `is_uncached`:
  // from CachedSiteOf for this event.
  SiteId SiteOf(const Caller& caller, SiteWord word, bool is_uncached = false);
  // The common case of SiteOf: returns the site if the path of the stack and the site are cached. Otherwise returns
  // kNoSite. Sets `*is_uncached` if the process has no Python and the path is not cached. REQUIRES:
  // thread_state was common.
  [[gnu::always_inline]] SiteId CachedSiteOf(const Caller& caller, SiteWord word, bool* is_uncached) const;

  const char* unwinder() const { return capture_.name(); }
  bool reads_python() const { return reads_python_; }

 private:
  // The digest of the Python functions in a stack; 0 if there are none.
  uint64_t DigestOf(const Caller& caller) const;
  static SiteCache::Key KeyOf(const Path& path, uint64_t digest, const SiteWord& word);
  // The site of a stack with this path; kNoSite if it is not cached.
  SiteId CachedNamedSite(const Path& path, const Caller& caller, SiteWord word) const;
  // These two find a site that SiteOf has not found in the cache. `path`: of the native stack; null if it is not
  // cached.
  SiteId SiteOfNewStack(const Caller& caller, const Path* path, SiteWord word);
  SiteId SiteOfNamedStack(const Caller& caller, const Path* path, SiteWord word, uint64_t digest);
  // Finds the site in the site cache. Or finds or makes it, and caches it.
  SiteId SiteOfStack(const CapturedStack& stack, SiteWord word);

  const int max_depth_;
  const StackCapture capture_;
  const bool reads_python_;
  SiteTable& sites_;
  SiteCache cache_;
};

inline SiteId SiteFinder::CachedSiteOf(const Caller& caller, SiteWord word, bool* is_uncached) const {
  const Path* const path = capture_.FindPath(caller, max_depth_);
  const bool has_python = __builtin_expect(HasPython(), 0) != 0;
  if (path == nullptr) {
    *is_uncached = !has_python;
    return kNoSite;
  }
  if (has_python) return CachedNamedSite(*path, caller, word);
  return cache_.Find({path->hash, word});
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SITE_FINDER_H_
