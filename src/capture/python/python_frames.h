// Python functions in native stacks: the frames of CPython's evaluation function are replaced by the Python functions
// that they run.
//
// A thread reads its own Python frames: without the interpreter's lock, without a call into the interpreter and without
// malloc. It can do so at any time, because its frames change only while it runs Python code, and because a frame keeps
// its code object alive. All values that are read are checked (types, alignment, sizes). If a check fails, the stack
// keeps its native frames.
//
// A Python function at a line is a named frame (named_frames.h).
#ifndef HBMPROF_SRC_CAPTURE_PYTHON_PYTHON_FRAMES_H_
#define HBMPROF_SRC_CAPTURE_PYTHON_PYTHON_FRAMES_H_

#include <cstdint>

#include "hbmprof/caller.h"
#include "src/capture/capture.h"
#include "src/capture/python/interpreter.h"

namespace hbmprof::internal {

// Returns whether the interpreter of this process has begun to destroy its modules and their variables, because it
// ends.
bool PythonIsEnding();

// Returns a hash of the calling thread's Python functions (at most the `max_frames` innermost), their current
// instructions, and the positions on the stack, relative to `sp`, of the calls of the evaluation function that run them
// (their activations). Returns 0 if there are none, or if they cannot be read. Two stacks with the same path (paths.h)
// and the same digest have the same merged frames. May be called in signal handlers.
uint64_t DigestPythonFrames(uintptr_t sp, int max_frames);

// The working memory of a merge. It is too large for a small stack.
struct PythonWorkspace;
// Returns a workspace that no other caller uses; null if the kernel has no memory for one.
PythonWorkspace* AcquirePythonWorkspace();
void ReleasePythonWorkspace(PythonWorkspace* workspace);
// Returns a buffer in the workspace, with space for kMaxStackDepth frames.
uintptr_t* NativeFramesOf(PythonWorkspace* workspace);

// Replaces the evaluation frames in `native`, the stack that begins at `caller`, by the calling thread's Python
// functions. A result of more than `max_depth` frames has no native frames outside of the innermost function, and is
// truncated if it is too deep even so. It is in the workspace, and has no path. Returns `native`
// if the Python frames cannot be read or matched, or if there is no memory for a name.
CapturedStack MergePythonFrames(const Caller& caller, const CapturedStack& native, int max_depth,
                                PythonWorkspace* workspace);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PYTHON_PYTHON_FRAMES_H_
