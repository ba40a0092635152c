// Walking a stack with libunwind: for Unwinder::kLibunwind, and for tests to compare with. Nothing else loads it,
// because version 1.6.2 endangers its host: it keeps a pipe on two descriptors, which a program may close and use for
// its own files, and it reads code at addresses that it has not checked.
//
// libunwind.so.8 is loaded at run time into a scope of its own: it exports `backtrace` and `_Unwind_*`, which must not
// take over those of the host. A host that has linked it itself shares its copy.
#ifndef HBMPROF_SRC_CAPTURE_LIBUNWIND_BACKEND_H_
#define HBMPROF_SRC_CAPTURE_LIBUNWIND_BACKEND_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/capture.h"

namespace hbmprof::internal {

// Whether it is there to be used. The first call loads it, which takes the dynamic linker's lock: never call it from a
// capture, or with a lock held.
bool LoadLibunwind();

// Why LoadLibunwind returned false; part of a sentence.
const char* LibunwindProblem();

// Like StackCapture::Capture. Exact also after libraries have been unloaded and others loaded in their place: libunwind
// itself would go on using what it has learnt about the old one, see the definition. depth 0 if libunwind is not
// loaded, must not be used (in a forked child), or could not find the caller's frame.
CapturedStack CaptureWithLibunwind(const Caller& caller, uintptr_t* pcs, int max_depth);

// The same one frame at a time and from scratch: some 100 times slower, no memory of earlier walks.
CapturedStack CaptureWithLibunwindAfresh(const Caller& caller, uintptr_t* pcs, int max_depth);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_LIBUNWIND_BACKEND_H_
