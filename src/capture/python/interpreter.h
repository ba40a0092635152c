// The CPython interpreter of this process: where it keeps its state, and at which offsets its structs have the fields
// that describe the running Python functions.
#ifndef HBMPROF_SRC_CAPTURE_PYTHON_INTERPRETER_H_
#define HBMPROF_SRC_CAPTURE_PYTHON_INTERPRETER_H_

#include <atomic>
#include <cstdint>

#include "src/base/word_bucket.h"

namespace hbmprof::internal {

// How the interpreter links a thread's frames, and how an activation (a call of the evaluation function) is found on
// the native stack.
enum class PythonFrameChain : uint8_t {
  kOnePerActivation,            // 3.8, 3.9: each frame is one activation, found by the function's address range
  kOnePerActivationWithCframe,  // 3.10: the same, but found by its _PyCFrame, which lies in its native frame
  kEntryFrames,                 // 3.11: the last frame of an activation has is_entry set; found by its _PyCFrame
  kShims,                       // 3.12 and later: a shim follows an activation's frames; it lies in its native frame
};

// Offsets in bytes. A field that a version does not have is 0.
struct PythonLayout {
  PythonFrameChain chain;
  uint16_t tss;         // _PyRuntime.gilstate.autoTSSkey
  uint16_t finalizing;  // _PyRuntime._finalizing
  // PyThreadState.
  uint16_t thread_id;
  uint16_t thread_frame;  // the current frame; 3.11 and 3.12: 0, it is in the cframe
  uint16_t thread_cframe;
  uint16_t thread_root_cframe;
  // _PyCFrame.
  uint16_t cframe_frame;
  uint16_t cframe_previous;
  // PyFrameObject or _PyInterpreterFrame.
  uint16_t frame_code;
  uint16_t frame_previous;
  uint16_t frame_instruction;  // before 3.11 an int32 f_lasti, then a pointer
  uint16_t frame_owner;
  uint16_t frame_is_entry;
  // PyCodeObject.
  uint16_t code_filename;
  uint16_t code_name;  // co_qualname; before 3.11 co_name
  uint16_t code_first_line;
  uint16_t code_line_table;
  uint16_t code_first_traceable;
  uint16_t code_adaptive;  // the instructions
  uint16_t code_version;
  // PyASCIIObject, PyCompactUnicodeObject.
  uint16_t ascii_text;
  uint16_t other_text;
};

// An interpreter that was found. Immutable once it is published, except for `problem` and `words`.
struct PythonInterpreter {
  PythonLayout layout;
  int minor;
  char version[16];
  std::atomic<const char*> problem;  // why its frames are not read; empty if they are
  uintptr_t runtime;                 // &_PyRuntime
  uintptr_t code_type;               // &PyCode_Type
  uintptr_t unicode_type;            // &PyUnicode_Type
  uintptr_t bytes_type;              // &PyBytes_Type
  // Address and size of _PyEval_EvalFrameDefault, for versions whose frames are found by its address range.
  uintptr_t evaluate;
  uintptr_t evaluate_bytes;
  bool is_permanent;       // it was loaded at program start, so it is never unloaded
  uintptr_t object_start;  // of the object that has `runtime`
  uintptr_t object_limit;
  const void* object_tables;  // its .eh_frame_hdr
  // The words of named frames by the keys of frames (python_frames.cc), so that names and lines are read once.
  static constexpr int kWordBits = 12;
  mutable WordBucket words[1 << kWordBits];
};

// The interpreter of this process. Null until an interpreter is found whose frames can be read, and null for ever after
// RejectPython.
extern std::atomic<const PythonInterpreter*> readable_python __attribute__((visibility("hidden")));

// Returns whether there is such an interpreter.
inline bool HasPython() { return readable_python.load(std::memory_order_relaxed) != nullptr; }

// Looks for an interpreter in each object that the watcher of objects (objects.h) is called with, checks the first one
// of the process, and publishes it.
void WatchForPython();

// Returns the first interpreter of the process; null if none was found. Any thread may call it.
const PythonInterpreter* FoundPython();
// Must be called if the published interpreter fails the checks later: its frames are then no longer read.
void RejectPython(const char* problem);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PYTHON_INTERPRETER_H_
