#include "src/capture/rules.h"

#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstring>

#include "src/base/pages.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

WordBucket rule_table[1 << kRuleBucketBits];

namespace {

// Whether `value` is 8 times a signed number of `bits` bits.
bool Fits(int64_t value, int bits) {
  const int64_t limit = int64_t{8} << (bits - 1);
  return value % 8 == 0 && value >= -limit && value < limit;
}

// If the code at `pc` is the trampoline to which signal handlers return, and the kernel provides no correct unwind
// information for it, returns its rule. Otherwise returns a rule of kind kNone.
#if defined(__aarch64__)
FrameRule SignalTrampolineRule(uintptr_t pc) {
  FrameRule rule;
  // mov x8, #139 (rt_sigreturn); svc #0. The unwind information of older kernels leads to the caller of the interrupted
  // function, and newer kernels have none.
  constexpr uint64_t kTrampoline = 0xd4000001d2801168;
  // The bytes are read like words of a foreign stack: the kernel confirms that they can be read.
  const uintptr_t first = pc & ~(sizeof(uintptr_t) - 1);
  uintptr_t words[2] = {0, 0};
  StackMemory code(first);
  if (pc % 4 != 0 || !code.Load(first, &words[0])) return rule;
  if (pc != first && !code.Load(first + sizeof(uintptr_t), &words[1])) return rule;
  uint64_t instructions;
  std::memcpy(&instructions, reinterpret_cast<const char*>(words) + (pc - first), sizeof(instructions));
  if (instructions != kTrampoline) return rule;
  rule.kind = FrameRule::kSignal;
  rule.fp_saved = true;
  constexpr size_t kContext = sizeof(siginfo_t) + offsetof(ucontext_t, uc_mcontext);
  rule.cfa_offset = kContext + offsetof(mcontext_t, sp);
  rule.fp_offset = kContext + offsetof(mcontext_t, regs) + kFpRegister * sizeof(uint64_t);
  return rule;
}
#else
FrameRule SignalTrampolineRule(uintptr_t) { return {}; }
#endif

// Returns whether the code at `address`, which has no rule, is the start of the process: the dynamic linker's code
// without unwind information that begins at its entry point. It calls the constructors of the libraries that are loaded
// at program start, and nothing has called it.
bool IsProcessStart(uintptr_t address) {
  constexpr uintptr_t kMostBytes = 256;  // glibc's has 61 bytes on x86-64
  const uintptr_t entry = LinkerEntry();
  return entry != 0 && address - entry < kMostBytes;
}

}  // namespace

PackedRule PackedRule::Of(const FrameRule& rule, uint32_t object) {
  const uint64_t inexpressible = uint64_t{FrameRule::kInexpressible} | uint64_t{object} << 5;
  const bool has_register = rule.kind == FrameRule::kCfaFromRegister || rule.kind == FrameRule::kReturnInRegister;
  const bool is_short = kHasLinkRegister || rule.kind == FrameRule::kCfaInSpSlot || has_register;
  const bool has_return_offset = rule.kind == FrameRule::kCfaFromSp || rule.kind == FrameRule::kCfaFromFp;
  // If fp is not saved, fp_offset has no other use than as the base of return_offset.
  const int64_t fp_offset =
      kHasLinkRegister && has_return_offset && !rule.fp_saved ? rule.return_offset : rule.fp_offset;
  // The word of a rule that was read is never 0, because 0 is an empty slot of the table.
  if (rule.kind == FrameRule::kNone) return PackedRule(uint64_t{FrameRule::kNone} | kFpSaved | uint64_t{object} << 5);
  // A frame holds at least its return address.
  if (rule.kind == FrameRule::kCfaFromSp && rule.cfa_offset <= 0) return PackedRule(inexpressible);
  if (!Fits(fp_offset, 21) || !Fits(rule.cfa_offset, is_short ? 19 : 24)) return PackedRule(inexpressible);
  uint64_t cfa = static_cast<uint64_t>(rule.cfa_offset / 8);
  if (rule.kind == FrameRule::kCfaInSpSlot) {
    if (rule.cfa_addend % 8 != 0 || rule.cfa_addend < 0 || rule.cfa_addend >= 8 * 32) return PackedRule(inexpressible);
    cfa = cfa << 5 | static_cast<uint64_t>(rule.cfa_addend / 8);
  } else if (has_register) {
    cfa = cfa << 5 | uint64_t{rule.fp_found_by_fp} << 4 | rule.cfa_register;
  } else if (kHasLinkRegister) {
    const auto distance =
        static_cast<int64_t>(static_cast<uint64_t>(rule.return_offset) - static_cast<uint64_t>(fp_offset));
    if (has_return_offset && !Fits(distance, 5)) return PackedRule(inexpressible);
    cfa = cfa << 5 | (static_cast<uint64_t>(distance / 8) & 31);
  }
  const auto fp = static_cast<uint64_t>(fp_offset / 8) << 43 >> 24;
  return PackedRule(uint64_t{rule.kind} | (rule.fp_saved ? kFpSaved : 0) | uint64_t{object} << 5 | fp | cfa << 40);
}

void PrepareRules() {
  static std::atomic<bool> is_first{true};
  if (is_first.exchange(false)) CountHostBytes(static_cast<int64_t>(sizeof(rule_table) + BytesOfObjects()));
}

PackedRule LearnRule(uintptr_t address, ObjectCheck* objects) {
  // Before the object is found and identified, so that an equal count means that it is the object whose rule is read.
  const bool can_count = objects->is_guessed();
  const unsigned long long unloaded = can_count ? UnloadCount() : 0;
  LoadedObject object;
  if (!objects->Find(address, &object)) return PackedRule::Of(SignalTrampolineRule(address + 1), 0);
  FrameRule read = ReadFrameRule(object.eh_frame_hdr, object.readable, address);
  if (read.kind == FrameRule::kNone && IsProcessStart(address)) read.kind = FrameRule::kOutermost;
  if (read.kind == FrameRule::kNone || read.kind == FrameRule::kInexpressible) {
    const FrameRule trampoline = SignalTrampolineRule(address + 1);
    if (trampoline.kind == FrameRule::kSignal) read = trampoline;
  }
  const PackedRule rule = PackedRule::Of(read, object.id);
  // While an object is unloaded, its rules cannot be read.
  const bool is_certain =
      !object.readable.may_be_unmapped() || (rule.kind() != FrameRule::kNone && can_count && UnloadCount() == unloaded);
  if (object.id != kUnidentifiedObject && is_certain) RuleBucketOf(address).Store(MixAddress(address), rule.word());
  return rule;
}

}  // namespace hbmprof::internal
