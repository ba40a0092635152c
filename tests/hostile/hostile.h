// Device memory for the programs of this folder, in the way that the build selects:
//   plain   nothing is allocated or recorded; the program does not contain hbmprof
//   linked  recorded by the linked hbmprof
//   driver  allocated from the fake driver and recorded by the injected library
#ifndef HBMPROF_TESTS_HOSTILE_HOSTILE_H_
#define HBMPROF_TESTS_HOSTILE_HOSTILE_H_

#include <fcntl.h>
#include <grp.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(HOSTILE_LINKED)
#include "hbmprof/c_api.h"
#elif defined(HOSTILE_DRIVER)
#include "src/backends/cuda/shared/driver_abi.h"

extern "C" {
hbmprof::internal::cuda_driver::CUresult cuInit(unsigned);
hbmprof::internal::cuda_driver::CUresult cuDevicePrimaryCtxRetain(hbmprof::internal::cuda_driver::Handle*, int);
hbmprof::internal::cuda_driver::CUresult cuCtxSetCurrent(hbmprof::internal::cuda_driver::Handle);
hbmprof::internal::cuda_driver::CUresult cuMemAlloc_v2(hbmprof::internal::cuda_driver::CUdeviceptr*, size_t);
hbmprof::internal::cuda_driver::CUresult cuMemFree_v2(hbmprof::internal::cuda_driver::CUdeviceptr);
}
#endif

// Ends the process with exit code 99 and a line on stderr unless `holds`.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::fflush(stderr);
  _exit(99);
}
#define REQUIRE(condition) Require(static_cast<bool>(condition), #condition)

// Device memory. In the plain and the linked build both functions may be called anywhere, also in a signal handler; in
// the driver build not where malloc or a mutex is forbidden, as with the real driver.
#if defined(HOSTILE_DRIVER)
[[gnu::noinline]] inline void* Allocate(size_t bytes) {
  using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
  static thread_local bool ready = false;
  if (!ready) {
    Handle context = nullptr;
    REQUIRE(cuInit(0) == kSuccess && cuDevicePrimaryCtxRetain(&context, 0) == kSuccess);
    REQUIRE(cuCtxSetCurrent(context) == kSuccess);
    ready = true;
  }
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == kSuccess);
  return reinterpret_cast<void*>(memory);
}

inline void Free(void* memory) {
  using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
  REQUIRE(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(memory)) == kSuccess);
}
#else
[[gnu::noinline]] inline void* Allocate([[maybe_unused]] size_t bytes) {
  static std::atomic<uintptr_t> next{uintptr_t{1} << 40};
  void* memory = reinterpret_cast<void*>(next.fetch_add(uintptr_t{1} << 21, std::memory_order_relaxed));
#if defined(HOSTILE_LINKED)
  hbmprof_record_alloc(memory, bytes, 0);
#endif
  return memory;
}

inline void Free([[maybe_unused]] void* memory) {
#if defined(HOSTILE_LINKED)
  hbmprof_record_free(memory);
#endif
}
#endif

// Allocates and frees `times` times.
inline void Churn(int times) {
  for (int i = 0; i < times; ++i) Free(Allocate(static_cast<size_t>(1 + i % 300)));
}

// Ends with `status` as waitpid gives it, or fails.
inline void WaitFor(pid_t child, int status) {
  int actual = 0;
  while (waitpid(child, &actual, 0) != child) continue;
  REQUIRE(actual == status);
}

// Changes to the user "nobody" permanently. Needs root.
inline void BecomeNobody() { REQUIRE(setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0); }

// Writes the program that this process runs to the file `copy`.
inline void CopyProgram(int copy) {
  const int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  REQUIRE(self >= 0 && copy >= 0 && fstat(self, &info) == 0);
  while (info.st_size > 0) {
    const ssize_t count = sendfile(copy, self, nullptr, static_cast<size_t>(info.st_size));
    REQUIRE(count > 0);
    info.st_size -= count;
  }
  close(self);
}

// Waits, so that other threads can run, such as the one that dumps at an interval. No check may depend on it.
inline void Linger() { usleep(100'000); }

#endif  // HBMPROF_TESTS_HOSTILE_HOSTILE_H_
