#include "src/capture/walk.h"

namespace hbmprof::internal {
namespace {

constexpr uintptr_t kFirstCode = 4096;  // no code is mapped below

}  // namespace

bool RuleWalk::FindSpByFp(PackedRule rule) {
  const uintptr_t cfa = fp - static_cast<uintptr_t>(rule.fp_offset());
  const uintptr_t exact = cfa - static_cast<uintptr_t>(rule.cfa_offset());
  uintptr_t pc;
  const bool has_record = rule.fp_saved() && rule.return_offset() == rule.fp_offset() + 8;
  if (!has_record || exact < sp || exact >= cfa || !memory.Load(fp + 8, &pc) ||
      !IsReturnFromCall(StripReturnAddress(pc), address)) {
    return false;
  }
  sp = exact;
  sp_is_exact_ = true;
  return true;
}

bool IsReturnFromCall(uintptr_t pc, uintptr_t callee) {
  unsigned char bytes[kCallBytes];
  if (pc < kFirstCode + kCallBytes || !ReadCode(pc - kCallBytes, bytes, kCallBytes)) return false;
  const CallInstruction call = DecodeCall(bytes, pc);
  return call.is_indirect || (call.is_direct && IsKnownCode(call.target) == IsKnownCode(callee));
}

RuleWalk::Step RuleWalk::Guess(PackedRule rule) {
  uintptr_t pc;
  uintptr_t outer_fp;
  // After a guess, code of an object without a rule may be that of one that is not permanent.
  if (rule.kind() != FrameRule::kNone || (objects.is_guessed() && IsKnownCode(address)) || fp < sp ||
      !memory.Load(fp, &outer_fp) || !memory.Load(fp + 8, &pc) || !IsReturnFromCall(StripReturnAddress(pc), address)) {
    return Step::kUnknown;
  }
  pc = StripReturnAddress(pc);
  sp = fp + 16;
  sp_is_exact_ = !kHasLinkRegister;
  objects.SetGuessed();
  fp = outer_fp;
  address = pc - 1;
  return Step::kFrame;
}

[[gnu::noinline]] int RuleWalk::StepOutOfCommonFrames(int depth, uintptr_t* pcs, int max_depth, WordHash128* hash) {
  if (!memory.is_own() || !sp_is_exact_) return depth;
  // Local copies, so that the compiler keeps them in registers.
  const uintptr_t high = ThreadStackBounds().high;
  uintptr_t cfa = sp;
  uintptr_t outer_fp = fp;
  uintptr_t pc = address + 1;
  WordHash128 hash_now = *hash;
  for (; depth < max_depth; ++depth) {
    const PackedRule rule = FindRule(pc - 1, &objects);
    const uintptr_t next = cfa + static_cast<uintptr_t>(rule.cfa_offset());  // above cfa: PackedRule::Of
    const uintptr_t pc_at = next + static_cast<uintptr_t>(rule.return_offset());
    const uintptr_t fp_at = next + static_cast<uintptr_t>(rule.fp_offset());
    if (rule.kind() != FrameRule::kCfaFromSp || next > high || (kHasLinkRegister && pc_at - cfa >= next - cfa)) break;
    const uintptr_t next_pc = StripReturnAddress(LoadStackWord(pc_at));
    if (next_pc == 0 || (rule.fp_saved() && (fp_at < cfa || fp_at >= next))) break;
    if (rule.fp_saved()) outer_fp = LoadStackWord(fp_at);
    cfa = next;
    pc = next_pc;
    pcs[depth] = pc;
    hash_now.Add(pc);
  }
  sp = cfa;
  fp = outer_fp;
  address = pc - 1;
  *hash = hash_now;
  return depth;
}

WalkResult WalkByRules(const Caller& caller, uintptr_t* pcs, int max_depth) {
  RuleWalk walk(caller);
  NoRecorder recorder;
  WordHash128 hash;
  pcs[0] = caller.pc;
  hash.Add(caller.pc);
  for (int depth = 1;; ++depth) {
    depth = walk.StepOutOfCommonFrames(depth, pcs, max_depth, &hash);
    const PackedRule rule = walk.Rule();
    RuleWalk::Step step = walk.StepOut(rule, &recorder);
    if (step == RuleWalk::Step::kUnknown) step = walk.Guess(rule);
    const bool is_guessed = walk.objects.is_guessed();
    if (step == RuleWalk::Step::kUnknown) return {depth, WalkEnd::kUnknown, hash.value(), is_guessed};
    if (step == RuleWalk::Step::kOutermost) return {depth, WalkEnd::kOutermost, hash.value(), is_guessed};
    if (depth == max_depth) return {depth, WalkEnd::kDepth, hash.value(), is_guessed};
    pcs[depth] = walk.address + 1;
    hash.Add(walk.address + 1);
  }
}

WalkResult WalkByFramePointers(const Caller& caller, uintptr_t* pcs, int max_depth) {
  StackMemory memory(caller.sp);
  pcs[0] = caller.pc;
  int depth = 1;
  uintptr_t sp = caller.sp;
  uintptr_t fp = caller.fp;
  while (memory.is_own()) {
    uintptr_t outer_fp;
    uintptr_t pc;
    if (fp < sp || !memory.Load(fp, &outer_fp) || !memory.Load(fp + 8, &pc)) break;
    pc = StripReturnAddress(pc);
    if (pc < kFirstCode) break;
    if (depth == max_depth) return {depth, WalkEnd::kDepth};
    pcs[depth++] = pc;
    sp = fp + 16;
    fp = outer_fp;
  }
  return {depth, WalkEnd::kUnknown};
}

}  // namespace hbmprof::internal
