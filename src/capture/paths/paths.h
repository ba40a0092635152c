// Paths: the call stacks that were captured before, with the stack words that prove that a stack is one of them; and a
// cache of them for each thread, which recognizes such a stack by these words, without a walk.
//
// A walk by rules (walk.h) is a pure function of (pc, sp, fp) and of the stack words that it reads: the return
// addresses, and the saved frame pointers by which later frames are found. The result does not depend on the address of
// the stack, because offsets and saved frame pointers are relative to sp. So a path is the caller's pc, its fp if a
// frame is found by it, and these words. If pc, fp and words are equal, the frames are equal.
//
// When a thread walks a stack that it has walked recently, its path is learned (LearnPath, paths.cc) and added to the
// thread's cache (path_cache.cc). The process keeps every path until it ends, up to a limit.
//
// Why a path that matches is always correct:
// - A path is learned and used only if all of its words are on the thread's own stack, whose bounds never change.
//   Stacks of fibers and alternate signal stacks are always walked, and so are stacks with a frame that was guessed.
// - The frame pointer is compared only if a frame of the path was found by it. Otherwise it may hold any value.
// - A path lists its objects that can be unloaded, and it matches only while these objects are loaded (objects.h).
// - A signal handler can capture while the cache is read or written. The tag of a node is written last, so that a tag
//   always belongs to a valid path. Every path is compared in full, and paths are immutable.
#ifndef HBMPROF_SRC_CAPTURE_PATHS_PATHS_H_
#define HBMPROF_SRC_CAPTURE_PATHS_PATHS_H_

#include <cstddef>
#include <cstdint>

#include "hbmprof/caller.h"
#include "src/base/hash.h"
#include "src/capture/objects.h"
#include "src/capture/rules.h"
#include "src/capture/stack_memory.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

// The hash of a stack whose frames have the hash `frames`.
inline Hash128 StackHash(const Hash128& frames, bool truncated) {
  return {frames.low ^ uint64_t{truncated}, frames.high ^ uint64_t{truncated}};
}

// Immutable. An offset is a distance from the caller's sp, in words.
//
// Two kinds of words are compared: return addresses, without their signatures, and links, which are words that hold
// addresses of the stack, stored relative to sp.
struct alignas(16) Path {
  static constexpr uint16_t kNoOffset = 0xffff;
  // Words of one kind are compared in groups of this size. The last group is padded with repetitions of its last word.
  static constexpr uint32_t kGroup = 4;

  Hash128 hash;       // StackHash of all frames
  int16_t depth;      // frames
  int16_t max_depth;  // limit of the walk that found the path
  uint32_t end;       // bytes from sp; greater than all offsets
  uint16_t fp;        // offset of the stack address in the caller's fp; kNoOffset if no frame is found by fp
  uint16_t returns;   // number of return addresses to compare, a multiple of kGroup
  uint16_t links;     // number of links to compare, a multiple of kGroup
  uint16_t objects;
  uint16_t offsets_at;  // position of the offsets of the compared words, in bytes from the start of this struct
  uint16_t objects_at;  // position of the objects
  uint16_t unpadded_returns;
  bool truncated;  // at max_depth
  uintptr_t pc;
  // The words to compare follow: return addresses, links. `pc` and the return addresses are the pcs of all frames.

  const uintptr_t* pcs() const { return &pc; }
  // The size of the path, in bytes.
  size_t bytes() const { return objects_at + objects * sizeof(ObjectOfFrame); }

  // Returns whether the stack that begins at `caller` has the frames of this path, if walks are truncated at `max`
  // frames. The stack ends `bytes` bytes above caller.sp.
  bool Matches(const Caller& caller, uintptr_t bytes, int max) const {
    const uintptr_t sp = caller.sp;
    if (pc != caller.pc || max_depth != max || end > bytes) return false;
    if (fp != kNoOffset && caller.fp != sp + fp * sizeof(uintptr_t)) return false;
    const uintptr_t mask = ReturnAddressMask();
    const WordPair return_mask = {mask, mask};
    WordPair differences = {0, 0};
    const uintptr_t* word = pcs() + 1 + returns;
    const uint16_t* offset = At<uint16_t>(offsets_at) + returns;
    for (intptr_t i = -intptr_t{returns}; i != 0; i += kGroup) {
      differences |= (LoadStackWords(sp, offset[i], offset[i + 1]) & return_mask) ^ PairAt(word + i);
      differences |= (LoadStackWords(sp, offset[i + 2], offset[i + 3]) & return_mask) ^ PairAt(word + i + 2);
    }
    if (links != 0) {
      word += links;
      offset += links;
      for (intptr_t i = -intptr_t{links}; i != 0; i += kGroup) {
        const WordPair base = {sp, sp};
        differences |= (LoadStackWords(sp, offset[i], offset[i + 1]) - base) ^ PairAt(word + i);
        differences |= (LoadStackWords(sp, offset[i + 2], offset[i + 3]) - base) ^ PairAt(word + i + 2);
      }
    }
    // Objects are checked last: an object cannot be unloaded while this stack returns to it, and that is known only
    // after all words were compared.
    return (differences[0] | differences[1]) == 0 &&
           (objects == 0 || AreObjectsLoaded(At<ObjectOfFrame>(objects_at), objects, pcs()));
  }

  // Returns the offset of the innermost return address in which this path differs from `other`, a path of the same pc.
  // Returns kNoOffset if that return address has different offsets in the two paths, or if they differ in something
  // else.
  uint16_t FirstDifference(const Path& other) const;
  // Returns the return address at `offset`; 0 if the path has none there.
  uintptr_t ReturnAddressAt(uint32_t offset) const;

 private:
  template <typename T>
  const T* At(size_t bytes) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(this) + bytes);
  }
  static WordPair PairAt(const uintptr_t* words) { return *reinterpret_cast<const WordPair*>(words); }
};

// The path of all stacks if stacks are not captured. Its hash is not 0, so that the hashes of its sites differ.
inline constexpr Path kEmptyPath = [] {
  Path path = {};
  path.hash = {kHashSeed0, kHashSeed2};
  return path;
}();

static_assert(sizeof(Path) == offsetof(Path, pc) + sizeof(uintptr_t), "words follow pc");

// A path has a number, which is half as long as a pointer. All paths are in one block of memory, which is mapped when
// the first path is made. No path has the number 0.
extern char* path_memory __attribute__((visibility("hidden")));
inline constexpr size_t kPathAlignment = 16;
inline const Path* PathAt(uint32_t number) {
  return reinterpret_cast<const Path*>(path_memory + number * kPathAlignment);
}
inline uint32_t NumberOf(const Path* path) {
  return static_cast<uint32_t>(static_cast<size_t>(reinterpret_cast<const char*>(path) - path_memory) / kPathAlignment);
}

// Working memory of LearnPath, which needs more memory than a small stack has. Its contents before a call do not
// matter. Only one call at a time may use it.
inline constexpr size_t kLearningBytes = size_t{22} << 10;
struct alignas(16) LearningScratch {
  char bytes[kLearningBytes];
};

// Walks the stack at `caller`, truncated at `max_depth` frames, and returns its path. Stacks that differ only in their
// address have the same path. Returns null if there is no path: the caller is not on the thread's own stack, a frame
// has a rule that a path does not support, there are too many objects, or the table of paths is full.
const Path* LearnPath(const Caller& caller, int max_depth, LearningScratch* scratch);

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

#endif  // HBMPROF_SRC_CAPTURE_PATHS_PATHS_H_
