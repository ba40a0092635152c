// One row of an object's call frame information (.eh_frame), reduced to what it takes to find the caller's frame.
// x86-64 only.
//
// Not here: remembering rows (rules.h), walking stacks with them (walk.h).
#ifndef HBMPROF_SRC_CAPTURE_CFI_H_
#define HBMPROF_SRC_CAPTURE_CFI_H_

#include <cstdint>

namespace hbmprof::internal {

// How to get from a frame to its caller's. CFA is the stack pointer in the caller, after the return. The return
// address is at CFA - 8, except in kSignal.
struct FrameRule {
  enum Kind : uint8_t {
    kUnknown,    // not known, or not expressible here
    kCfaFromSp,  // CFA = sp + cfa_offset
    kCfaFromFp,  // CFA = fp + cfa_offset
    kCfaInSlot,  // CFA = word at (fp + cfa_offset): a frame whose stack was realigned
    kSignal,     // sp = word at (sp + cfa_offset), pc = the word after it: a signal handler's trampoline
    kOutermost,  // there is no caller
  };
  Kind kind = kUnknown;
  bool fp_saved = false;  // else the caller's fp is this frame's
  // In bytes. The caller's fp is the word at (CFA + fp_offset); in kCfaInSlot at (fp + fp_offset), in kSignal at
  // (sp + fp_offset).
  int64_t cfa_offset = 0;
  int64_t fp_offset = 0;
};

// The rule that holds at the instruction which covers `address`, in the object whose PT_GNU_EH_FRAME segment is
// `eh_frame_hdr` (may be null). Reads the object's memory, nothing else.
FrameRule ReadFrameRule(const void* eh_frame_hdr, uintptr_t address);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_CFI_H_
