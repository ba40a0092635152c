// Whether this process is a fork's child that may lack a lock of the dynamic linker's for ever: another thread of its
// parent may have held it. The library's own locks are free in every child (fork.h).
#ifndef HBMPROF_SRC_BASE_FORKED_CHILD_H_
#define HBMPROF_SRC_BASE_FORKED_CHILD_H_

namespace hbmprof::internal {

// True for good after a fork without exec from a process that had other threads, or where /proc does not tell. What
// dl_iterate_phdr takes must not be taken then.
bool IsForkedChild();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FORKED_CHILD_H_
