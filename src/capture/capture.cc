#include "src/capture/capture.h"

#include <execinfo.h>

#include <algorithm>

#include "src/capture/given_stack.h"
#include "src/capture/libunwind_backend.h"
#include "src/capture/paths/path_cache.h"
#include "src/capture/rules.h"
#include "src/capture/stack_memory.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {
namespace {

// An upper limit of the stack that libunwind needs, in bytes.
constexpr size_t kLibunwindStackBytes = size_t{32} << 10;

// For architectures on which a Caller has only its pc. The first call of backtrace loads a library, so the constructor
// of StackCapture makes that call.
CapturedStack CaptureWithBacktrace(const Caller& caller, uintptr_t* pcs, int max_depth) {
  constexpr int kOwnFrames = 16;  // between here and the caller
  uintptr_t found[kMaxStackDepth + kOwnFrames + 1];
  const int count = backtrace(reinterpret_cast<void**>(found), max_depth + kOwnFrames + 1);
  uintptr_t* end = found + count;
  uintptr_t* first = std::find(found, end, caller.pc);
  if (first == end) {
    pcs[0] = caller.pc;
    return {pcs, 1, false};
  }
  const int depth = static_cast<int>(std::min<ptrdiff_t>(end - first, max_depth));
  std::copy(first, first + depth, pcs);
  return {pcs, depth, end - first > depth};
}

// If the rules do not find the caller of a frame, walks again with guesses.
CapturedStack CaptureByRules(const Caller& caller, uintptr_t* buffer, int max_depth) {
  const Path* path;
  WalkResult walk = WalkAndCache(caller, buffer, max_depth, &path);
  if (walk.end == WalkEnd::kUnknown) walk = WalkByRules(caller, buffer, max_depth, /*guess=*/true);
  return {buffer, walk.depth, walk.end != WalkEnd::kOutermost, walk.hash, path};
}

}  // namespace

StackCapture::StackCapture(Unwinder unwinder) : method_(Method::kNone) {
  if (unwinder == Unwinder::kNone) return;
#if defined(HBMPROF_CALLER_HAS_REGISTERS)
  method_ = PrepareRules() ? Method::kRules : Method::kFramePointer;
  if (method_ == Method::kRules) PreparePathCaches();
  if (unwinder == Unwinder::kFramePointer) method_ = Method::kFramePointer;
  if (unwinder == Unwinder::kLibunwind && LoadLibunwind()) method_ = Method::kLibunwind;
#else
  void* pc;
  backtrace(&pc, 1);
  method_ = Method::kBacktrace;
#endif
}

CapturedStack StackCapture::CaptureAfresh(const Caller& caller, uintptr_t* buffer, int max_depth) const {
  max_depth = std::min(max_depth, kMaxStackDepth);
  if (max_depth <= 0 || caller.pc == 0 || method_ == Method::kNone) return {buffer, 0, false};
  if (const int given = GivenFrames(caller); given > 0) {
    return {GivenStack(caller), std::min(given, max_depth), given > max_depth};
  }
  switch (method_) {
    case Method::kRules:
      return CaptureByRules(caller, buffer, max_depth);
    case Method::kFramePointer: {
      const WalkResult walk = WalkByFramePointers(caller, buffer, max_depth);
      return {buffer, walk.depth, walk.end == WalkEnd::kDepth};
    }
    case Method::kLibunwind: {
      if (AvailableStackBytes() >= kLibunwindStackBytes) {
        const WalkResult walk = CaptureWithLibunwind(caller, buffer, max_depth);
        if (walk.depth > 0) return {buffer, walk.depth, walk.end == WalkEnd::kDepth};
      }
      return CaptureByRules(caller, buffer, max_depth);
    }
    case Method::kBacktrace:
      return CaptureWithBacktrace(caller, buffer, max_depth);
    case Method::kNone:
      break;
  }
  return {buffer, 0, false};
}

const char* StackCapture::name() const {
  constexpr const char* kNames[] = {"cached_rules", "frame_pointer", "libunwind", "backtrace", "none"};
  return kNames[static_cast<int>(method_)];
}

}  // namespace hbmprof::internal
