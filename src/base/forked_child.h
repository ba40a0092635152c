// IsForkedChild: whether this process is a forked child in which a lock of the dynamic linker may be held for ever.
// That happens if another thread of the parent held the lock during the fork. The locks of this library are free in
// every child (fork.h).
#ifndef HBMPROF_SRC_BASE_FORKED_CHILD_H_
#define HBMPROF_SRC_BASE_FORKED_CHILD_H_

namespace hbmprof::internal {

// Returns true in a process that was forked (without a later exec) from a process that had other threads or could not
// read /proc. Also returns true in all children of such a process. If it returns true, the lock that dl_iterate_phdr
// takes must not be taken. Any thread may call it.
bool IsForkedChild();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FORKED_CHILD_H_
