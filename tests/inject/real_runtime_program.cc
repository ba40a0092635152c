// The real CUDA runtime on a driver library that has no device, or on the fake one, which the runtime does not accept.
// It looks up the driver's functions before it returns an error. Prints the errors. argv[1]: where it calls ("fork",
// "threads"), or how it ends ("_exit").
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/support/check.h"

namespace {

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
  PRINT(cudaMallocManaged, &ptr, 100, cudaMemAttachGlobal);
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
