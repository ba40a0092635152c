// Python functions in native stacks: where CPython runs in a thread, the frames of its evaluation function are replaced
// by the Python functions that they run.
//
// A thread reads its own Python frames: without the interpreter's lock, without a call into the interpreter and without
// malloc. It can do so at any time, because its frames change only while it runs Python code, and because a frame keeps
// its code object alive. What is read is checked (types, alignment, sizes). Where a check fails, the stack keeps its
// native frames.
//
// A Python function at a line is one word of a stack (NamedFrameWord), so that stacks stay arrays of words. Equal
// function names, files and lines have equal words.
//
// Not here: which interpreter there is, and the layout of its structs (python_layout.h). docs/python.md is for users.
#ifndef HBMPROF_SRC_CAPTURE_PYTHON_H_
#define HBMPROF_SRC_CAPTURE_PYTHON_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hbmprof/caller.h"
#include "src/capture/capture.h"
#include "src/capture/python_layout.h"

namespace hbmprof::internal {

// The interpreter of this process, once one is found whose frames can be read; null before, and for good after
// RejectPython.
extern std::atomic<const PythonInterpreter*> readable_python;

// Whether there is an interpreter: all that an event does in a process without one.
inline bool HasPython() { return readable_python.load(std::memory_order_relaxed) != nullptr; }

// A frame with a name and no address. Immutable, and kept for ever.
struct NamedFrame {
  uint64_t hash;
  uint32_t number;
  int32_t line;  // of the call; 0: the interpreter has none
  int32_t first_line;
  uint32_t function_bytes;
  uint32_t file_bytes;

  // UTF-8.
  std::string_view function() const { return {reinterpret_cast<const char*>(this + 1), function_bytes}; }
  std::string_view file() const { return {reinterpret_cast<const char*>(this + 1) + function_bytes, file_bytes}; }
};

// The word of a stack that stands for a named frame: no address of a program has these upper bits.
inline constexpr uint64_t kNamedFrameWord = uint64_t{1} << 63;
inline bool IsNamedFrameWord(uint64_t word) { return word >> 32 == kNamedFrameWord >> 32; }
// Null if no frame has this word.
const NamedFrame* NamedFrameOf(uint64_t word);

// 64 bits that stand for the calling thread's Python functions, the instructions that they are at, and the positions of
// their activations on the stack relative to `sp`; at most the `max_frames` innermost. 0: there are none, or they
// cannot be read. Two stacks with the same native frames and the same digest have the same merged frames. Any thread,
// signal handlers too.
uint64_t DigestPythonFrames(uintptr_t sp, int max_frames);

// Memory that a merge works in: too much for a small stack.
struct PythonWorkspace;
// A workspace that no other caller has; null if the kernel has no memory for one.
PythonWorkspace* AcquirePythonWorkspace();
void ReleasePythonWorkspace(PythonWorkspace* workspace);
// Has space for kMaxStackDepth frames.
uintptr_t* NativeFramesOf(PythonWorkspace* workspace);

// Replaces the evaluation frames in `native`, the stack that begins at `caller`, by the calling thread's Python
// functions. The result is cut at `max_depth` frames. It lies in the workspace, and has no path. Returns `native` where
// the Python frames cannot be read or placed, or no memory is left for a name.
CapturedStack MergePythonFrames(const Caller& caller, const CapturedStack& native, int max_depth,
                                PythonWorkspace* workspace);

// Around a fork, so that no other thread is adding a named frame then.
void LockNamedFrames();
void UnlockNamedFrames();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PYTHON_H_
