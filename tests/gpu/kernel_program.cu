// A kernel that fills memory, and code with a large variable, built by nvcc for the per-thread default stream. Prints
// "KIND BYTES" of the memory, as gpu_program.cc does.
#include <cstdio>
#include <string>
#include <vector>

#include "tests/gpu/gpu_program.h"

namespace {

constexpr int kCount = 1 << 20;
__device__ int large_variable[16 << 20];

__global__ void Fill(int* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  large_variable[i] = i;
  out[i] = large_variable[i] * 2;
}

}  // namespace

extern "C" [[gnu::noinline]] int* user_allocates() {
  int* out = nullptr;
  CHECK(cudaMallocAsync(&out, kCount * sizeof(int), nullptr));
  return out;
}

int main() {
  UsableGpus();
  int* out = user_allocates();
  Fill<<<kCount / 256, 256>>>(out);
  CHECK(cudaGetLastError());
  std::vector<int> numbers(kCount);
  CHECK(cudaMemcpy(numbers.data(), out, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) {
    if (numbers[static_cast<size_t>(i)] == 2 * i) continue;
    std::fprintf(stderr, "the kernel wrote %d at %d\n", numbers[static_cast<size_t>(i)], i);
    return 1;
  }
  std::printf("device %zu\n", kCount * sizeof(int));
  return 0;
}
