// StackCapture: captures the call stack at a program point, as return addresses.
//
// Not here: the ways to find a stack (path_cache.h, walk.h, libunwind_backend.h), loaded modules (modules.h).
#ifndef HBMPROF_SRC_CAPTURE_CAPTURE_H_
#define HBMPROF_SRC_CAPTURE_CAPTURE_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "hbmprof/options.h"
#include "src/capture/path_cache.h"
#include "src/capture/paths.h"

namespace hbmprof::internal {

struct CapturedStack {
  CapturedStack(const uintptr_t* pcs, int depth, bool truncated, const Path* path = nullptr)
      : pcs(pcs), depth(depth), truncated(truncated), path(path) {}
  explicit CapturedStack(const Path& path) : CapturedStack(path.pcs(), path.depth, path.truncated, &path) {}

  // Innermost first. They are in the buffer that Capture was given, or in memory that is valid until the process ends.
  const uintptr_t* pcs;
  int depth;
  bool truncated;  // there are more frames at the outer end
  // If not null: all stacks with this path have the same frames and the same `truncated`. A stack may have several
  // paths.
  const Path* path;
};

// Immutable after construction. Any thread and any signal handler may call Capture.
//
// The frame at which a signal interrupted a function has no return address. It is stored as the interrupted address
// plus one, so that the address before it is always inside the call or the interrupted instruction.
class StackCapture {
 public:
  // Unwinder::kLibunwind loads libunwind, under the dynamic linker's lock. If that fails, the rules are used instead.
  explicit StackCapture(Unwinder unwinder);

  // Returns the stack that begins at `caller`; pcs[0] is caller.pc. It has at most min(`max_depth`, kMaxStackDepth)
  // frames; `buffer` must have space for them. A frame without unwind information is found by its frame pointer if
  // possible; otherwise it ends the stack, which then counts as truncated. The stack of `Caller{}` is empty.
  //
  // Does not call malloc, except that libunwind may when a thread first uses it. Takes no lock that dlopen holds while
  // it runs other code. Calls nothing of the traced program. Leaves errno alone. Needs less than 4 KiB of stack.
  CapturedStack Capture(const Caller& caller, uintptr_t* buffer, int max_depth) const {
    const Path* path = FindPath(caller, max_depth);
    return path != nullptr ? CapturedStack(*path) : CaptureAfresh(caller, buffer, max_depth);
  }

  // The two halves of Capture. FindPath returns the path of the stack if it is in the thread's cache, and null if not.
  [[gnu::always_inline]] const Path* FindPath(const Caller& caller, int max_depth) const {
    PathCache* cache = method_ == Method::kRules ? active_path_cache : nullptr;
    return cache == nullptr ? nullptr : cache->Find(caller, max_depth);
  }
  // Captures the stack without the cache.
  CapturedStack CaptureAfresh(const Caller& caller, uintptr_t* buffer, int max_depth) const;

  // The method that captures really use: "cached_rules", "frame_pointer", "libunwind", "backtrace" or "none". It
  // differs from the requested unwinder if this system does not support that.
  const char* name() const;

 private:
  enum class Method : uint8_t { kRules, kFramePointer, kLibunwind, kBacktrace, kNone };

  Method method_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_CAPTURE_H_
