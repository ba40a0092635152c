// Uses the installed CUDA part, with or without a GPU: the runtime's result is passed on. Prints what went wrong and
// exits 1, else writes the profile to argv[1] and exits 0.
#include <hbmprof/cuda.h>
#include <hbmprof/hbmprof.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* buffer = nullptr;
  const cudaError_t error = hbmprof::cuda::Malloc(&buffer, 4096);
  if (error != cudaGetLastError()) {
    std::fprintf(stderr, "cuda_consumer: the runtime's error was not passed on: %s\n", cudaGetErrorString(error));
    return 1;
  }
  if (error == cudaSuccess && hbmprof::Profiler::Default().GetTrackerStats().live_records != 1) {
    std::fprintf(stderr, "cuda_consumer: the buffer was not recorded\n");
    return 1;
  }
  if (error == cudaSuccess && hbmprof::cuda::Free(buffer) != cudaSuccess) return 1;
  return hbmprof::save_device_memory_profile(argv[1]).ok() ? 0 : 1;
}
