// For each byte of its input: makes pairs of cuMemAlloc and cuMemFree on the substitute driver, and prints the
// nanoseconds of the thread's processor time per pair. As a runtime does, it looks the functions up once, at its start.
// attach.py compares such processes.
#include <dlfcn.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/support/mini_runtime/mini_runtime.h"

namespace {

void Require(mini_runtime::CUresult result) {
  if (result != mini_runtime::kSuccess) std::abort();
}

template <typename... Arguments>
auto Function(void* driver, const char* name) {
  auto* const function = reinterpret_cast<mini_runtime::CUresult (*)(Arguments...)>(dlsym(driver, name));
  if (function == nullptr) std::abort();
  return function;
}

}  // namespace

int main() {
  constexpr int kPairs = 2000;
  // As in a server, there is a second thread: with the first one that starts, all locks of glibc become slower.
  std::thread([] { pause(); }).detach();
  // The memory of the substitute driver comes from malloc. Without fast bins, a free takes the same time whatever
  // chunks are free beside it.
  mallopt(M_MXFAST, 0);
  Require(mini_runtime::cudaSetDevice(0));
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto allocate = Function<mini_runtime::CUdeviceptr*, size_t>(driver, "cuMemAlloc_v2");
  const auto free = Function<mini_runtime::CUdeviceptr>(driver, "cuMemFree_v2");
  std::printf("ready\n");
  std::fflush(stdout);
  for (char byte; read(STDIN_FILENO, &byte, 1) == 1;) {
    timespec start = {};
    timespec end = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    for (int i = 0; i < kPairs; ++i) {
      mini_runtime::CUdeviceptr ptr = 0;
      Require(allocate(&ptr, 4096));
      Require(free(ptr));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    const double nanos = static_cast<double>(end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec);
    std::printf("%.2f\n", nanos / kPairs);
    std::fflush(stdout);
  }
}
