// Walks over a stack, from a Caller outwards.
//
// Not here: rules by address (rules.h), what is readable (stack_memory.h), remembered walks (memo.h).
#ifndef HBMPROF_SRC_CAPTURE_WALK_H_
#define HBMPROF_SRC_CAPTURE_WALK_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/rules.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

inline constexpr int kMaxStackDepth = 512;

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

// One step outwards at a time. Public state: the frame that the walk is in.
class RuleWalk {
 public:
  explicit RuleWalk(const Caller& caller) : memory(caller.sp), sp(caller.sp), fp(caller.fp), address(caller.pc - 1) {}

  enum class Step : uint8_t { kFrame, kOutermost, kUnknown };

  PackedRule Rule() { return FindRule(address, &objects); }

  // Leaves the frame by its rule. kFrame: the walk is in the caller's frame. `witness` is told what decided that:
  //   UsesFp()                 the frame pointer
  //   Reads(address, word)     a word of the stack
  //   Restores(address, word)  a word of the stack became the frame pointer
  //   Returns(address, word)   a word of the stack became the pc
  //   Untold()                 something else
  template <typename Witness>
  Step Leave(PackedRule rule, Witness* witness) {
    uintptr_t cfa = 0;
    uintptr_t pc = 0;
    uintptr_t fp_at = 0;
    switch (rule.kind()) {
      case FrameRule::kCfaFromSp:
        cfa = sp + static_cast<uintptr_t>(rule.cfa_offset());
        fp_at = cfa + static_cast<uintptr_t>(rule.fp_offset());
        break;
      case FrameRule::kCfaFromFp:
        witness->UsesFp();
        cfa = fp + static_cast<uintptr_t>(rule.cfa_offset());
        fp_at = cfa + static_cast<uintptr_t>(rule.fp_offset());
        break;
      case FrameRule::kCfaInSlot: {
        witness->UsesFp();
        const uintptr_t cfa_at = fp + static_cast<uintptr_t>(rule.cfa_offset());
        if (!memory.Load(cfa_at, &cfa)) return Step::kUnknown;
        witness->Reads(cfa_at, cfa);
        fp_at = fp + static_cast<uintptr_t>(rule.fp_offset());
        break;
      }
      case FrameRule::kCfaInSpSlot: {
        const uintptr_t cfa_at = sp + static_cast<uintptr_t>(rule.short_cfa_offset());
        uintptr_t word;
        if (!memory.Load(cfa_at, &word)) return Step::kUnknown;
        witness->Reads(cfa_at, word);
        cfa = word + static_cast<uintptr_t>(rule.cfa_addend());
        fp_at = cfa + static_cast<uintptr_t>(rule.fp_offset());
        break;
      }
      case FrameRule::kCfaFromRegister:
        witness->Untold();
        if (!LoadInterrupted(rule.cfa_register(), &cfa)) return Step::kUnknown;
        cfa += static_cast<uintptr_t>(rule.short_cfa_offset());
        fp_at = (rule.fp_found_by_fp() ? fp : cfa) + static_cast<uintptr_t>(rule.fp_offset());
        break;
      case FrameRule::kSignal:
        witness->Untold();
        return LeaveSignal(rule);
      case FrameRule::kOutermost:
        return Step::kOutermost;
      case FrameRule::kNone:
      case FrameRule::kInexpressible:
        return Step::kUnknown;
    }
    // Every call pushed something, so a stack only ever gets shallower.
    if (cfa <= sp || !memory.Load(cfa - 8, &pc)) return Step::kUnknown;
    witness->Returns(cfa - 8, pc);
    if (rule.fp_saved()) {
      if (!memory.Load(fp_at, &fp)) return Step::kUnknown;
      witness->Restores(fp_at, fp);
    }
    sp = cfa;
    address = pc - 1;
    return pc == 0 ? Step::kOutermost : Step::kFrame;
  }

  // Leaves frames of the common kinds, into `pcs` from `depth` on, while the walk is on the thread's own stack. Stops
  // in a frame of another kind, or whose step does not fit the stack, for Leave to judge; or at `max_depth`. Returns
  // the new depth.
  int LeaveCommonFrames(int depth, uintptr_t* pcs, int max_depth);

  // For a frame without unwind information (code made at run time, assembler): leaves it as if it had a frame pointer.
  // kFrame only if that leads to a call, of what the frame can be: see IsReturnFromCall. A guess still: a function that
  // leaves the frame pointer alone looks as if its caller were not there.
  Step Guess(PackedRule rule);

  StackMemory memory;
  ObjectCheck objects;
  uintptr_t sp;
  uintptr_t fp;
  uintptr_t address;  // inside the call instruction, or the interrupted instruction; pc - 1 as stored in stacks

 private:
  Step LeaveSignal(PackedRule rule);
  // The register of that DWARF number in the frame that a signal interrupted; false in any other frame.
  bool LoadInterrupted(uint32_t dwarf_register, uintptr_t* value) const;

  // The sp of the frame that a signal interrupted last, if its registers are known; and where the kernel keeps that sp.
  // Every step outwards raises sp, so the walk is in that frame as long as sp is equal.
  uintptr_t interrupted_sp_ = 0;
  uintptr_t interrupted_sp_at_;  // set with it
};

// Whether `pc` is behind a call instruction that can have called the code at `callee`. Reads the bytes before `pc`
// where a loaded object has them, or the kernel says that they are there.
bool IsReturnFromCall(uintptr_t pc, uintptr_t callee);

struct NoWitness {
  void UsesFp() {}
  void Reads(uintptr_t /*address*/, uintptr_t /*word*/) {}
  void Restores(uintptr_t /*address*/, uintptr_t /*word*/) {}
  void Returns(uintptr_t /*address*/, uintptr_t /*word*/) {}
  void Untold() {}
};

// Walks by frame rules; exact as far as it gets. With `guess`, it goes on through frames without unwind information
// where RuleWalk::Guess can. `pcs` has room for `max_depth` >= 1.
WalkResult WalkByRules(const Caller& caller, uintptr_t* pcs, int max_depth, bool guess);

// Goes on from the frame that `walk` is in, the last of the `depth` in `pcs`.
WalkResult ContinueByRules(RuleWalk* walk, int depth, uintptr_t* pcs, int max_depth, bool guess);

// Follows the chain of frame pointers, on the thread's own stack only: what lies on others may chain to anywhere.
// Blind to code built without frame pointers.
WalkResult WalkByFramePointers(const Caller& caller, uintptr_t* pcs, int max_depth);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_WALK_H_
