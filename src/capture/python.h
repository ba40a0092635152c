// Python functions in native stacks: the frames of CPython's evaluation function are replaced by the Python functions
// that they run.
//
// A thread reads its own Python frames: without the interpreter's lock, without a call into the interpreter and without
// malloc. It can do so at any time, because its frames change only while it runs Python code, and because a frame keeps
// its code object alive. All values that are read are checked (types, alignment, sizes). If a check fails, the stack
// keeps its native frames.
//
// A Python function at a line is one word of a stack (NamedFrameWord), so that stacks stay arrays of words. Equal
// function names, files and lines have equal words.
//
// Not here: finding the interpreter, and the layout of its structs (python_layout.h). docs/python.md is for users.
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

// The interpreter of this process. Null until an interpreter is found whose frames can be read, and null for ever after
// RejectPython.
extern std::atomic<const PythonInterpreter*> readable_python;

// Returns whether there is such an interpreter. In a process without one, this is all that an event does for Python.
inline bool HasPython() { return readable_python.load(std::memory_order_relaxed) != nullptr; }

// A frame with a name and without an address. Immutable, and never destroyed.
struct NamedFrame {
  uint64_t hash;
  uint32_t number;
  int32_t line;  // of the call; 0 if the interpreter has none
  int32_t first_line;
  uint32_t function_bytes;
  uint32_t file_bytes;

  // UTF-8.
  std::string_view function() const { return {reinterpret_cast<const char*>(this + 1), function_bytes}; }
  std::string_view file() const { return {reinterpret_cast<const char*>(this + 1) + function_bytes, file_bytes}; }
};

// The word of a named frame in a stack. No address of a program has these upper bits.
inline constexpr uint64_t kNamedFrameWord = uint64_t{1} << 63;
inline bool IsNamedFrameWord(uint64_t word) { return word >> 32 == kNamedFrameWord >> 32; }
// Returns null if no frame has this word.
const NamedFrame* NamedFrameOf(uint64_t word);
// Returns the number of named frames that the process has so far. Their words are kNamedFrameWord + 0 to
// kNamedFrameWord + NamedFrameCount() - 1.
uint32_t NamedFrameCount();

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
// functions. The result is truncated at `max_depth` frames. It is in the workspace, and has no path. Returns `native`
// if the Python frames cannot be read or matched, or if there is no memory for a name.
CapturedStack MergePythonFrames(const Caller& caller, const CapturedStack& native, int max_depth,
                                PythonWorkspace* workspace);

// To be called around a fork, so that no other thread adds a named frame meanwhile.
void LockNamedFrames();
void UnlockNamedFrames();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PYTHON_H_
