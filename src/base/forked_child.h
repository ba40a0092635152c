// Whether this process is a fork's child. A lock that another thread of its parent held is then held for good: those of
// the tracker are seen to (profiler.cc), but not the dynamic linker's.
#ifndef HBMPROF_SRC_BASE_FORKED_CHILD_H_
#define HBMPROF_SRC_BASE_FORKED_CHILD_H_

namespace hbmprof::internal {

// True for good after a fork without exec. What dl_iterate_phdr takes must not be taken then.
bool IsForkedChild();

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_FORKED_CHILD_H_
