// A replacement of malloc that finds the C library's malloc at its first call. This call can come before the
// constructors of all preloaded libraries have run.
#include <dlfcn.h>

#include <cstddef>

#include "src/base/compat/first_glibc.h"

extern "C" {

// The version that every C library has.
void* first_dlsym(void* handle, const char* name);
asm(".symver first_dlsym,dlsym@" HBMPROF_FIRST_GLIBC);

[[gnu::visibility("default")]] void* malloc(size_t bytes) {
  static void* (*real)(size_t) = nullptr;
  if (real == nullptr) real = reinterpret_cast<void* (*)(size_t)>(first_dlsym(RTLD_NEXT, "malloc"));
  return real(bytes);
}
}
