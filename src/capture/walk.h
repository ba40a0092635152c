// Walks over a stack, from a Caller outwards.
//
// Not here: rules by address (rules.h), what is readable (stack_memory.h), remembered walks (memo.h).
#ifndef HBMPROF_SRC_CAPTURE_WALK_H_
#define HBMPROF_SRC_CAPTURE_WALK_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/capture.h"
#include "src/capture/rules.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

// How a walk ended.
enum class WalkEnd : uint8_t {
  kOutermost,  // at the stack's outermost frame
  kDepth,      // at max_depth, and there are more frames
  kUnknown,    // at a frame that has no rule, or does not fit the stack
};

struct WalkResult {
  int depth;
  WalkEnd end;
};

// Follows a walk by rules; this one does not care. Read: a stack word decided the course. Crossed: so did a rule of an
// object that can be unloaded. Untold: so did something else.
struct NoWitness {
  void Read(uintptr_t /*address*/, uintptr_t /*word*/) {}
  void Crossed(uint32_t /*object*/, uintptr_t /*address*/) {}
  void Untold() {}
};

// Walks by frame rules; exact as far as it gets. With `guess`, a frame without a rule is taken for one with a frame
// pointer if that leads to known code: for systems without libunwind. `pcs` has room for `max_depth` >= 1.
template <typename Witness>
WalkResult WalkByRules(const Caller& caller, uintptr_t* pcs, int max_depth, bool guess, Witness* witness) {
  StackMemory memory(caller.sp);
  if (!memory.is_own()) witness->Untold();
  ObjectCheck objects;
  uintptr_t pc = caller.pc;
  uintptr_t sp = caller.sp;
  uintptr_t fp = caller.fp;
  uintptr_t address = pc - 1;  // inside the call instruction
  pcs[0] = pc;
  int depth = 1;
  for (;;) {
    const PackedRule rule = FindRule(address, &objects);
    if (rule.object() != 0) witness->Crossed(rule.object(), address);
    uintptr_t cfa = 0;
    uintptr_t fp_at = 0;
    bool fits = true;
    bool is_interrupted = false;
    switch (rule.kind()) {
      case FrameRule::kCfaFromSp:
        cfa = sp + static_cast<uintptr_t>(rule.cfa_offset());
        fp_at = cfa + static_cast<uintptr_t>(rule.fp_offset());
        break;
      case FrameRule::kCfaFromFp:
        cfa = fp + static_cast<uintptr_t>(rule.cfa_offset());
        fp_at = cfa + static_cast<uintptr_t>(rule.fp_offset());
        break;
      case FrameRule::kCfaInSlot: {
        const uintptr_t cfa_at = fp + static_cast<uintptr_t>(rule.cfa_offset());
        fits = memory.Load(cfa_at, &cfa);
        witness->Read(cfa_at, cfa);
        fp_at = fp + static_cast<uintptr_t>(rule.fp_offset());
        break;
      }
      case FrameRule::kSignal: {
        const uintptr_t sp_at = sp + static_cast<uintptr_t>(rule.cfa_offset());
        fits = memory.Load(sp_at, &cfa) && memory.Load(sp_at + 8, &pc) &&
               memory.Load(sp + static_cast<uintptr_t>(rule.fp_offset()), &fp);
        witness->Untold();
        is_interrupted = true;
        break;
      }
      case FrameRule::kOutermost:
        return {depth, WalkEnd::kOutermost};
      case FrameRule::kUnknown:
        if (!guess) return {depth, WalkEnd::kUnknown};
        cfa = fp + 16;
        fp_at = fp;
        witness->Untold();
        break;
    }
    if (!fits) return {depth, WalkEnd::kUnknown};
    if (!is_interrupted) {
      // Every call pushed something, so a stack only ever gets shallower.
      if (cfa <= sp || !memory.Load(cfa - 8, &pc)) return {depth, WalkEnd::kUnknown};
      witness->Read(cfa - 8, pc);
      if (rule.fp_saved() || rule.kind() == FrameRule::kUnknown) {
        if (!memory.Load(fp_at, &fp)) return {depth, WalkEnd::kUnknown};
        witness->Read(fp_at, fp);
      }
    }
    if (pc == 0) return {depth, WalkEnd::kOutermost};
    address = is_interrupted ? pc : pc - 1;
    if (rule.kind() == FrameRule::kUnknown && !IsKnownCode(address)) return {depth, WalkEnd::kUnknown};
    if (depth == max_depth) return {depth, WalkEnd::kDepth};
    pcs[depth++] = address + 1;
    sp = cfa;
    if (is_interrupted) memory.Enter(sp);
  }
}

// Follows the chain of frame pointers, on the thread's own stack only: what lies on others may chain to anywhere.
// Blind to code built without frame pointers.
WalkResult WalkByFramePointers(const Caller& caller, uintptr_t* pcs, int max_depth);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_WALK_H_
