// Paths: the frames of known stacks, with the stack words that prove that a stack has these frames.
//
// A walk by rules (walk.h) is a pure function of (pc, sp, fp) and of the stack words that it reads: the return
// addresses, and the saved frame pointers by which later frames are found. The result does not depend on the address of
// the stack, because offsets and saved frame pointers are relative to sp. So a path is the caller's pc, its fp if a
// frame is found by it, and these words. If pc, fp and words are equal, the frames are equal.
//
// The process keeps every path until it ends, up to a limit.
#ifndef HBMPROF_SRC_CAPTURE_PATHS_PATHS_H_
#define HBMPROF_SRC_CAPTURE_PATHS_PATHS_H_

#include <cstddef>
#include <cstdint>

#include "hbmprof/caller.h"
#include "src/base/hash.h"
#include "src/capture/stack_memory.h"

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

  // An object that can be unloaded, and the number of a frame in it.
  struct Object {
    uint16_t id;
    uint16_t frame;
  };

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
  size_t bytes() const { return objects_at + objects * sizeof(Object); }

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
    return (differences[0] | differences[1]) == 0 && (objects == 0 || ObjectsAreLoaded());
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
  // Returns whether all objects of the path are loaded now, at the same addresses (objects.h).
  bool ObjectsAreLoaded() const;
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

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PATHS_PATHS_H_
