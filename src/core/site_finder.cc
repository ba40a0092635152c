#include "src/core/site_finder.h"

#include <algorithm>

#include "src/base/pages.h"
#include "src/capture/given_stack.h"
#include "src/capture/python/named_frames.h"
#include "src/core/generations.h"
#include "src/core/scoped_caller.h"

namespace hbmprof::internal {
SiteFinder::SiteFinder(const Options& options, SiteTable& sites)
    : max_depth_(std::clamp(options.max_stack_depth, 1, kMaxStackDepth)),
      capture_(options.unwinder),
      reads_python_(options.python && options.unwinder != Unwinder::kNone),
      sites_(sites) {}

SiteId SiteFinder::SiteOf(const Caller& caller, SiteWord word, bool is_uncached) {
  if (is_uncached) return SiteOfNewStack(caller, nullptr, word);
  const Caller& start = StartOfStack(caller);
  const uint64_t digest = HasPython() ? DigestOf(start) : 0;
  const Path* const path = capture_.FindPath(start, max_depth_);
  if (path != nullptr) {
    const SiteId known = cache_.Find(KeyOf(*path, digest, word));
    if (known != kNoSite) return known;
  }
  return digest == 0 ? SiteOfNewStack(start, path, word) : SiteOfNamedStack(start, path, word, digest);
}

[[gnu::noinline]] uint64_t SiteFinder::DigestOf(const Caller& caller) const {
  return reads_python_ && GivenFrames(caller) == 0 ? DigestPythonFrames(caller.sp, max_depth_) : 0;
}

SiteCache::Key SiteFinder::KeyOf(const Path& path, uint64_t digest, const SiteWord& word) {
  if (digest == 0) return {path.hash, word};
  // The address of the path is a part of it, because merging also depends on the sizes of the native frames. Paths are
  // never freed.
  const uint64_t other_digest = MultiplyFold(digest ^ reinterpret_cast<uintptr_t>(&path), kHashSeed2);
  return {{path.hash.low ^ digest, path.hash.high ^ other_digest}, word};
}

SiteId SiteFinder::CachedNamedSite(const Path& path, const Caller& caller, SiteWord word) const {
  const uint64_t digest = reads_python_ ? DigestPythonFrames(caller.sp, max_depth_) : 0;
  return cache_.Find(KeyOf(path, digest, word));
}

[[gnu::noinline]] SiteId SiteFinder::SiteOfNamedStack(const Caller& caller, const Path* path, SiteWord word,
                                                      uint64_t digest) {
  PythonWorkspace* workspace = AcquirePythonWorkspace();
  if (workspace == nullptr) return SiteOfNewStack(caller, path, word);
  const CapturedStack native =
      path != nullptr ? CapturedStack(*path) : capture_.CaptureAfresh(caller, NativeFramesOf(workspace), max_depth_);
  const SiteId site = SiteOfStack(MergePythonFrames(caller, native, max_depth_, workspace), word);
  ReleasePythonWorkspace(workspace);
  if (native.path != nullptr && site != kNoSite) cache_.Store(KeyOf(*native.path, digest, word), site);
  return site;
}

[[gnu::noinline]] SiteId SiteFinder::SiteOfNewStack(const Caller& caller, const Path* path, SiteWord word) {
  if (path != nullptr) return SiteOfStack(CapturedStack(*path), word);
  const bool knows_python = HasPython();
  // The frames are captured into this function's frame or, if they may be too many for a small stack, into pages. If
  // there is no memory for these, the stack is truncated.
  constexpr int kFewFrames = 128;
  uintptr_t few[kFewFrames];
  const size_t bytes = static_cast<size_t>(max_depth_) * sizeof(uintptr_t);
  void* const pages = max_depth_ > kFewFrames ? MapPages(bytes) : nullptr;
  const CapturedStack stack = pages != nullptr
                                  ? capture_.CaptureAfresh(caller, static_cast<uintptr_t*>(pages), max_depth_)
                                  : capture_.CaptureAfresh(caller, few, std::min(max_depth_, kFewFrames));
  const SiteId site = SiteOfStack(stack, word);
  UnmapPages(pages, bytes);
  // If the program loads the interpreter after its start, the first walk through the interpreter's code finds it.
  return HasPython() && !knows_python ? SiteOf(caller, word) : site;
}

SiteId SiteFinder::SiteOfStack(const CapturedStack& stack, SiteWord word) {
  const SiteCache::Key key(stack.hash, word);
  SiteId site = cache_.Find(key);
  if (site == kNoSite) {
    const StackRecord* record = sites_.InternStack(stack);
    site = record != nullptr ? sites_.InternSite(word.WithStack(record)) : sites_.OtherSite(word);
    if (site != kNoSite) cache_.Store(key, site);
    LookAtClock();
  }
  return site;
}

}  // namespace hbmprof::internal
