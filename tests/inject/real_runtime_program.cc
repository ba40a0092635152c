// The real CUDA runtime on the fake driver. The runtime returns an error, because the driver is not real, but it looks
// up the driver's functions before. Prints the error.
#include <cuda_runtime_api.h>

#include <cstdio>

int main() {
  void* ptr = nullptr;
  std::printf("%s\n", cudaGetErrorName(cudaMalloc(&ptr, 100)));
  return 0;
}
