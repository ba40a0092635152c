// KeepStateAtPythonEnd: the profile at exit shows what a Python program held. The interpreter destroys the program's
// variables, and so frees their memory, before the process ends.
#ifndef HBMPROF_SRC_INJECT_FRAMEWORKS_PYTHON_END_H_
#define HBMPROF_SRC_INJECT_FRAMEWORKS_PYTHON_END_H_

#include "src/api/public/default_profiler.h"
#include "src/capture/python/python_frames.h"

namespace hbmprof::internal {

// Called before a free is recorded. The first call while the interpreter ends takes the snapshot for the exit. The
// thread must hold no lock of this library. Does not change errno.
inline void KeepStateAtPythonEnd() {
  if (PythonIsEnding()) KeepStateForExit();
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_FRAMEWORKS_PYTHON_END_H_
