#include "src/capture/walk.h"

namespace hbmprof::internal {

RuleWalk::Step RuleWalk::LeaveSignal(PackedRule rule) {
  const uintptr_t sp_at = sp + static_cast<uintptr_t>(rule.cfa_offset());
  uintptr_t interrupted_sp;
  if (!memory.Load(sp + static_cast<uintptr_t>(rule.fp_offset()), &fp) || !memory.Load(sp_at + 8, &address) ||
      !memory.Load(sp_at, &interrupted_sp)) {
    return Step::kUnknown;
  }
  // The handler may have had a stack of its own.
  sp = interrupted_sp;
  memory.Enter(sp);
  return Step::kFrame;
}

RuleWalk::Step RuleWalk::Guess() {
  uintptr_t pc;
  uintptr_t outer_fp;
  if (fp < sp || !memory.Load(fp, &outer_fp) || !memory.Load(fp + 8, &pc) || !IsKnownCode(pc - 1)) {
    return Step::kUnknown;
  }
  sp = fp + 16;
  fp = outer_fp;
  address = pc - 1;
  return Step::kFrame;
}

WalkResult ContinueByRules(RuleWalk* walk, int depth, uintptr_t* pcs, int max_depth, bool guess) {
  NoWitness witness;
  for (;;) {
    RuleWalk::Step step = walk->Leave(walk->Rule(), &witness);
    if (step == RuleWalk::Step::kUnknown && guess) step = walk->Guess();
    if (step == RuleWalk::Step::kUnknown) return {depth, WalkEnd::kUnknown};
    if (step == RuleWalk::Step::kOutermost) return {depth, WalkEnd::kOutermost};
    if (depth == max_depth) return {depth, WalkEnd::kDepth};
    pcs[depth++] = walk->address + 1;
  }
}

WalkResult WalkByRules(const Caller& caller, uintptr_t* pcs, int max_depth, bool guess) {
  RuleWalk walk(caller);
  pcs[0] = caller.pc;
  return ContinueByRules(&walk, 1, pcs, max_depth, guess);
}

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
