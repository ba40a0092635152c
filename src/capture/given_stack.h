// A Caller that holds a whole call stack. It is for programs whose stacks only their own unwinder can walk, such as Go
// programs.
#ifndef HBMPROF_SRC_CAPTURE_GIVEN_STACK_H_
#define HBMPROF_SRC_CAPTURE_GIVEN_STACK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

// The largest number of frames in such a Caller. It is one more than the largest depth of a captured stack, so that a
// deeper stack counts as truncated.
inline constexpr uintptr_t kMaxGivenFrames = kMaxStackDepth + 1;

// The stack pointer of such a Caller is this constant plus the number of frames. The result is not a canonical address.
// So no stack is there, and the Caller of a damaged stack does not have this value by accident.
inline constexpr uintptr_t kGivenStackMark = 0x68626d7072660000;

// Returns a Caller that holds the first min(count, kMaxGivenFrames) of the return addresses, which are ordered
// innermost first. The array must stay valid as long as the result is used. REQUIRES: count > 0.
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
