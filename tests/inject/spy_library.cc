// Preloaded before the injected library. Prints the result of each cuGetProcAddress call on stderr, as "name: library".
// If cuGetProcAddress itself is looked up, it returns its own function, so that it sees all following calls.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "src/base/compat/first_glibc.h"

namespace {

using GetProcAddress = int(const char*, void**, int, unsigned long long, int*);
GetProcAddress* next_get = nullptr;

int Spy(const char* name, void** function, int version, unsigned long long flags, int* status) {
  const int result = next_get(name, function, version, flags, status);
  Dl_info info = {};
  const bool known = result == 0 && *function != nullptr && dladdr(*function, &info) != 0;
  const char* slash = known ? std::strrchr(info.dli_fname, '/') : nullptr;
  std::fprintf(stderr, "%s: %s\n", name, !known ? "nothing" : slash == nullptr ? info.dli_fname : slash + 1);
  if (known && std::strcmp(name, "cuGetProcAddress") == 0) *function = reinterpret_cast<void*>(&Spy);
  return result;
}

}  // namespace

extern "C" void* dlsym(void* handle, const char* name) noexcept {
  // Finds the next dlsym in the same way as other interposers.
  static auto* const next =
      reinterpret_cast<void* (*)(void*, const char*)>(dlvsym(RTLD_NEXT, "dlsym", HBMPROF_FIRST_GLIBC));
  void* found = next(handle, name);
  if (found == nullptr || std::strcmp(name, "cuGetProcAddress_v2") != 0) return found;
  next_get = reinterpret_cast<GetProcAddress*>(found);
  return reinterpret_cast<void*>(&Spy);
}
