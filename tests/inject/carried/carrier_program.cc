// Uses the library that it contains, and then the copy of the same library in the plugin argv[1], which is loaded in
// the way argv[2]: "local" or "deep_bind". In between it holds memory of the driver, 1000 and 2000 bytes. With argv[3]
// it ends by a failure.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "tests/inject/carried/carried.h"
#include "tests/inject/driver_calls.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

extern "C" {
[[gnu::noinline]] int user_allocates(size_t bytes) {
  CUdeviceptr ptr = 0;
  const CUresult result = cuMemAlloc_v2(&ptr, bytes);
  return result;
}
}

int main(int argc, char** argv) {
  Handle context = nullptr;
  if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0) return 10;
  if (use_carried("program") != 0 || user_allocates(1000) != 0) return 11;
  const int deep_bind = std::strcmp(argv[2], "deep_bind") == 0 ? RTLD_DEEPBIND : 0;
  void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | deep_bind);
  if (plugin == nullptr) {
    std::printf("%s\n", dlerror());
    return 12;
  }
  auto* use_plugins = reinterpret_cast<decltype(&use_carried)>(dlsym(plugin, "use_carried"));
  if (use_plugins("plug-in") != 0 || user_allocates(2000) != 0) return 13;
  if (use_carried("program again") != 0) return 14;
  std::printf("done\n");
  std::fflush(stdout);
  if (argc > 3) fail_carried();
  return 7;
}
