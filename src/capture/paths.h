// Known paths: the frames from a caller to its stack's outermost frame, with what proves that a stack still holds them.
//
// Walking by rules (walk.h) is a pure function of (pc, sp, fp) and of the stack words that decide it: the return
// addresses, and the saved frame pointers that later frames are found by. It does not matter where the stack is: all
// places, and the saved frame pointers, are relative to sp. So a path is the caller's pc, its fp where that matters,
// and those words; where pc, fp and words are the same, the frames are the same.
//
// Paths are kept once per process and for ever, up to a limit. Not here: which to try at a caller (memo.h).
#ifndef HBMPROF_SRC_CAPTURE_PATHS_H_
#define HBMPROF_SRC_CAPTURE_PATHS_H_

#include <cstddef>
#include <cstdint>

#include "hbmprof/caller.h"
#include "src/base/hash.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

// Immutable. Places on the stack count words from the caller's sp.
//
// Three sorts of words are compared: return addresses, links (which hold addresses of the stack, and are kept less sp),
// and frames' records, a link with a return address behind it.
struct alignas(16) Path {
  static constexpr uint16_t kNoPlace = 0xffff;
  // So many of a sort are compared at a time; they are padded with repetitions.
  static constexpr uint32_t kAtOnce = 4;

  // An object that can be unloaded, and a frame that lies in it.
  struct Object {
    uint16_t id;
    uint16_t frame;
  };

  int32_t depth;      // frames
  int32_t max_depth;  // where walks were cut when it was learnt
  uint32_t end;       // bytes from sp; all places are below
  uint16_t fp;        // the place that the caller's fp points to; kNoPlace if it does not matter
  uint16_t returns;   // return addresses to compare, multiples of kAtOnce
  bool is_simple;     // has none of the next three
  bool truncated;     // cut at max_depth
  uint16_t records;
  uint16_t links;
  uint16_t objects;
  uint16_t all_returns;
  // Where things begin, in bytes from here.
  uint16_t places;         // of the words that are compared, in their order
  uint16_t hash_and_more;  // the hash, and objects
  uint16_t all_pcs;        // in records or not; where there are no records, these are pc and the words
  uint16_t return_places;  // of all_pcs but the first
  uintptr_t pc;
  // Behind it: the words to compare: returns, records, links.

  // Of all pcs.
  Hash128 hash() const { return *At<Hash128>(hash_and_more); }
  const uintptr_t* pcs() const { return At<uintptr_t>(all_pcs); }

  // The stack pointer in frame number `frame` of the stack at `sp`; beyond the frames that returns lead to, the highest
  // address.
  uintptr_t StackPointerOf(uintptr_t sp, int frame) const {
    if (frame == 0) return sp;
    return frame > all_returns ? UINTPTR_MAX : sp + (At<uint16_t>(return_places)[frame - 1] + 1) * sizeof(uintptr_t);
  }

  // Whether the stack that begins at `caller`, with `bytes` from its sp to the end, holds this path, walks being cut at
  // `max`.
  bool StandsAt(const Caller& caller, uintptr_t bytes, int max) const {
    const uintptr_t sp = caller.sp;
    if (pc != caller.pc || max_depth != max || end > bytes) return false;
    if (fp != kNoPlace && caller.fp != sp + fp * sizeof(uintptr_t)) return false;
    WordPair differences = {0, 0};
    const uintptr_t* word = At<uintptr_t>(sizeof(Path)) + returns;
    const uint16_t* place = At<uint16_t>(places) + returns;
    for (intptr_t i = -intptr_t{returns}; i != 0; i += kAtOnce) {
      differences |= LoadStackWords(sp, place[i], place[i + 1]) ^ PairAt(word + i);
      differences |= LoadStackWords(sp, place[i + 2], place[i + 3]) ^ PairAt(word + i + 2);
    }
    if (is_simple) return (differences[0] | differences[1]) == 0;
    place += records;
    for (intptr_t i = -intptr_t{records}; i != 0; i += kAtOnce, word += 2 * kAtOnce) {
      const WordPair base = {sp, 0};
      differences |= (LoadStackPair(sp, place[i]) - base) ^ PairAt(word);
      differences |= (LoadStackPair(sp, place[i + 1]) - base) ^ PairAt(word + 2);
      differences |= (LoadStackPair(sp, place[i + 2]) - base) ^ PairAt(word + 4);
      differences |= (LoadStackPair(sp, place[i + 3]) - base) ^ PairAt(word + 6);
    }
    word += links;
    place += links;
    for (intptr_t i = -intptr_t{links}; i != 0; i += kAtOnce) {
      const WordPair base = {sp, sp};
      differences |= (LoadStackWords(sp, place[i], place[i + 1]) - base) ^ PairAt(word + i);
      differences |= (LoadStackWords(sp, place[i + 2], place[i + 3]) - base) ^ PairAt(word + i + 2);
    }
    // Objects come last: only those that this stack returns to cannot be unloaded meanwhile.
    return (differences[0] | differences[1]) == 0 && (objects == 0 || ObjectsAreLoaded());
  }

  // The place of the innermost return address in which it differs from `other`, a path from the same pc. kNoPlace if
  // that lies at different places in the two, or they differ in something else.
  uint16_t FirstDifference(const Path& other) const;
  // The return address at `place`; 0 if it has none there.
  uintptr_t WordAt(uint32_t place) const;

 private:
  template <typename T>
  const T* At(size_t bytes) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(this) + bytes);
  }
  static WordPair PairAt(const uintptr_t* words) { return *reinterpret_cast<const WordPair*>(words); }
  // Whether its objects are what is loaded there now (rules.h).
  bool ObjectsAreLoaded() const;
};

static_assert(sizeof(Path) == offsetof(Path, pc) + sizeof(uintptr_t), "words follow pc");

// Makes LearnPath possible. Once.
void PreparePaths();

// Around a fork, so that no other thread is adding a path then.
void LockPaths();
void UnlockPaths();

// Paths by a number that is half as long as a pointer. All lie in one place, fixed before there is one. No path is
// number 0.
extern const char* path_memory;
inline constexpr size_t kPathAlignment = 16;
inline const Path* PathAt(uint32_t number) {
  return reinterpret_cast<const Path*>(path_memory + number * kPathAlignment);
}
inline uint32_t NumberOf(const Path* path) {
  return static_cast<uint32_t>(static_cast<size_t>(reinterpret_cast<const char*>(path) - path_memory) / kPathAlignment);
}

// Memory that LearnPath works in: too much for a small stack. In any state, for one call at a time.
inline constexpr size_t kLearningBytes = size_t{13} << 10;
struct alignas(16) LearningRoom {
  char bytes[kLearningBytes];
};

// Walks the stack at `caller`, on the thread's own stack, and hands out its path; null where it cannot be known: a
// frame that common rules do not describe, more than some 190 frames, an object too many, the limit; or, and then
// `is_busy` is set, where another thread is adding one. The same stack shape gives the same path, always.
const Path* LearnPath(const Caller& caller, int max_depth, LearningRoom* room, bool* is_busy);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PATHS_H_
