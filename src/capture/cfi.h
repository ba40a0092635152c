// Reads call frame information (.eh_frame) and reduces it to the rule that finds the caller's frame. x86-64 and
// aarch64.
#ifndef HBMPROF_SRC_CAPTURE_CFI_H_
#define HBMPROF_SRC_CAPTURE_CFI_H_

#include <cstdint>

#include "src/capture/architecture.h"
#include "src/capture/objects.h"

namespace hbmprof::internal {

// The rule that leads from a frame to its caller's frame. CFA is the stack pointer in the caller after the return. The
// return address is the word at (CFA + return_offset). The frame has called another function: a walk ends at the
// function that returns from a signal handler, so it never reaches a function that was interrupted.
struct FrameRule {
  enum Kind : uint8_t {
    kNone,           // no unwind information covers the address
    kInexpressible,  // the unwind information is damaged, or has none of the forms below
    kCfaFromSp,      // CFA = sp + cfa_offset
    kCfaFromFp,      // CFA = fp + cfa_offset
    kCfaInSlot,      // CFA = word at (fp + cfa_offset): a frame that realigned its stack
    kOutermost,      // there is no caller, or a signal handler returns here
  };
  Kind kind = kNone;
  bool fp_saved = false;  // if false, the caller's fp is this frame's fp
  // The offsets are in bytes. The caller's fp is the word at (CFA + fp_offset); for kCfaInSlot the word at
  // (fp + fp_offset).
  int64_t cfa_offset = 0;
  int64_t fp_offset = 0;
  int64_t return_offset = -8;  // other values only with a link register (architecture.h)
};

// Returns the rule of the instruction that contains the byte at `address`. `eh_frame_hdr` is the PT_GNU_EH_FRAME
// segment of its object; it may be null. Reads only in `readable`, even if the data are damaged. The time is bounded by
// the size of the data.
FrameRule ReadFrameRule(const void* eh_frame_hdr, const ReadableRanges& readable, uintptr_t address);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_CFI_H_
