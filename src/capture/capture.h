// StackCapture: captures the call stack at a program point, as return addresses.
#ifndef HBMPROF_SRC_CAPTURE_CAPTURE_H_
#define HBMPROF_SRC_CAPTURE_CAPTURE_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "hbmprof/options.h"
#include "src/base/hash.h"
#include "src/capture/paths/paths.h"

namespace hbmprof::internal {

struct CapturedStack {
  CapturedStack(const uintptr_t* pcs, int depth, bool truncated)
      : CapturedStack(pcs, depth, truncated, StackHash(HashWords128(pcs, static_cast<size_t>(depth)), truncated),
                      nullptr) {}
  CapturedStack(const uintptr_t* pcs, int depth, bool truncated, const Hash128& hash, const Path* path)
      : pcs(pcs), depth(depth), truncated(truncated), hash(hash), path(path) {}
  explicit CapturedStack(const Path& path) : CapturedStack(path.pcs(), path.depth, path.truncated, path.hash, &path) {}

  // Innermost first. They are in the buffer of the call, in the array of a CallerOfStack (given_stack.h), or in memory
  // that is valid until the process ends.
  const uintptr_t* pcs;
  int depth;
  bool truncated;  // the outermost frames are missing
  Hash128 hash;    // StackHash
  // If not null: all stacks with this path have the same frames and the same `truncated`. A stack may have several
  // paths.
  const Path* path;
};

// Immutable after construction. Any thread and any signal handler may call Capture.
class StackCapture {
 public:
  explicit StackCapture(Unwinder unwinder);

  // Returns the stack that begins at `caller`; pcs[0] is caller.pc. It has at most min(`max_depth`, kMaxStackDepth)
  // frames; `buffer` must have space for them. The caller of a frame without unwind information is found by the frame
  // pointer if possible. Otherwise the stack ends at that frame and counts as truncated (with kFramePointer: only a
  // stack of more than `max_depth` frames does). The stack of `Caller{}` is empty.
  //
  // Does not call malloc. Takes no lock that dlopen holds while dlopen runs other code. Calls no function of the traced
  // program. Does not change errno. Needs less than 4 KiB of stack.
  CapturedStack Capture(const Caller& caller, uintptr_t* buffer, int max_depth) const {
    const Path* path = FindPath(caller, max_depth);
    return path != nullptr ? CapturedStack(*path) : CaptureAfresh(caller, buffer, max_depth);
  }

  // The two steps of Capture. FindPath returns the path of the stack if it is in the thread's cache, kEmptyPath if
  // stacks are not captured, and null otherwise.
  [[gnu::always_inline]] const Path* FindPath(const Caller& caller, int max_depth) const {
    if (__builtin_expect(method_ != Unwinder::kAuto, 0) != 0) return is_on() ? nullptr : &kEmptyPath;
    PathCache* cache = active_path_cache;
    return cache == nullptr ? nullptr : cache->Find(caller, max_depth);
  }
  // Captures the stack without the cache.
  CapturedStack CaptureAfresh(const Caller& caller, uintptr_t* buffer, int max_depth) const;

  // Whether stacks are captured.
  bool is_on() const { return method_ != Unwinder::kNone; }
  // The method that captures use: "cached_rules", "frame_pointer" or "none".
  const char* name() const {
    return !is_on() ? "none" : method_ == Unwinder::kFramePointer ? "frame_pointer" : "cached_rules";
  }

 private:
  const Unwinder method_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_CAPTURE_H_
