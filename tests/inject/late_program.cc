// Allocates from the driver, then loads the library argv[1], which links hbmprof (joined_program.cc) and writes its
// profile to argv[2].
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "tests/inject/driver_calls.h"
#ifdef LINKS_HBMPROF
#include "hbmprof/hbmprof.h"
#endif

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

extern "C" [[gnu::noinline]] CUdeviceptr program_allocates(size_t bytes) {
  CUdeviceptr ptr = 0;
  if (cuMemAlloc_v2(&ptr, bytes) != kSuccess) std::abort();
  return ptr;
}

int main(int, char** argv) {
  Handle context = nullptr;
  if (cuInit(0) != kSuccess || cuDevicePrimaryCtxRetain(&context, 0) != kSuccess) return 1;
  if (cuCtxSetCurrent(context) != kSuccess) return 1;
  const CUdeviceptr whole = program_allocates(1 << 20);
  const CUdeviceptr slab = program_allocates(1 << 20);
  char addresses[64];
  std::snprintf(addresses, sizeof(addresses), "%llx %llx", static_cast<unsigned long long>(whole),
                static_cast<unsigned long long>(slab));
  setenv("JOINED_BEFORE", addresses, 1);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  auto* run = reinterpret_cast<int (*)(const char*, const char*)>(dlsym(library, "joined_case"));
  if (run == nullptr) return 1;
#ifdef LINKS_HBMPROF
  const hbmprof::ScopedTag tag("copy", "program's");
#endif
  const int result = run("late", argv[2]);
  dlclose(library);
  return result;
}
