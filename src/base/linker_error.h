// The error that dlerror() returns to the program.
#ifndef HBMPROF_SRC_BASE_LINKER_ERROR_H_
#define HBMPROF_SRC_BASE_LINKER_ERROR_H_

#include <dlfcn.h>

#include "src/base/kept_errno.h"

namespace hbmprof::internal {

// Clears the error of the dynamic linker after a failed dlopen or dlsym of this library. Otherwise a program that calls
// dlerror() after its own dlsym would get it. Does not change errno.
inline void ClearLinkerError() {
  const KeptErrno kept_errno;
  dlerror();
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BASE_LINKER_ERROR_H_
