// Links hbmprof::cuda, and also allocates without it, as libraries do. Writes its own profile to argv[1].
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "hbmprof/cuda.h"
#include "hbmprof/hbmprof.h"

extern "C" [[gnu::noinline]] void* user_allocates() {
  void* ptr = nullptr;
  if (hbmprof::cuda::Malloc(&ptr, 777) != cudaSuccess) std::abort();
  return ptr;
}

extern "C" [[gnu::noinline]] void* library_allocates() {
  void* ptr = nullptr;
  if (cudaMalloc(&ptr, 333) != cudaSuccess) std::abort();
  return ptr;
}

int main(int argc, char** argv) {
  void* ptr = user_allocates();
  library_allocates();
  if (argc > 2 && hbmprof::cuda::Free(ptr) != cudaSuccess) return 1;
  if (!hbmprof::save_device_memory_profile(argv[1]).ok()) return 1;
  std::printf("done\n");
  return 0;
}
