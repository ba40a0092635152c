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

int RuleWalk::LeaveCommonFrames(int depth, uintptr_t* pcs, int max_depth) {
  if (!memory.is_own()) return depth;
  const uintptr_t high = memory.high();
  // In registers.
  uintptr_t sp_now = sp;
  uintptr_t fp_now = fp;
  uintptr_t at = address;
  while (depth < max_depth) {
    const PackedRule rule = FindRule(at, &objects);
    uintptr_t cfa;
    if (rule.kind() == FrameRule::kCfaFromSp) {
      cfa = sp_now + static_cast<uintptr_t>(rule.cfa_offset());
    } else if (rule.kind() == FrameRule::kCfaFromFp) {
      cfa = fp_now + static_cast<uintptr_t>(rule.cfa_offset());
      if (cfa % sizeof(uintptr_t) != 0) break;
    } else {
      break;
    }
    if (cfa <= sp_now || cfa > high) break;
    const uintptr_t pc = LoadStackWord(cfa - 8);
    if (pc == 0) break;
    if (rule.fp_saved()) {
      const uintptr_t fp_at = cfa + static_cast<uintptr_t>(rule.fp_offset());
      if (fp_at < sp_now || fp_at >= cfa) break;
      fp_now = LoadStackWord(fp_at);
    }
    sp_now = cfa;
    at = pc - 1;
    pcs[depth++] = pc;
  }
  sp = sp_now;
  fp = fp_now;
  address = at;
  return depth;
}

WalkResult ContinueByRules(RuleWalk* walk, int depth, uintptr_t* pcs, int max_depth, bool guess) {
  NoWitness witness;
  for (;;) {
    depth = walk->LeaveCommonFrames(depth, pcs, max_depth);
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
