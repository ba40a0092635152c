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
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

// Immutable. Places on the stack count words from the caller's sp.
struct Path {
  static constexpr uint16_t kNoPlace = 0xffff;
  // Words are compared so many at a time; they are padded with repetitions.
  static constexpr intptr_t kAtOnce = 4;

  // An object that can be unloaded, and a frame that lies in it.
  struct Object {
    uint16_t id;
    uint16_t frame;
  };

  int32_t depth;      // frames
  int32_t max_depth;  // where walks were cut when it was learnt
  uint32_t end;       // bytes from sp, all places are below
  uint16_t returns;   // return addresses to compare, a multiple of kAtOnce
  uint16_t links;     // words that hold addresses of the stack, a multiple of kAtOnce
  uint16_t objects;
  uint16_t fp;     // the place that the caller's fp points to; kNoPlace if it does not matter
  bool truncated;  // cut at max_depth
  // Behind it: pc and the return addresses, what links hold less sp, the places of return addresses and of links,
  // objects.

  const uintptr_t* pcs() const { return reinterpret_cast<const uintptr_t*>(this + 1); }
  const uintptr_t* targets() const { return pcs() + 1 + returns; }
  const uint16_t* places() const { return reinterpret_cast<const uint16_t*>(targets() + links); }
  const uint16_t* link_places() const { return places() + returns; }
  const Object* first_object() const { return reinterpret_cast<const Object*>(link_places() + links); }

  // Whether the stack that begins at `caller`, with `bytes` from its sp to the end, holds this path, walks being cut at
  // `max`.
  bool StandsAt(const Caller& caller, uintptr_t bytes, int max) const {
    const uintptr_t sp = caller.sp;
    if (pcs()[0] != caller.pc || max_depth != max || end > bytes) return false;
    if (fp != kNoPlace && caller.fp != sp + fp * sizeof(uintptr_t)) return false;
    return Holds(sp, 0, link_places(), targets(), returns) &&
           Holds(sp, sp, link_places() + links, targets() + links, links) && (objects == 0 || ObjectsAreLoaded());
  }

  // The place of the innermost return address in which it differs from `other`, a path from the same pc. kNoPlace if
  // that lies at different places in the two, or they differ in something else.
  uint16_t FirstDifference(const Path& other) const;
  // The return address at `place`, for a place that has one.
  uintptr_t WordAt(uint32_t place) const;

 private:
  // Whether the words at the `count` places before `places_end` of the stack are those before `expected_end`, once
  // `base` was taken off them.
  [[gnu::always_inline]] static bool Holds(uintptr_t sp, uintptr_t base, const uint16_t* places_end,
                                           const uintptr_t* expected_end, intptr_t count) {
    const WordPair bases = {base, base};
    WordPair differences = {0, 0};
    for (intptr_t i = -count; i != 0; i += kAtOnce) {
      const uint16_t* places = places_end + i;
      const auto* expected = reinterpret_cast<const WordPair*>(expected_end + i);
      differences |= (LoadStackWords(sp, places[0], places[1]) - bases) ^ expected[0];
      differences |= (LoadStackWords(sp, places[2], places[3]) - bases) ^ expected[1];
    }
    return (differences[0] | differences[1]) == 0;
  }
  // Whether its objects are what is loaded there now (rules.h).
  bool ObjectsAreLoaded() const;
};
static_assert((sizeof(Path) + sizeof(uintptr_t)) % sizeof(WordPair) == 0, "for the words behind pc");

// Makes LearnPath possible. Once.
void PreparePaths();

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

// Walks the stack at `caller`, on the thread's own stack, and hands out its path; null where it cannot be known: a
// frame that common rules do not describe, a place or an object too many, the limit; or, and then `is_busy` is set,
// where another thread is adding one. The same stack shape gives the same path, always.
const Path* LearnPath(const Caller& caller, int max_depth, bool* is_busy);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PATHS_H_
