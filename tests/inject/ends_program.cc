// Allocates 1 MiB of device memory in HoldMemory, prints "held", and ends as argv[1] says; a case of ends_test each.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "tests/inject/driver_calls.h"
#include "tests/support/fake_cudart/fake_cuda.h"

std::atomic<bool> malloc_hangs{false};

// As if another thread held malloc's lock for ever.
extern "C" void* __libc_malloc(size_t bytes);  // NOLINT: glibc's name
extern "C" void* malloc(size_t bytes) {
  while (malloc_hangs.load()) usleep(1000);
  return __libc_malloc(bytes);
}

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

namespace {

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}
#define REQUIRE(condition) Require(condition, #condition)

[[gnu::noinline]] void HoldMemory(size_t bytes) {
  Handle context = nullptr;
  REQUIRE(cuInit(0) == kSuccess);
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == kSuccess);
  REQUIRE(cuCtxSetCurrent(context) == kSuccess);
  CUdeviceptr ptr = 0;
  REQUIRE(cuMemAlloc_v2(&ptr, bytes) == kSuccess);
  asm volatile("" ::: "memory");
}

// Asks for more than the device has, in each way.
void AskForTooMuch() {
  CUdeviceptr ptr = 0;
  size_t pitch = 0;
  void* host = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  const MemAllocationProp properties{1, 0, {kLocationDevice, 1}};
  const size_t bytes = size_t{3} << 30;
  REQUIRE(cuMemAlloc_v2(&ptr, bytes) == 2);
  REQUIRE(cuMemAllocPitch_v2(&ptr, &pitch, bytes, 2, 4) == 2);
  REQUIRE(cuMemAllocAsync(&ptr, bytes, nullptr) == 2);
  REQUIRE(cuMemCreate(&handle, bytes, &properties, 0) == 2);
  REQUIRE(cuMemHostAlloc(&host, bytes, 0) == 2 || host != nullptr);
}

void OwnHandler(int) { _exit(7); }

// The child of a fork that has memory of its own and ends by _exit, as a worker of Python's multiprocessing.
void ForkedWorker() {
  const pid_t child = fork();
  if (child == 0) {
    HoldMemory(1 << 20);
    _exit(0);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
}

// A child that shares its parent's memory until it ends.
[[gnu::noinline]] void Vforked() {
  const pid_t child = vfork();
  if (child == 0) _exit(9);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 9);
}

[[gnu::noinline]] int Overflow(int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : Overflow(depth + 1) + frame[0];
}

void SendAndWait(int number) {
  kill(getpid(), number);
  sleep(60);
}

int terminal = -1;

// Continues in a child with a terminal of its own; `terminal` is the end where a user types. This process waits for the
// child and ends by the same signal.
void ContinueOnATerminal() {
  terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
  const pid_t child = fork();
  if (child == 0) {
    REQUIRE(setsid() == getpid() && open(ptsname(terminal), O_RDWR) >= 0);
    return;
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
  raise(WTERMSIG(status));
}

void TypeAndWait(char key) {
  REQUIRE(write(terminal, &key, 1) == 1);
  sleep(10);
}

void EndAs(const std::string& how) {
  if (how == "interrupt_key") TypeAndWait('\003');
  if (how == "quit_key") TypeAndWait('\034');
  if (how == "term") SendAndWait(SIGTERM);
  if (how == "int") SendAndWait(SIGINT);
  if (how == "hup") SendAndWait(SIGHUP);
  if (how == "quit") SendAndWait(SIGQUIT);
  if (how == "term_in_thread") std::thread([] { SendAndWait(SIGTERM); }).join();
  if (how == "term_in_malloc") {
    malloc_hangs.store(true);
    SendAndWait(SIGTERM);
  }
  if (how == "abort") std::abort();
  if (how == "terminate") std::terminate();
  if (how == "segv") *static_cast<volatile int*>(nullptr) = 1;
  if (how == "fpe") raise(SIGFPE);
  if (how == "overflow") std::exit(Overflow(0));
  if (how == "_exit") _exit(5);
  if (how == "_Exit") _Exit(6);
  if (how == "quick_exit") std::quick_exit(4);
  if (how == "own_handler") {
    signal(SIGTERM, &OwnHandler);
    SendAndWait(SIGTERM);
  }
  if (how == "ignored") kill(getpid(), SIGHUP);  // the test starts this with SIGHUP ignored
  if (how == "default_again") {
    signal(SIGTERM, SIG_DFL);
    SendAndWait(SIGTERM);
  }
  if (how == "sleep") sleep(60);
  if (how == "too_much") AskForTooMuch();
  if (how == "idle_child") {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    REQUIRE(waitpid(child, nullptr, 0) == child);
  }
  if (how == "worker") ForkedWorker();
  if (how == "vfork") Vforked();
  if (how == "term_in_child") {
    const pid_t child = fork();
    if (child == 0) SendAndWait(SIGTERM);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  if (how == "ignored") signal(SIGHUP, SIG_IGN);
  if (how == "interrupt_key" || how == "quit_key") ContinueOnATerminal();
  HoldMemory(1 << 20);
  std::puts("held");
  std::fflush(stdout);
  EndAs(how);
  std::puts("done");
  return 0;
}
