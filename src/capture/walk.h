// Walks over a stack, from a Caller outwards.
#ifndef HBMPROF_SRC_CAPTURE_WALK_H_
#define HBMPROF_SRC_CAPTURE_WALK_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/base/hash.h"
#include "src/capture/rules.h"
#include "src/capture/stack_memory.h"

namespace hbmprof::internal {

inline constexpr int kMaxStackDepth = 512;

// Where a walk ended.
enum class WalkEnd : uint8_t {
  kOutermost,  // at the outermost frame of the stack
  kDepth,      // at max_depth; there are more frames
  kUnknown,    // at a frame that has no rule, or whose rule does not fit the stack
};

struct WalkResult {
  int depth;
  WalkEnd end;
  // Set by WalkByRules.
  Hash128 hash;             // HashWords128 of the frames
  bool is_guessed = false;  // a frame was found by a guess
};

// A walk, one step outwards at a time. The public members describe the current frame.
class RuleWalk {
 public:
  explicit RuleWalk(const Caller& caller) : memory(caller.sp), sp(caller.sp), fp(caller.fp), address(caller.pc - 1) {}

  enum class Step : uint8_t { kFrame, kOutermost, kUnknown };

  PackedRule Rule() { return FindRule(address, &objects); }

  // Steps out of the current frame by its rule. Returns kFrame if the caller's frame is now the current one. Calls
  // these methods of `recorder` for everything that the result depends on:
  //   UsesFp()                 the frame pointer
  //   Reads(address, word)     a word of the stack
  //   Restores(address, word)  a word of the stack, which became the frame pointer
  //   Returns(address, pc)     a word of the stack, which became the pc after its signature was removed
  template <typename Recorder>
  Step StepOut(PackedRule rule, Recorder* recorder) {
    uintptr_t cfa = 0;
    uintptr_t pc = 0;
    uintptr_t fp_at = 0;
    switch (rule.kind()) {
      case FrameRule::kCfaFromSp:
        if (!sp_is_exact_ && !FindSpByFp(rule)) return Step::kUnknown;
        cfa = sp + static_cast<uintptr_t>(rule.cfa_offset());
        fp_at = cfa + static_cast<uintptr_t>(rule.fp_offset());
        break;
      case FrameRule::kCfaFromFp:
        recorder->UsesFp();
        cfa = fp + static_cast<uintptr_t>(rule.cfa_offset());
        fp_at = cfa + static_cast<uintptr_t>(rule.fp_offset());
        break;
      case FrameRule::kCfaInSlot: {
        recorder->UsesFp();
        const uintptr_t cfa_at = fp + static_cast<uintptr_t>(rule.cfa_offset());
        if (!memory.Load(cfa_at, &cfa)) return Step::kUnknown;
        recorder->Reads(cfa_at, cfa);
        fp_at = fp + static_cast<uintptr_t>(rule.fp_offset());
        break;
      }
      case FrameRule::kOutermost:
        return Step::kOutermost;
      case FrameRule::kNone:
      case FrameRule::kInexpressible:
        return Step::kUnknown;
    }
    // The return address is in the frame, so each step must raise sp.
    const uintptr_t pc_at = cfa + static_cast<uintptr_t>(rule.return_offset());
    if (cfa <= sp || pc_at - sp >= cfa - sp || !memory.Load(pc_at, &pc)) return Step::kUnknown;
    pc = StripReturnAddress(pc);
    recorder->Returns(pc_at, pc);
    if (rule.fp_saved()) {
      if (!memory.Load(fp_at, &fp)) return Step::kUnknown;
      recorder->Restores(fp_at, fp);
    }
    sp = cfa;
    sp_is_exact_ = true;
    address = pc - 1;
    return pc == 0 ? Step::kOutermost : Step::kFrame;
  }

  // Steps out of frames with rules of kind kCfaFromSp, up to `max_depth`, as StepOut would. Stores their pcs from
  // pcs[depth] on, and adds them to `hash`. Stops at a frame for which StepOut does not return kFrame. Returns the new
  // depth.
  int StepOutOfCommonFrames(int depth, uintptr_t* pcs, int max_depth, WordHash128* hash);

  // Steps out of a frame without unwind information (code generated at run time, assembler) as if it had a frame
  // pointer. Returns kFrame only if the return address that was found directly follows a call that can have called the
  // code of this frame: see IsReturnFromCall. The result can be wrong: if the function does not set up a frame pointer,
  // its caller is left out. From then on, the walk ends at an object that is not permanent (objects.h), and at code of
  // any object that has no unwind information.
  Step Guess(PackedRule rule);

  StackMemory memory;
  ObjectCheck objects;
  uintptr_t sp;
  uintptr_t fp;
  uintptr_t address;  // inside the call or the interrupted instruction; a stack stores this plus 1

 private:
  // Computes the frame's exact sp from fp, if fp is the address of the frame record of this function. Returns false if
  // it is not, or if the return address in the record does not follow a call. REQUIRES: sp is only a lower limit.
  bool FindSpByFp(PackedRule rule);

  // False if sp is only a lower limit of the frame's sp: after a guess, on architectures with a link register.
  bool sp_is_exact_ = true;
};

// Returns whether `pc` directly follows a call instruction that can have called the code at `callee`. Reads the bytes
// before `pc` through the kernel. Returns false if it cannot, or if they are in an object that is not permanent
// (objects.h).
bool IsReturnFromCall(uintptr_t pc, uintptr_t callee);

// A recorder that ignores everything.
struct NoRecorder {
  void UsesFp() {}
  void Reads(uintptr_t /*address*/, uintptr_t /*word*/) {}
  void Restores(uintptr_t /*address*/, uintptr_t /*word*/) {}
  void Returns(uintptr_t /*address*/, uintptr_t /*word*/) {}
};

// Walks by frame rules, and out of frames without unwind information by RuleWalk::Guess. If there was no guess, all
// frames in the result are exact. `pcs` must have space for `max_depth` frames, at least 1.
WalkResult WalkByRules(const Caller& caller, uintptr_t* pcs, int max_depth);

// Follows the chain of frame pointers. Does so on the thread's own stack only, because on other stacks the chain may
// lead anywhere. Frames of code built without frame pointers are missing in the result.
WalkResult WalkByFramePointers(const Caller& caller, uintptr_t* pcs, int max_depth);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_WALK_H_
