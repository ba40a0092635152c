#include "src/capture/walk.h"

namespace hbmprof::internal {

WalkResult WalkByFramePointers(const Caller& caller, uintptr_t* pcs, int max_depth) {
  constexpr uintptr_t kFirstCode = 4096;  // no code is mapped below
  StackMemory memory(caller.sp);
  pcs[0] = caller.pc;
  int depth = 1;
  if (!memory.is_own()) return {depth, WalkEnd::kUnknown};
  uintptr_t sp = caller.sp;
  uintptr_t fp = caller.fp;
  for (;;) {
    uintptr_t outer_fp;
    uintptr_t pc;
    if (fp < sp || !memory.Load(fp, &outer_fp) || !memory.Load(fp + 8, &pc) || pc < kFirstCode) {
      return {depth, WalkEnd::kUnknown};
    }
    if (depth == max_depth) return {depth, WalkEnd::kDepth};
    pcs[depth++] = pc;
    sp = fp + 16;
    fp = outer_fp;
  }
}

}  // namespace hbmprof::internal
