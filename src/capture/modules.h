// The executable segments of all objects that are or were loaded into this process.
#ifndef HBMPROF_SRC_CAPTURE_MODULES_H_
#define HBMPROF_SRC_CAPTURE_MODULES_H_

#include <vector>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Returns the executable segments: those of the main program first, then the others by address. A segment that was
// unloaded after an earlier call returned it is still returned, because recorded stacks may contain its addresses. It
// is left out if it overlaps a segment that is loaded now. The path of the kernel's object is "[vdso]".
//
// Any thread may call it. Takes the lock of the dynamic linker's list of objects, and calls malloc. Must not be called
// with a lock of this library held.
std::vector<Snapshot::Module> LoadedModules();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_MODULES_H_
