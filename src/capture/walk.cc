#include "src/capture/walk.h"

#include <cstring>

namespace hbmprof::internal {
namespace {

constexpr uintptr_t kFirstCode = 4096;  // no code is mapped below

}  // namespace

RuleWalk::Step RuleWalk::StepOutOfSignal(PackedRule rule) {
  const uintptr_t sp_at = sp + static_cast<uintptr_t>(rule.cfa_offset());
  const uintptr_t fp_at = sp + static_cast<uintptr_t>(rule.fp_offset());
  uintptr_t interrupted_sp;
  if (!memory.Load(fp_at, &fp) || !memory.Load(sp_at + 8, &address) || !memory.Load(sp_at, &interrupted_sp)) {
    return Step::kUnknown;
  }
  // The handler may have run on an alternate stack.
  sp = interrupted_sp;
  memory.Enter(sp);
  // The order in which the kernel stores registers: r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp.
  interrupted_sp_ = sp_at - fp_at == 5 * sizeof(uintptr_t) ? sp : 0;
  interrupted_sp_at_ = sp_at;
  return Step::kFrame;
}

bool RuleWalk::LoadInterrupted(uint32_t dwarf_register, uintptr_t* value) const {
  // Index: the DWARF number, in the order rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15. Value: how many words
  // below the stored rsp the kernel stores the register.
  constexpr uint8_t kWordsBelow[16] = {2, 3, 1, 4, 6, 7, 5, 0, 15, 14, 13, 12, 11, 10, 9, 8};
  if (interrupted_sp_ == 0 || sp != interrupted_sp_) return false;
  // This word is between two words of the signal frame that were read before, so it can be read.
  *value = LoadStackWord(interrupted_sp_at_ - kWordsBelow[dwarf_register] * sizeof(uintptr_t));
  return true;
}

bool IsReturnFromCall(uintptr_t pc, uintptr_t callee) {
  constexpr size_t kBytes = 7;  // length of the longest call instruction
  unsigned char bytes[kBytes];
  const uintptr_t at = pc - kBytes;
  if (pc < kFirstCode + 2 * sizeof(uintptr_t)) return false;
  if (IsKnownCode(pc - 1)) {
    if (!IsReadableCode(at, kBytes)) return false;
    std::memcpy(bytes, reinterpret_cast<const void*>(at), kBytes);
  } else {
    // Code that the stack returns to stays mapped, so bytes that can be read now can also be read a moment later.
    uintptr_t words[2];
    const uintptr_t first = at & ~(sizeof(uintptr_t) - 1);
    StackMemory code(first);
    if (!code.Load(first, &words[0])) return false;
    words[1] = 0;
    if (at - first + kBytes > sizeof(uintptr_t) && !code.Load(first + sizeof(uintptr_t), &words[1])) return false;
    std::memcpy(bytes, reinterpret_cast<const char*>(words) + (at - first), kBytes);
  }
  const auto back = [&bytes](size_t n) { return bytes[kBytes - n]; };
  if (back(5) == 0xe8) {  // call to pc + distance
    int32_t distance;
    std::memcpy(&distance, bytes + kBytes - 4, sizeof(distance));
    const uintptr_t target = pc + static_cast<uintptr_t>(int64_t{distance});
    if (IsKnownCode(target) == IsKnownCode(callee)) return true;
  }
  // Call through a register or memory: opcode ff, then a ModRM byte whose reg field is 2 and whose other fields give
  // the length.
  for (size_t length = 2; length <= kBytes; ++length) {
    if (back(length) != 0xff) continue;
    const unsigned char modrm = back(length - 1);
    if ((modrm >> 3 & 7) != 2) continue;
    const unsigned mod = modrm >> 6;
    const unsigned rm = modrm & 7;
    size_t expected = 2;
    if (mod != 3) {
      if (rm == 4) ++expected;  // a SIB byte
      const bool has_base = mod != 0 || !(rm == 5 || (rm == 4 && (back(length - 2) & 7) == 5));
      expected += mod == 1 ? 1 : mod == 2 || !has_base ? 4 : 0;  // displacement
    }
    if (length == expected) return true;
  }
  return false;
}

RuleWalk::Step RuleWalk::Guess(PackedRule rule) {
  uintptr_t pc;
  uintptr_t outer_fp;
  if (rule.kind() != FrameRule::kNone || fp < sp || !memory.Load(fp, &outer_fp) || !memory.Load(fp + 8, &pc) ||
      !IsReturnFromCall(pc, address)) {
    return Step::kUnknown;
  }
  sp = fp + 16;
  fp = outer_fp;
  address = pc - 1;
  return Step::kFrame;
}

int RuleWalk::StepOutOfCommonFrames(int depth, uintptr_t* pcs, int max_depth) {
  if (!memory.is_own()) return depth;
  const uintptr_t high = memory.high();
  // Local copies, so that the compiler keeps them in registers.
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
  NoRecorder recorder;
  for (;;) {
    depth = walk->StepOutOfCommonFrames(depth, pcs, max_depth);
    const PackedRule rule = walk->Rule();
    RuleWalk::Step step = walk->StepOut(rule, &recorder);
    if (step == RuleWalk::Step::kUnknown && guess) step = walk->Guess(rule);
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
