// The CPython interpreter of this process: where it keeps its state.
#ifndef HBMPROF_SRC_CAPTURE_PYTHON_INTERPRETER_H_
#define HBMPROF_SRC_CAPTURE_PYTHON_INTERPRETER_H_

#include <atomic>
#include <cstdint>

#include "src/base/word_bucket.h"
#include "src/capture/python/layouts.h"

namespace hbmprof::internal {

// Loads a word of the interpreter's structs. Other threads may write it at the same time.
template <typename T>
T Load(uintptr_t address) {
  return __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_RELAXED);
}

// An interpreter that was found. Immutable once it is published, except for `words`.
struct PythonInterpreter {
  PythonLayout layout;
  bool has_usual_layout;  // `layout` is UsualPythonLayout(minor), apart from `finalizing`
  int minor;
  char version[16];
  const char* problem;     // why its frames are not read; empty if they are
  uintptr_t runtime;       // &_PyRuntime
  uintptr_t code_type;     // &PyCode_Type
  uintptr_t unicode_type;  // &PyUnicode_Type
  uintptr_t bytes_type;    // &PyBytes_Type
  // Address and size of _PyEval_EvalFrameDefault, for versions whose frames are found by its address range.
  uintptr_t evaluate;
  uintptr_t evaluate_bytes;
  bool is_permanent;       // it was loaded at program start, so it is never unloaded
  uintptr_t object_start;  // of the object that has `runtime`
  uintptr_t object_limit;
  // The words of named frames by the keys of frames (python_frames.cc), so that names and lines are read once.
  static constexpr int kWordBits = 12;
  mutable WordBucket words[1 << kWordBits];
};

// The interpreter of this process. Null until one is found whose frames can be read.
extern std::atomic<const PythonInterpreter*> readable_python __attribute__((visibility("hidden")));

// Returns whether there is such an interpreter.
inline bool HasPython() { return readable_python.load(std::memory_order_relaxed) != nullptr; }

// Looks for an interpreter in each object that the watcher of objects (objects.h) is called with, checks the first one
// of the process, and publishes it.
void WatchForPython();

// Returns the first interpreter of the process; null if none was found. Any thread may call it.
const PythonInterpreter* FoundPython();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_PYTHON_INTERPRETER_H_
