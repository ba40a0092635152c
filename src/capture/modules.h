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

// Around a fork, so that no other thread is listing modules then: the dynamic linker does not free its list's lock in
// the child. Waits a second at most: a thread that lists may itself wait for the one that forks, which the program let
// happen by forking from a function that it gave to dl_iterate_phdr. Then the child has that lock as any program's
// would.
void LockModules();
void UnlockModules();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_CAPTURE_MODULES_H_
