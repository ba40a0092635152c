// IsForkedChild: whether this process is a forked child in which a lock of the dynamic linker may be held for ever.
// That happens if another thread of the parent held the lock during the fork. The locks of this library are free in
// every child (fork.h).
//
// SharesParentsMemory: whether this process is a child of vfork. What it stores stays in its parent's memory.
#ifndef HBMPROF_SRC_BASE_FORKED_CHILD_H_
#define HBMPROF_SRC_BASE_FORKED_CHILD_H_

namespace hbmprof::internal {

// Returns true in a process that was forked (without a later exec) from a process that had other threads or could not
// read /proc. Also returns true in all children of such a process. If it returns true, the lock that dl_iterate_phdr
// takes must not be taken. Any thread may call it.
bool IsForkedChild();

// Returns true in a child of vfork, or of clone with CLONE_VM, until it executes a program. State that is kept for each
// process id must not be changed there: the parent would find it, with the id of another process. Any thread may call
// it. Makes at most three system calls. Does not change errno.
bool SharesParentsMemory();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FORKED_CHILD_H_
