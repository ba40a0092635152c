// Walks stacks with libunwind: for Unwinder::kLibunwind, and for tests that compare results. It is loaded for these two
// only, because version 1.6.2 can harm the program: it keeps a pipe on two descriptors, which the program may close and
// use for its own files, and it reads code at addresses that it has not checked.
//
// libunwind.so.8 is loaded at run time into its own scope, because it exports `backtrace` and `_Unwind_*`, which must
// not replace those of the program. If the program has linked libunwind.so.8 itself, that copy is used.
#ifndef HBMPROF_SRC_CAPTURE_LIBUNWIND_BACKEND_H_
#define HBMPROF_SRC_CAPTURE_LIBUNWIND_BACKEND_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/walk.h"

namespace hbmprof::internal {

// Returns whether libunwind can be used. The first call loads it, under the dynamic linker's lock: must not be called
// from a capture, or with a lock held.
bool LoadLibunwind();

// Returns why LoadLibunwind returned false, as a clause without a full stop.
const char* LibunwindProblem();

// Like WalkByRules, but does not set the hash. The result is exact even if a library was unloaded and another one was
// loaded at its addresses. (libunwind itself would use the frame layout of the old library; see the definition.)
// Returns depth 0 if libunwind is not loaded, must not be used (in a forked child), or does not find the caller's
// frame.
WalkResult CaptureWithLibunwind(const Caller& caller, uintptr_t* pcs, int max_depth);

// Like CaptureWithLibunwind, but walks one frame at a time, without the caches of libunwind. It is much slower; see the
// definition of CaptureWithLibunwind.
WalkResult StepWithLibunwind(const Caller& caller, uintptr_t* pcs, int max_depth);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_LIBUNWIND_BACKEND_H_
