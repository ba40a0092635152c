// SiteFinder: finds the site of an event, from the function that recorded it: captures the call stack, and looks it up
// in the site cache or, if it is not there, in the site table.
//
// Thread safety: any thread may call any function, which must have entered the tracker.
#ifndef HBMPROF_SRC_CORE_SITE_FINDER_H_
#define HBMPROF_SRC_CORE_SITE_FINDER_H_

#include <atomic>
#include <cstdint>

#include "hbmprof/options.h"
#include "src/capture/capture.h"
#include "src/capture/python/python_frames.h"
#include "src/capture/traceback.h"
#include "src/core/ledger/ledger.h"
#include "src/core/tables/site_cache.h"
#include "src/core/tables/site_table.h"

namespace hbmprof::internal {

class SiteFinder {
 public:
  SiteFinder(const Options& options, SiteTable& sites, Ledger& ledger);

  // Returns the site of an event whose stack begins at `caller`, or at the ScopedCaller that is in effect. The ledger
  // has cells for it. It is SiteTable::OtherSite if there is no place for another one. Returns kNoSite if the host has
  // no memory. `is_uncached`: from CachedSiteOf for this event.
  SiteId SiteOf(const Caller& caller, SiteWord word, bool is_uncached = false);
  // The common case of SiteOf: returns the site if the process has no Python, the stack is not truncated, and its path
  // and its site are cached. Otherwise returns kNoSite. Sets `*is_uncached` if the process has no Python and the path
  // is not cached. REQUIRES: is_usable() and thread_state was common.
  [[gnu::always_inline]] SiteId CachedSiteOf(const Caller& caller, SiteWord word, bool* is_uncached) const;
  // Returns false if there is no memory for the site cache. Then no site is cached.
  bool is_usable() const { return cache_.is_usable(); }

  // Counts the event's stack if it is truncated. To be called once for each event, after its calls of SiteOf.
  void CountTruncated();
  int64_t truncated_stacks() const { return truncated_stacks_.load(std::memory_order_relaxed); }
  const char* unwinder() const { return capture_.name(); }
  bool reads_python() const { return reads_python_; }

 private:
  // Frames that fit on the smallest stack.
  static constexpr int kFewFrames = 128;

  // The named frames of a stack: the thread's Python functions or, without these, the frames of its traceback.
  struct NamedFrames {
    uint64_t digest = 0;  // 0: there are none
    const Traceback* traceback = nullptr;
  };
  NamedFrames NamedFramesOf(const Caller& caller) const;
  static SiteCache::Key KeyOf(const Path& path, const NamedFrames& names, const SiteWord& word);
  // These two find a site that SiteOf has not found in the cache. `path`: of the native stack; null if it is not
  // cached.
  SiteId SiteOfNewStack(const Caller& caller, const Path* path, SiteWord word);
  SiteId SiteOfNamedStack(const Caller& caller, const Path* path, SiteWord word, const NamedFrames& names);
  // Finds the site in the site cache. Or finds or makes it and its cells, and caches it.
  SiteId SiteOfStack(const CapturedStack& stack, SiteWord word);

  const int max_depth_;
  const StackCapture capture_;
  const bool reads_python_;
  SiteTable& sites_;
  Ledger& ledger_;
  SiteCache cache_;
  std::atomic<int64_t> truncated_stacks_{0};
};

inline SiteId SiteFinder::CachedSiteOf(const Caller& caller, SiteWord word, bool* is_uncached) const {
  if (__builtin_expect(HasPython(), 0) != 0) return kNoSite;  // common events have no traceback
  const Path* const path = capture_.FindPath(caller, max_depth_);
  *is_uncached = path == nullptr;
  if (path == nullptr || path->truncated) return kNoSite;
  return cache_.FindInUsable(SiteCache::Key(path->hash, word));
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CORE_SITE_FINDER_H_
