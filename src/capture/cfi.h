// Reads call frame information (.eh_frame) and reduces it to the rule that finds the caller's frame. x86-64 and
// aarch64.
#ifndef HBMPROF_SRC_CAPTURE_CFI_H_
#define HBMPROF_SRC_CAPTURE_CFI_H_

#include <cstdint>

#include "src/capture/architecture.h"
#include "src/capture/objects.h"

namespace hbmprof::internal {

// The rule that leads from a frame to its caller's frame. CFA is the stack pointer in the caller after the return. The
// return address is the word at (CFA + return_offset), except in kReturnInRegister and kSignal.
struct FrameRule {
  enum Kind : uint8_t {
    kNone,           // no unwind information covers the address
    kInexpressible,  // the unwind information is damaged, or has none of the forms below
    kCfaFromSp,      // CFA = sp + cfa_offset
    kCfaFromFp,      // CFA = fp + cfa_offset
    kCfaInSlot,      // CFA = word at (fp + cfa_offset): a frame that realigned its stack
    kCfaInSpSlot,    // CFA = word at (sp + cfa_offset), plus cfa_addend
    // CFA = cfa_register + cfa_offset, for a register other than sp and fp. Its value is known only in a frame that a
    // signal interrupted. A frame that has called a function never has this kind of rule, because the called function
    // may change the register.
    kCfaFromRegister,
    // aarch64: CFA = cfa_register + cfa_offset, and the return address is in the link register, x30. As with
    // kCfaFromRegister, the frame is one that a signal interrupted, because a call would change x30.
    kReturnInRegister,
    kSignal,     // sp = word at (sp + cfa_offset), pc = the next word: the trampoline of a signal handler
    kOutermost,  // there is no caller
  };
  Kind kind = kNone;
  bool fp_saved = false;        // if false, the caller's fp is this frame's fp
  bool fp_found_by_fp = false;  // kCfaFromRegister only, see fp_offset
  uint8_t cfa_register = 0;     // kCfaFromRegister and kReturnInRegister: DWARF number, below kDwarfRegisters
  // The offsets are in bytes. The caller's fp is the word at (CFA + fp_offset), with these exceptions: for kCfaInSlot,
  // and if fp_found_by_fp is set, it is the word at (fp + fp_offset); for kSignal, the word at (sp + fp_offset).
  int64_t cfa_offset = 0;
  int64_t cfa_addend = 0;  // kCfaInSpSlot only
  int64_t fp_offset = 0;
  int64_t return_offset = -8;  // other values only with a link register (architecture.h)
};

// Returns the rule of the instruction that contains the byte at `address`. `eh_frame_hdr` is the PT_GNU_EH_FRAME
// segment of its object; it may be null. Reads only in `readable`, even if the data are damaged. The time is bounded by
// the size of the data.
FrameRule ReadFrameRule(const void* eh_frame_hdr, const ReadableRanges& readable, uintptr_t address);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_CFI_H_
