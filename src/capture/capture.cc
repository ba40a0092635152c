#include "src/capture/capture.h"

#include <algorithm>

#include "src/capture/given_stack.h"
#include "src/capture/paths/paths.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

StackCapture::StackCapture(Unwinder unwinder)
    : method_(unwinder == Unwinder::kNone || unwinder == Unwinder::kFramePointer ? unwinder : Unwinder::kAuto) {}

CapturedStack StackCapture::CaptureAfresh(const Caller& caller, uintptr_t* buffer, int max_depth) const {
  max_depth = std::min(max_depth, kMaxStackDepth);
  if (max_depth <= 0 || caller.pc == 0 || !is_on()) return {buffer, 0, false};
  if (const int given = GivenFrames(caller); given > 0) {
    return {GivenStack(caller), std::min(given, max_depth), given > max_depth};
  }
  if (method_ == Unwinder::kFramePointer) {
    const WalkResult walk = WalkByFramePointers(caller, buffer, max_depth);
    return {buffer, walk.depth, walk.end == WalkEnd::kDepth};
  }
  const Path* path;
  const WalkResult walk = WalkAndCache(caller, buffer, max_depth, &path);
  const bool truncated = walk.end != WalkEnd::kOutermost;
  return {buffer, walk.depth, truncated, StackHash(walk.hash, truncated), path};
}

}  // namespace hbmprof::internal
