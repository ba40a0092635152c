#include "src/capture/paths/path_cache.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "src/base/kept_errno.h"
#include "src/base/pages.h"
#include "src/capture/paths/paths.h"

namespace hbmprof::internal {

__thread PathCache* active_path_cache __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

#ifdef HBMPROF_CHECK_CAPTURE
constexpr bool kIsChecked = true;
#else
constexpr bool kIsChecked = false;
#endif

// The pages of a thread. They are never unmapped: when their thread has ended, another one takes them. (A handler of
// thread exit would need a thread-specific key, and the C library calls malloc for all but the first 32 keys.)
struct CachePages {
  std::atomic<uint64_t> owner;  // a thread's id, and above it a number that no other owner has
  CachePages* next;
  PathCache cache;
  LearningScratch scratch;
};
std::atomic<CachePages*> all_pages{nullptr};

// Plain data in the static TLS block, like active_path_cache.
struct ThreadCache {
  CachePages* pages;
  uint32_t captures;  // before the thread got its pages
  // The pages are being obtained, or their scratch memory is in use. A signal handler that finds this set neither
  // obtains pages nor learns a path.
  bool is_busy;
};
__thread ThreadCache thread_cache __attribute__((tls_model("initial-exec"))) = {nullptr, 0, false};

// Keeps the object that contains this code loaded, for example a plugin with a static copy of the library. That object
// contains the handlers of fork and process exit, and threads may be about to call them. Runs before main, or in the
// dlopen that loads the object. A later call could deadlock: another thread may be inside a dlopen that waits
// for this thread, while the dlopen here waits for that thread.
[[gnu::constructor]] void StayLoaded() {
  Dl_info info;
  link_map* self = nullptr;
  const auto code = reinterpret_cast<void*>(&StayLoaded);
  if (dladdr1(code, &info, reinterpret_cast<void**>(&self), RTLD_DL_LINKMAP) == 0 || self == nullptr) return;
  // The main program has no name and is never unloaded.
  if (*self->l_name != '\0') dlopen(self->l_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

// Returns pages that belong to the calling thread from now on; null if there is no memory.
CachePages* TakePages() {
  static std::atomic<uint32_t> owners{0};
  const auto thread = static_cast<uint32_t>(syscall(SYS_gettid));
  const uint64_t owner = uint64_t{owners.fetch_add(1) + 1} << 32 | thread;
  for (CachePages* pages = all_pages.load(std::memory_order_acquire); pages != nullptr; pages = pages->next) {
    uint64_t old = pages->owner.load(std::memory_order_relaxed);
    const auto old_thread = static_cast<uint32_t>(old);
    const bool is_free = old_thread == thread || (syscall(SYS_tgkill, getpid(), old_thread, 0) != 0 && errno == ESRCH);
    if (is_free && pages->owner.compare_exchange_strong(old, owner, std::memory_order_acq_rel)) return pages;
  }
  auto* pages = static_cast<CachePages*>(MapPages(sizeof(CachePages)));
  if (pages == nullptr) return nullptr;
  pages->owner.store(owner, std::memory_order_relaxed);
  pages->next = all_pages.load(std::memory_order_relaxed);
  while (!all_pages.compare_exchange_weak(pages->next, pages, std::memory_order_release)) {
  }
  return pages;
}

// REQUIRES: the thread is not busy.
[[gnu::noinline]] CachePages* ObtainPages() {
  // For a thread that makes few captures, the pages cost more than they save.
  constexpr uint32_t kCapturesBefore = 16;
  ThreadCache& mine = thread_cache;
  if (mine.captures < kCapturesBefore) {
    ++mine.captures;
    return nullptr;
  }
  const KeptErrno kept_errno;
  mine.is_busy = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  CachePages* const pages = TakePages();
  if (pages == nullptr) {
    mine.captures = 0;
  } else {
    pages->cache.Start(ThreadStackBounds());
  }
  mine.pages = pages;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.is_busy = false;
  return pages;
}

void CheckAgainstWalk(const Path& path, const uintptr_t* pcs, const WalkResult& walk) {
  const Hash128 hash = StackHash(walk.hash, path.truncated);
  if (walk.end != WalkEnd::kUnknown && !walk.is_guessed && walk.depth == path.depth &&
      path.truncated == (walk.end == WalkEnd::kDepth) && std::equal(pcs, pcs + walk.depth, path.pcs()) &&
      hash.low == path.hash.low && hash.high == path.hash.high) {
    return;
  }
  std::fprintf(stderr, "hbmprof: a cached stack of %d frames differs from the walked stack of %d frames\n", path.depth,
               walk.depth);
  std::abort();
}

}  // namespace

void PathCache::Insert(const Caller& caller, const Path* path) {
  uint64_t key = RootKey(caller);
  for (int depth = 0; depth < kMaxStackDepth; ++depth) {
    Node* node = FindNode(key);
    if (node == nullptr) return SetLeaf(key, path);
    // If the node is a branch, this is one of the paths below it.
    const Path* other = PathAt(node->path);
    const uint16_t difference = path->FirstDifference(*other);
    uint16_t offset = node->offset;
    if (difference < offset) {
      offset = difference;
      node->offset = offset;
      SetLeaf(ChildKey(key, other->ReturnAddressAt(offset)), other);  // may move the node
    } else if (offset == Path::kNoOffset) {
      // The same path, or one that differs in no return address.
      node->path = NumberOf(path);
      return;
    }
    const uintptr_t word = path->ReturnAddressAt(offset);
    if (word == 0) return;  // the path ends before the frames in which the others differ
    key = ChildKey(key, word);
  }
}

bool PathCache::ShouldLearn(const Caller& caller, const Hash128& hash) {
  if (kIsChecked) return true;
  if (pause_ > 0) {
    --pause_;
    return false;
  }
  if (++walks_ + hits_ > kTrialCaptures) {
    if (hits_ < learnings_) pause_ = kPausedWalks;
    hits_ = 0;
    walks_ = 0;
    learnings_ = 0;
  }
  const uint64_t key = hash.low ^ MixAddress(caller.sp);
  uint16_t& seen = seen_[key >> (64 - kSeenBits)];
  const auto tag = static_cast<uint16_t>(key >> 16);
  const bool should_learn = seen == tag;
  seen = tag;
  learnings_ += should_learn;
  return should_learn;
}

// Makes the node of `key` a leaf. A new node replaces the oldest one of its set.
void PathCache::SetLeaf(uint64_t key, const Path* path) {
  Node* node = FindNode(key);
  if (node == nullptr) {
    Set& set = SetOf(key);
    for (uint32_t way = kWays - 1; way > 0; --way) {
      set.nodes[way].path = set.nodes[way - 1].path;
      set.nodes[way].offset = set.nodes[way - 1].offset;
      std::atomic_signal_fence(std::memory_order_release);  // a tag always belongs to a valid path
      set.nodes[way].tag = set.nodes[way - 1].tag;
    }
    node = &set.nodes[0];
  }
  node->path = NumberOf(path);
  node->offset = Path::kNoOffset;
  std::atomic_signal_fence(std::memory_order_release);
  node->tag = TagOf(key);
}

WalkResult WalkAndCache(const Caller& caller, uintptr_t* pcs, int max_depth, const Path** path) {
  *path = nullptr;
  const WalkResult walk = WalkByRules(caller, pcs, max_depth, /*guess=*/true);
  ThreadCache& mine = thread_cache;
  if (kIsChecked && mine.pages != nullptr) {
    *path = mine.pages->cache.Find(caller, max_depth);
    if (*path != nullptr) {
      CheckAgainstWalk(**path, pcs, walk);
      return walk;
    }
  }
  if (walk.end == WalkEnd::kUnknown || walk.is_guessed || mine.is_busy || !IsOnOwnStack(caller.sp)) return walk;
  CachePages* const pages = mine.pages != nullptr ? mine.pages : ObtainPages();
  if (pages == nullptr) return walk;
  const bool should_learn = pages->cache.ShouldLearn(caller, walk.hash);
  // In a build with HBMPROF_CHECK_CAPTURE captures never use the cache, so that each cached stack is compared above.
  active_path_cache = kIsChecked || pages->cache.is_paused() ? nullptr : &pages->cache;
  if (!should_learn) return walk;
  mine.is_busy = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  *path = LearnPath(caller, max_depth, &pages->scratch);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.is_busy = false;
  if (*path != nullptr) pages->cache.Insert(caller, *path);
  return walk;
}

}  // namespace hbmprof::internal
