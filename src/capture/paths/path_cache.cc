#include <dlfcn.h>
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "src/base/kept_errno.h"
#include "src/base/pages.h"
#include "src/capture/paths/paths.h"

namespace hbmprof::internal {

__thread PathCache* active_path_cache __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

// The pages of a thread. They are never unmapped: when their thread has ended, another one takes them. (A handler of
// thread exit would need a thread-specific key, and the C library calls malloc for all but the first 32 keys.)
struct CachePages {
  std::atomic<uint64_t> owner;  // the id of a process, and below it that of a thread
  CachePages* next;
  PathCache cache;
  LearningScratch scratch;
};
std::atomic<CachePages*> all_pages{nullptr};

// Plain data in the static TLS block, like active_path_cache.
struct ThreadCache {
  CachePages* pages;
  // The pages are being obtained, or their scratch memory is in use. A signal handler that finds this set neither
  // obtains pages nor learns a path. It stays set if there is no memory for the pages.
  bool is_busy;
};
__thread ThreadCache thread_cache __attribute__((tls_model("initial-exec"))) = {nullptr, false};

// Keeps the object that contains this code loaded, for example a plugin with a static copy of the library. That object
// contains the handlers of fork and process exit, and threads may be about to call them. Runs before main, or in the
// dlopen that loads the object. A later call could deadlock: another thread may be inside a dlopen that waits
// for this thread, while the dlopen here waits for that thread.
[[gnu::constructor]] void StayLoaded() {
  dl_find_object self;
  if (_dl_find_object(reinterpret_cast<void*>(&StayLoaded), &self) != 0) return;
  // The main program has no name and is never unloaded.
  const char* const name = self.dlfo_link_map->l_name;
  if (*name != '\0') dlopen(name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

// Returns pages that belong to the calling thread from now on; null if there is no memory.
CachePages* TakePages() {
  // A thread looks for pages of ended threads in this many places, and goes on where the last one has stopped.
  constexpr int kMostLooks = 16;
  static std::atomic<CachePages*> next_look{nullptr};
  const auto process = static_cast<uint32_t>(getpid());
  const auto thread = static_cast<uint32_t>(syscall(SYS_gettid));
  const uint64_t owner = uint64_t{process} << 32 | thread;
  for (int i = 0; i < kMostLooks; ++i) {
    CachePages* pages = next_look.load(std::memory_order_acquire);
    if (pages == nullptr) pages = all_pages.load(std::memory_order_acquire);
    if (pages == nullptr) break;
    next_look.store(pages->next, std::memory_order_release);
    uint64_t old = pages->owner.load(std::memory_order_relaxed);
    // Threads of another process can use the pages if a child of vfork shares the memory.
    const auto old_thread = static_cast<uint32_t>(old);
    const bool is_free =
        old >> 32 == process && (old == owner || (syscall(SYS_tgkill, process, old_thread, 0) != 0 && errno == ESRCH));
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
  const KeptErrno kept_errno;
  ThreadCache& mine = thread_cache;
  mine.is_busy = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  CachePages* const pages = TakePages();
  if (pages == nullptr) return nullptr;
  pages->cache.Start(ThreadStackBounds());
  mine.pages = pages;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.is_busy = false;
  return pages;
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
  const WalkResult walk = WalkByRules(caller, pcs, max_depth);
  ThreadCache& mine = thread_cache;
  if (walk.end == WalkEnd::kUnknown || walk.is_guessed || mine.is_busy || !IsOnOwnStack(caller.sp)) return walk;
  CachePages* const pages = mine.pages != nullptr ? mine.pages : ObtainPages();
  if (pages == nullptr) return walk;
  const bool should_learn = pages->cache.ShouldLearn(caller, walk.hash);
  active_path_cache = pages->cache.is_paused() ? nullptr : &pages->cache;
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
