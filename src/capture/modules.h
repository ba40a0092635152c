// The executable segments of everything loaded into this process.
#ifndef HBMPROF_SRC_CAPTURE_MODULES_H_
#define HBMPROF_SRC_CAPTURE_MODULES_H_

#include <vector>

#include "hbmprof/snapshot.h"

namespace hbmprof::internal {

// Those of the main program first, then by address. A segment that an earlier call listed and that has been unloaded
// since stays listed while nothing else is loaded over it: stacks recorded before may still point there.
// The kernel's own object is named "[vdso]". Takes the dynamic linker's list lock and malloc, no lock of ours
// meanwhile: never call it while holding one.
std::vector<Snapshot::Module> LoadedModules();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_MODULES_H_
