// Allocates device memory on small stacks: first in a fiber with 16 KiB; then in threads with the smallest possible
// stacks, with and without a guard page, on alternate signal stacks of 8 KiB, and in fibers. The memory below a fiber's
// stack belongs to the program and must not change.
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstring>

#include "tests/hostile/hostile.h"

namespace {

// Sites seen for the first time, for the second time (which learns the stack's path), and known ones.
[[gnu::noinline]] void Work() {
  for (int depth = 0; depth < 40; ++depth) Churn(2);
}

[[gnu::noinline]] void Deeper(int depth) {
  if (depth > 0) {
    Deeper(depth - 1);
  } else {
    Work();
  }
  asm volatile("");  // no tail call
}

void RunThread(size_t bytes, size_t guard) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  REQUIRE(pthread_attr_setstacksize(&attributes, bytes) == 0);
  REQUIRE(pthread_attr_setguardsize(&attributes, guard) == 0);
  pthread_t thread;
  REQUIRE(pthread_create(
              &thread, &attributes,
              [](void*) -> void* {
                Work();
                Deeper(8);
                return nullptr;
              },
              nullptr) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

// A stack with a page of the program below it.
struct Stack {
  static constexpr size_t kBelow = 4096;
  explicit Stack(size_t bytes) : bytes(bytes) {
    memory =
        static_cast<char*>(mmap(nullptr, kBelow + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory != MAP_FAILED);
    std::memset(memory, 0x5a, kBelow);
  }
  ~Stack() {
    REQUIRE(std::all_of(memory, memory + kBelow, [](char byte) { return byte == 0x5a; }));
    munmap(memory, kBelow + bytes);
  }
  char* start() const { return memory + kBelow; }
  size_t bytes;
  char* memory;
};

void RunOnAlternateStack(size_t bytes) {
  const Stack stack(bytes);
  stack_t alternate = {};
  alternate.ss_sp = stack.start();
  alternate.ss_size = stack.bytes;
  REQUIRE(sigaltstack(&alternate, nullptr) == 0);
  struct sigaction action = {};
  action.sa_handler = [](int) { Work(); };
  action.sa_flags = SA_ONSTACK;
  REQUIRE(sigaction(SIGUSR1, &action, nullptr) == 0);
  for (int i = 0; i < 3; ++i) raise(SIGUSR1);
  alternate.ss_flags = SS_DISABLE;
  REQUIRE(sigaltstack(&alternate, nullptr) == 0);
}

ucontext_t outside;

void RunFiber(size_t bytes) {
  const Stack stack(bytes);
  ucontext_t fiber;
  REQUIRE(getcontext(&fiber) == 0);
  fiber.uc_stack.ss_sp = stack.start();
  fiber.uc_stack.ss_size = stack.bytes;
  fiber.uc_link = &outside;
  makecontext(&fiber, &Work, 0);
  REQUIRE(swapcontext(&outside, &fiber) == 0);
}

}  // namespace

int main() {
  RunFiber(size_t{16} << 10);  // makes the profiler
  // The kernel's part of an alternate stack depends on the processor's registers.
  const size_t kernels = std::max<size_t>(getauxval(AT_MINSIGSTKSZ), 2048);
  for (int round = 0; round < 3; ++round) {
    for (const size_t bytes :
         {static_cast<size_t>(PTHREAD_STACK_MIN), size_t{20} << 10, size_t{32} << 10, size_t{64} << 10}) {
      RunThread(bytes, 4096);
      RunThread(bytes, 0);
    }
    for (const size_t bytes : {size_t{8} << 10, size_t{16} << 10, size_t{64} << 10}) {
      if (bytes >= kernels + 4608) RunOnAlternateStack(bytes);
      RunFiber(bytes);
    }
  }
  std::puts("done");
}
