// A Caller that holds a whole call stack, for programs whose stacks only their own unwinder can walk, such as Go's.
#ifndef HBMPROF_SRC_CAPTURE_GIVEN_STACK_H_
#define HBMPROF_SRC_CAPTURE_GIVEN_STACK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

// The number of frames is at most this. One more than is ever kept, so that a deeper stack counts as truncated.
inline constexpr uintptr_t kMaxGivenFrames = kMaxStackDepth + 1;

// The stack pointer of such a Caller is this plus the number of frames. It is not a canonical address, so no stack is
// there, and no Caller of a damaged stack has it by accident.
inline constexpr uintptr_t kGivenStackMark = 0x68626d7072660000;

// `return_addresses`: innermost first; valid as long as the result is used. REQUIRES: count > 0.
inline Caller CallerOfStack(const uintptr_t* return_addresses, size_t count) {
  Caller caller;
  caller.pc = return_addresses[0];
  caller.sp = kGivenStackMark + std::min<uintptr_t>(count, kMaxGivenFrames);
  caller.fp = reinterpret_cast<uintptr_t>(return_addresses);
  return caller;
}

// The number of frames that `caller` holds; 0 for a point on a real stack.
inline int GivenFrames(const Caller& caller) {
  const uintptr_t frames = caller.sp - kGivenStackMark;
  return frames <= kMaxGivenFrames ? static_cast<int>(frames) : 0;
}

inline const uintptr_t* GivenStack(const Caller& caller) { return reinterpret_cast<const uintptr_t*>(caller.fp); }

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_GIVEN_STACK_H_
