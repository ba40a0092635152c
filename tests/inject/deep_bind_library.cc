// A plugin that contains its own runtime, as plugins for RTLD_DEEPBIND do, and also links the driver.
#include "tests/support/mini_runtime/mini_runtime.h"

extern "C" int cuMemAlloc_v2(mini_runtime::CUdeviceptr* ptr, size_t bytes);

extern "C" [[gnu::visibility("default")]] int run() {
  mini_runtime::CUdeviceptr ptr = 0;
  if (mini_runtime::cudaSetDevice(0) != 0) return 1;
  if (mini_runtime::cudaMalloc(&ptr, 1000) != 0) return 1;
  if (mini_runtime::cudaFree(ptr) != 0) return 1;
  return cuMemAlloc_v2(&ptr, 2000);
}
