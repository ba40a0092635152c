// One row of an object's call frame information (.eh_frame), reduced to what it takes to find the caller's frame.
// x86-64 only.
//
// Not here: remembering rows (rules.h), walking stacks with them (walk.h).
#ifndef HBMPROF_SRC_CAPTURE_CFI_H_
#define HBMPROF_SRC_CAPTURE_CFI_H_

#include <cstddef>
#include <cstdint>

namespace hbmprof::internal {

// How to get from a frame to its caller's. CFA is the stack pointer in the caller, after the return. The return
// address is at CFA - 8, except in kSignal.
struct FrameRule {
  enum Kind : uint8_t {
    kNone,           // no unwind information covers the address
    kInexpressible,  // there is some, but it is damaged, or none of the forms below
    kCfaFromSp,      // CFA = sp + cfa_offset
    kCfaFromFp,      // CFA = fp + cfa_offset
    kCfaInSlot,      // CFA = word at (fp + cfa_offset): a frame whose stack was realigned
    kCfaInSpSlot,    // CFA = word at (sp + cfa_offset), plus cfa_addend
    // CFA = cfa_register + cfa_offset, for another register than the two. It is known only in a frame that a signal
    // interrupted: a function that calls others does not keep its CFA in a register that they may change.
    kCfaFromRegister,
    kSignal,     // sp = word at (sp + cfa_offset), pc = the word after it: a signal handler's trampoline
    kOutermost,  // there is no caller
  };
  Kind kind = kNone;
  bool fp_saved = false;        // else the caller's fp is this frame's
  bool fp_found_by_fp = false;  // kCfaFromRegister only, see fp_offset
  uint8_t cfa_register = 0;     // kCfaFromRegister only: DWARF number, below 16
  // In bytes. The caller's fp is the word at (CFA + fp_offset); in kCfaInSlot, and with fp_found_by_fp, at
  // (fp + fp_offset); in kSignal at (sp + fp_offset).
  int64_t cfa_offset = 0;
  int64_t cfa_addend = 0;  // kCfaInSpSlot only
  int64_t fp_offset = 0;
};

// The parts of an object's memory that may be read. Plain data.
class ReadableRanges {
 public:
  // A range too many is left out.
  void Add(uintptr_t start, uintptr_t limit) {
    if (count_ < kCapacity && start < limit) ranges_[count_++] = {start, limit};
  }
  // The end of the range that `address` lies in; 0 if it lies in none.
  uintptr_t LimitAt(uintptr_t address) const {
    for (size_t i = 0; i < count_; ++i) {
      if (address - ranges_[i].start < ranges_[i].limit - ranges_[i].start) return ranges_[i].limit;
    }
    return 0;
  }

 private:
  static constexpr size_t kCapacity = 8;
  struct Range {
    uintptr_t start;
    uintptr_t limit;
  };
  Range ranges_[kCapacity];
  size_t count_ = 0;
};

// The rule that holds at the instruction which covers `address`, in the object whose PT_GNU_EH_FRAME segment is
// `eh_frame_hdr` (may be null). Reads nothing outside of `readable`, and takes a time that is bounded by the size of
// what it reads, whatever stands there.
FrameRule ReadFrameRule(const void* eh_frame_hdr, const ReadableRanges& readable, uintptr_t address);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_CFI_H_
