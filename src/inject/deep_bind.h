// Libraries loaded with RTLD_DEEPBIND look for every function in their own libraries first, and so find the C library's
// dlsym and the driver's calls and not the preloaded ones. Once they are loaded, their references are set by hand.
#ifndef HBMPROF_SRC_INJECT_DEEP_BIND_H_
#define HBMPROF_SRC_INJECT_DEEP_BIND_H_

namespace hbmprof::internal {

// Lets the library `handle`, which the C library's dlopen returned, and all that it needs, refer to this library's
// dlsym and wrappers, where they refer to the C library's dlsym or to the driver. To do it again changes nothing.
void SetReferencesOf(void* handle);

// dlopen for a file that a path names, with RTLD_DEEPBIND among `flags`, with its references set.
void* OpenDeepBound(const char* file, int flags);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_DEEP_BIND_H_
