// The real CUDA runtime on the double of the driver. It refuses to work there, as it must; but what it looks up, it
// looks up before. Prints how it refuses.
#include <cuda_runtime_api.h>

#include <cstdio>

int main() {
  void* ptr = nullptr;
  std::printf("%s\n", cudaGetErrorName(cudaMalloc(&ptr, 100)));
  return 0;
}
