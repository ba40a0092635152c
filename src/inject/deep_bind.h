// Libraries loaded with RTLD_DEEPBIND look for every function in their own libraries first, and so find the C library's
// dlsym and the driver's calls and not the preloaded ones. Once they are loaded, their references are set by hand.
#ifndef HBMPROF_SRC_INJECT_DEEP_BIND_H_
#define HBMPROF_SRC_INJECT_DEEP_BIND_H_

namespace hbmprof::internal {

// dlopen for a file that a path names, with RTLD_DEEPBIND among `flags`: loads it, then lets what came with it refer to
// this library's dlsym and wrappers.
void* OpenDeepBound(const char* file, int flags, void* (*real_dlopen)(const char*, int));

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_DEEP_BIND_H_
