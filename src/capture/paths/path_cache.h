// PathCache: a per-thread cache of call stacks. It recognizes a stack that the thread has captured before, by comparing
// the words of its path (paths.h) instead of walking. When a thread walks a stack that it has walked recently, the path
// is learned (made by LearnPath) and added to the cache.
//
// Why a path that matches is always correct:
// - A path is learned and used only if all of its words are on the thread's own stack, whose bounds never change.
//   Stacks of fibers and alternate signal stacks are always walked, and so are stacks with a frame that was guessed.
// - The frame pointer is compared only if a frame of the path was found by it. Otherwise it may hold any value.
// - A path lists its objects that can be unloaded, and it matches only while these objects are loaded (objects.h).
// - A signal handler can capture while the cache is read or written. The tag of a node is written last, so that a tag
//   always belongs to a valid path. Every path is compared in full, and paths are immutable.
#ifndef HBMPROF_SRC_CAPTURE_PATHS_PATH_CACHE_H_
#define HBMPROF_SRC_CAPTURE_PATHS_PATH_CACHE_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/base/hash.h"
#include "src/capture/paths/paths.h"
#include "src/capture/rules.h"
#include "src/capture/stack_memory.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

// Used by one thread, and by signal handlers that interrupt any of these functions. An interruption can lose an entry
// or a count, and has no other effect.
//
// The cache is a set of trees, which are stored in one hash table. Each tree holds the paths of one caller (pc, sp). A
// leaf is a path. A branch stands for the paths that are equal up to some frame and then differ: it holds the stack
// offset of the innermost return address that is not the same in all of them. A lookup loads the word at this offset;
// each value of the word leads to another child. (All paths of a branch have this return address at the same offset,
// because their frames up to it are equal.) Example: a Caller in f has the same (pc, sp) when g calls f and when h
// calls f. The first path is a leaf. When the second one is added, the leaf becomes a branch with the offset of f's
// return address, and two leaves: one for the return address in g, one for that in h. Any node may be replaced by
// another one. The paths below it can then no longer be found, and are added again when they are captured again.
class PathCache {
 public:
  // `bounds`: the stack of the thread. REQUIRES: all bytes of the object are zero, or another thread has used it.
  void Start(const StackBounds& bounds) {
    stack_high_ = bounds.high;
    stack_bytes_ = bounds.high - bounds.low;
  }

  // Returns the path of the stack that begins at `caller`, truncated at `max_depth` frames; null if it is not cached.
  [[gnu::always_inline]] const Path* Find(const Caller& caller, int max_depth) {
    const uintptr_t bytes = stack_high_ - caller.sp;
    if (bytes > stack_bytes_) return nullptr;
    uint64_t key = RootKey(caller);
    for (;;) {
      const Node* node = FindNode(key);
      if (node == nullptr) return nullptr;
      if (node->offset == Path::kNoOffset) {
        const Path* path = PathAt(node->path);
        if (!path->Matches(caller, bytes, max_depth)) return nullptr;
        ++hits_;
        return path;
      }
      const uintptr_t offset_bytes = node->offset * sizeof(uintptr_t);
      if (offset_bytes >= bytes) return nullptr;
      key = ChildKey(key, StripReturnAddress(LoadStackWord(caller.sp + offset_bytes)));
    }
  }

  // Adds the path of a stack that begins at `caller`.
  void Insert(const Caller& caller, const Path* path);

  // Whether the thread does not use its cache for now, because its stacks seldom repeat.
  bool is_paused() const { return pause_ > 0; }

  // Must be called after each walk of a stack for which Find returned null. Returns whether the path of the stack
  // should be learned: the same stack was walked recently, and the cache is not paused. `hash` is that of the frames.
  bool ShouldLearn(const Caller& caller, const Hash128& hash);

 private:
  static constexpr uint32_t kSetBits = 9;
  static constexpr uint32_t kWays = 8;
  struct Node {
    uint16_t tag;     // 0 only in an empty node
    uint16_t offset;  // of the word that selects the child, in words from sp; kNoOffset in a leaf
    uint32_t path;    // in a leaf, the number of its path; in a branch, the number of one of the paths below it
  };
  struct alignas(64) Set {
    Node nodes[kWays];
  };
  static_assert(sizeof(Set) == 64, "one cache line");
  static constexpr uint32_t kSeenBits = 11;
  static constexpr uint32_t kTrialCaptures = 2048;
  static constexpr uint32_t kPausedWalks = 1 << 14;

  static uint64_t RootKey(const Caller& caller) { return MixAddress(caller.pc + (caller.sp << 21)); }
  static uint64_t ChildKey(uint64_t key, uintptr_t word) { return MixAddress(key + word); }
  static uint16_t TagOf(uint64_t key) { return static_cast<uint16_t>(key >> 24 | 1); }

  Set& SetOf(uint64_t key) { return sets_[key >> (64 - kSetBits)]; }
  // Returns null if there is no node. The ways are compared one after the other, because the processor predicts these
  // branches well and executes the code after them speculatively.
  Node* FindNode(uint64_t key) {
    const uint16_t tag = TagOf(key);
#pragma GCC unroll 8
    for (Node& node : SetOf(key).nodes) {
      if (node.tag == tag) return &node;
    }
    return nullptr;
  }
  void SetLeaf(uint64_t key, const Path* path);

  Set sets_[1 << kSetBits];
  uintptr_t stack_high_;
  uintptr_t stack_bytes_;
  uint32_t pause_;  // number of walks until the cache is used again
  // Counts since the last decision about a pause.
  uint32_t hits_;
  uint32_t walks_;
  uint32_t learnings_;
  uint16_t seen_[1 << kSeenBits];  // tags of stacks that were walked
};

// The calling thread's cache; null if it has none or does not use it for now. A thread gets its cache, 64 KiB of pages,
// at its first walk. When it has ended, another thread gets them. Plain data in the static TLS block, so
// that signal handlers can use it.
extern __thread PathCache* active_path_cache __attribute__((tls_model("initial-exec")));

// Captures a stack that is not in the thread's cache. Has the same results as WalkByRules. Sets `*path` to the path
// that is now in the cache, or to null.
WalkResult WalkAndCache(const Caller& caller, uintptr_t* pcs, int max_depth, const Path** path);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PATHS_PATH_CACHE_H_
