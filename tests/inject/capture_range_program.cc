// A program that delimits ranges with cudaProfilerStart and cudaProfilerStop, and does not use hbmprof. argv[1] names a
// case of capture_range_test. It prints the results of these calls.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/mini_runtime/mini_runtime.h"

using namespace mini_runtime;  // NOLINT: its calls

namespace {

constexpr size_t kMiB = 1 << 20;

CUdeviceptr Allocate(size_t bytes) {
  CUdeviceptr ptr = 0;
  if (cudaMalloc(&ptr, bytes) != kSuccess) std::fprintf(stderr, "no memory\n");
  return ptr;
}

[[gnu::noinline]] CUdeviceptr Outside(size_t bytes) {
  const CUdeviceptr ptr = Allocate(bytes);
  asm volatile("" ::: "memory");  // no jump instead of the call
  return ptr;
}
[[gnu::noinline]] CUdeviceptr Inside(size_t bytes) {
  const CUdeviceptr ptr = Allocate(bytes);
  asm volatile("" ::: "memory");
  return ptr;
}

void Start() {
  std::printf("start %d\n", cudaProfilerStart());
  std::fflush(stdout);
}
void Stop() {
  std::printf("stop %d\n", cudaProfilerStop());
  std::fflush(stdout);
}

void TwoRanges() {
  cudaFree(Outside(64 * kMiB));  // the highest use of the whole run
  Outside(1 * kMiB);
  Start();
  Inside(2 * kMiB);
  cudaFree(Inside(8 * kMiB));
  Stop();
  Outside(4 * kMiB);
  Start();
  Inside(16 * kMiB);
  Stop();
  Outside(32 * kMiB);
}

void Threads() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      cudaSetDevice(0);
      for (int k = 0; k < 10; ++k) {
        if (cudaProfilerStart() != kSuccess) std::fprintf(stderr, "start has failed\n");
        cudaFree(Inside(kMiB));
        if (cudaProfilerStop() != kSuccess) std::fprintf(stderr, "stop has failed\n");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Fork() {
  Outside(1 * kMiB);
  Start();
  Inside(2 * kMiB);
  if (fork() == 0) {
    Stop();  // the parent's range is not the child's, which is off
    Outside(4 * kMiB);
    Start();
    Inside(8 * kMiB);
    Stop();
    std::exit(0);
  }
  wait(nullptr);
  Inside(16 * kMiB);
  Stop();
}

// A child of vfork changes its parent's memory.
void Vfork() {
  Start();
  Inside(2 * kMiB);
  const pid_t child = vfork();
  if (child == 0) {
    cudaProfilerStart();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  Stop();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "no_context") Start();
  cudaSetDevice(0);
  if (name == "two") TwoRanges();
  if (name == "threads") Threads();
  if (name == "fork") Fork();
  if (name == "vfork") Vfork();
  if (name == "none") Outside(kMiB);
  if (name == "nested") {
    Start();
    Start();
    Inside(kMiB);
    Stop();
    Outside(2 * kMiB);
    Stop();
  }
  if (name == "stop_first") {
    Stop();
    Outside(kMiB);
    Start();
    Inside(2 * kMiB);
  }
  if (name == "signal" || name == "exec" || name == "_exit") {
    Start();
    Inside(kMiB);
    if (name == "signal") raise(SIGTERM);
    if (name == "_exit") _exit(0);
    char two[] = "two";
    char* arguments[] = {argv[0], two, nullptr};
    execv("/proc/self/exe", arguments);
  }
  for (int i = 0; name == "many" && i < 22; ++i) {
    Start();
    Stop();
  }
  if (name == "kill") {
    Start();
    Inside(kMiB);
    sleep(1);  // the recording is written meanwhile
    raise(SIGKILL);
  }
  if (name == "no_memory") {
    CUdeviceptr ptr = 0;
    std::printf("malloc %d\n", cudaMalloc(&ptr, size_t{1} << 40));
    Start();
    Stop();
  }
  if (name == "other_thread") {
    Start();
    Inside(kMiB);
    std::thread([] {
      cudaSetDevice(0);
      Stop();
    }).join();
    Outside(2 * kMiB);
  }
  return 0;
}
