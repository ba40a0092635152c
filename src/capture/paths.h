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
  // Return addresses are compared so many at a time; they are padded with repetitions.
  static constexpr uint32_t kAtOnce = 4;

  // A word of the stack that holds the address of another.
  struct Link {
    uint16_t place;
    uint16_t target;
  };
  // An object that can be unloaded, and a frame that lies in it.
  struct Object {
    uint16_t id;
    uint16_t frame;
  };

  uint16_t depth;      // frames
  uint16_t max_depth;  // where walks were cut when it was learnt
  uint16_t returns;    // return addresses to compare, a multiple of kAtOnce
  uint16_t links;
  uint16_t objects;
  uint16_t fp;     // the place that the caller's fp points to; kNoPlace if it does not matter
  uint16_t end;    // all places are below
  bool truncated;  // cut at max_depth
  // Behind it: pc and the return addresses, their places, links, objects.

  const uintptr_t* pcs() const { return reinterpret_cast<const uintptr_t*>(this + 1); }
  const uint16_t* places() const { return reinterpret_cast<const uint16_t*>(pcs() + 1 + returns); }
  const Link* first_link() const { return reinterpret_cast<const Link*>(places() + returns); }
  const Object* first_object() const { return reinterpret_cast<const Object*>(first_link() + links); }

  // Whether the stack that begins at `caller` and ends at `stack_end` holds this path, walks being cut at `max`.
  bool StandsAt(const Caller& caller, uintptr_t stack_end, int max) const {
    const uintptr_t sp = caller.sp;
    const uintptr_t* words = pcs();
    if (words[0] != caller.pc || max_depth != max || end > (stack_end - sp) / sizeof(uintptr_t)) return false;
    if (fp != kNoPlace && caller.fp != sp + fp * sizeof(uintptr_t)) return false;
    ++words;
    const uint16_t* at = places();
    for (size_t i = 0; i != returns; i += kAtOnce) {
      if (LoadStackWord(sp, at[i]) != words[i] || LoadStackWord(sp, at[i + 1]) != words[i + 1] ||
          LoadStackWord(sp, at[i + 2]) != words[i + 2] || LoadStackWord(sp, at[i + 3]) != words[i + 3]) {
        return false;
      }
    }
    const Link* link = first_link();
    for (const Link* last = link + links; link != last; ++link) {
      if (LoadStackWord(sp, link->place) != sp + link->target * sizeof(uintptr_t)) return false;
    }
    return objects == 0 || ObjectsAreLoaded();
  }

  // The place of the innermost return address in which it differs from `other`, a path from the same pc. kNoPlace if
  // that lies at different places in the two, or they differ in something else.
  uint16_t FirstDifference(const Path& other) const;
  // The return address at `place`, for a place that has one.
  uintptr_t WordAt(uint32_t place) const;

 private:
  // Whether its objects are what is loaded there now (rules.h).
  bool ObjectsAreLoaded() const;
};
static_assert(sizeof(Path) == 16);

// Makes LearnPath possible. Once.
void PreparePaths();

// Walks the stack at `caller`, on the thread's own stack, and hands out its path; null where it cannot be known: a
// frame that common rules do not describe, a place or an object too many, the limit, another thread that is adding one.
// The same stack shape gives the same path, always.
const Path* LearnPath(const Caller& caller, int max_depth);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PATHS_H_
