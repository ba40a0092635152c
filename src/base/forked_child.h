// Whether this process is a forked child in which a lock of the dynamic linker may be held for ever, because another
// thread of the parent held it during the fork. The locks of this library are free in every child (fork.h).
#ifndef HBMPROF_SRC_BASE_FORKED_CHILD_H_
#define HBMPROF_SRC_BASE_FORKED_CHILD_H_

namespace hbmprof::internal {

// Returns true in a child that was forked, without exec, from a process with other threads, or without a readable
// /proc; and in all its children. The lock that dl_iterate_phdr takes must not be taken there. Any thread may call it.
bool IsForkedChild();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FORKED_CHILD_H_
