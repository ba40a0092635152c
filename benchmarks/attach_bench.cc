// For each byte of its input: makes pairs of cudaMalloc and cudaFree of a static runtime on the substitute driver, and
// prints the nanoseconds of the thread's processor time per pair. attach.py compares such processes.
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/mini_runtime/mini_runtime.h"

namespace {

void Require(mini_runtime::CUresult result) {
  if (result != mini_runtime::kSuccess) std::abort();
}

}  // namespace

int main() {
  constexpr int kPairs = 2000;
  Require(mini_runtime::cudaSetDevice(0));
  std::printf("ready\n");
  std::fflush(stdout);
  for (char byte; read(STDIN_FILENO, &byte, 1) == 1;) {
    timespec start = {};
    timespec end = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    for (int i = 0; i < kPairs; ++i) {
      mini_runtime::CUdeviceptr ptr = 0;
      Require(mini_runtime::cudaMalloc(&ptr, 4096));
      Require(mini_runtime::cudaFree(ptr));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    const double nanos = static_cast<double>(end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);
    std::printf("%.2f\n", nanos / kPairs);
    std::fflush(stdout);
  }
}
