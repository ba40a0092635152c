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
