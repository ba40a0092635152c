// The real CUDA runtime on a driver library that has no device, or on the fake one, which the runtime does not accept.
// It looks up the driver's functions before it returns an error. Prints the errors. argv[1]: where it calls ("fork",
// "threads"), or how it ends ("_exit").
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/support/check.h"

// As in cuda_runtime_api.h, which needs headers that the package of the runtime does not have.
extern "C" {
using cudaError_t = int;
const char* cudaGetErrorName(cudaError_t);
cudaError_t cudaMalloc(void**, size_t);
cudaError_t cudaMallocManaged(void**, size_t, unsigned flags);
cudaError_t cudaMallocHost(void**, size_t);
cudaError_t cudaMallocAsync(void**, size_t, void* stream);
cudaError_t cudaMallocPitch(void**, size_t* pitch, size_t width, size_t height);
cudaError_t cudaFree(void*);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaDriverGetVersion(int*);
cudaError_t cudaDeviceReset();
}

namespace {

constexpr unsigned kAttachGlobal = 1;

void Print(const char* call, cudaError_t error) {
  std::printf("%s: %s\n", call, cudaGetErrorName(error));
  std::fflush(stdout);
}
#define PRINT(name, ...) Print(#name, name(__VA_ARGS__))

void Call() {
  void* ptr = nullptr;
  size_t bytes = 0;
  int number = 0;
  PRINT(cudaMalloc, &ptr, 100);
  PRINT(cudaMallocManaged, &ptr, 100, kAttachGlobal);
  PRINT(cudaMallocHost, &ptr, 100);
  PRINT(cudaMallocAsync, &ptr, 100, nullptr);
  PRINT(cudaMallocPitch, &ptr, &bytes, 100, 100);
  PRINT(cudaFree, nullptr);
  PRINT(cudaMemGetInfo, &bytes, &bytes);
  PRINT(cudaGetDeviceCount, &number);
  PRINT(cudaDriverGetVersion, &number);
  std::printf("%d\n", number);
  PRINT(cudaDeviceReset);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "threads") {
    std::thread(&Call).join();
    std::thread(&Call).join();
  } else {
    Call();
  }
  if (how == "fork") {
    const pid_t child = fork();
    if (child == 0) {
      Call();
      std::exit(2);
    }
    int status = 0;
    CHECK_THAT(waitpid(child, &status, 0) == child);
    std::printf("the child: %d\n", status);
  }
  if (how == "_exit") _exit(3);
  return 0;
}
