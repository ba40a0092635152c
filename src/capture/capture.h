// StackCapture: the call stack of a program point, as return addresses.
//
// Not here: the ways to walk a stack (walk.h, memo.h, libunwind_backend.h), loaded modules (modules.h).
#ifndef HBMPROF_SRC_CAPTURE_CAPTURE_H_
#define HBMPROF_SRC_CAPTURE_CAPTURE_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "hbmprof/options.h"
#include "src/capture/memo.h"
#include "src/capture/paths.h"

namespace hbmprof::internal {

struct CapturedStack {
  CapturedStack(const uintptr_t* pcs, int depth, bool truncated, const Path* path = nullptr)
      : pcs(pcs), depth(depth), truncated(truncated), path(path) {}
  explicit CapturedStack(const Path& path) : CapturedStack(path.pcs(), path.depth, path.truncated, &path) {}

  // Innermost first. In the buffer that Capture was given, or in memory that is good for ever.
  const uintptr_t* pcs;
  int depth;
  bool truncated;  // there were more frames at the outer end
  // Not null: only stacks with these frames, cut as this one was, are ever given this path. A stack may have several.
  const Path* path;
};

// Immutable after construction; Capture may be called from any thread, and from signal handlers.
//
// The frame at which a signal interrupted a function has no return address; it is stored as the interrupted address
// plus one, so that "the call is at the address before it" names the interrupted instruction too.
class StackCapture {
 public:
  // Loads libunwind for Unwinder::kLibunwind, under the dynamic linker's lock; uses the rules where that fails.
  explicit StackCapture(Unwinder unwinder);

  // The stack that begins at `caller`, at most `max_depth` (and kMaxStackDepth) frames: pcs[0] = caller.pc. `buffer`
  // has room for them. Frames that nothing describes are guessed by their frame pointers, or end the stack as
  // truncated. Takes no memory from malloc, except that libunwind may when a thread first needs it; takes no lock that
  // dlopen holds while it runs code of others; calls nothing of the traced program's; leaves errno alone. Of a caller
  // that is nowhere (`Caller{}`) there is no stack. Needs less than 4 KiB of the stack that it runs on.
  CapturedStack Capture(const Caller& caller, uintptr_t* buffer, int max_depth) const {
    const Path* path = FindPath(caller, max_depth);
    return path != nullptr ? CapturedStack(*path) : CaptureAfresh(caller, buffer, max_depth);
  }

  // The two halves of Capture: the path of the stack if this thread remembers it, or null; then the work.
  [[gnu::always_inline]] const Path* FindPath(const Caller& caller, int max_depth) const {
    Memo* memo = method_ == Method::kRules ? memo_to_ask : nullptr;
    return memo == nullptr ? nullptr : memo->Find(caller, max_depth);
  }
  CapturedStack CaptureAfresh(const Caller& caller, uintptr_t* buffer, int max_depth) const;

  // What captures really use, which is less than was asked for where this system lacks something:
  // "cached_rules", "frame_pointer", "libunwind", "backtrace", "none".
  const char* name() const;

 private:
  enum class Method : uint8_t { kRules, kFramePointer, kLibunwind, kBacktrace, kNone };

  Method method_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_CAPTURE_H_
