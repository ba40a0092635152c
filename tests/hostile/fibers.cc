// Allocates on fibers, whose stacks are heap memory of 16 KiB, and switches between them.
#include <ucontext.h>

#include <memory>
#include <vector>

#include "tests/hostile/hostile.h"

namespace {

constexpr int kFibers = 64;
constexpr size_t kStackBytes = 16 << 10;

ucontext_t scheduler;
ucontext_t fibers[kFibers];

void Fiber(int number) {
  Allocate(1000);
  swapcontext(&fibers[number], &scheduler);
  Churn(20);
}

}  // namespace

int main() {
  std::vector<std::unique_ptr<char[]>> stacks;
  for (volatile int i = 0; i < kFibers; i = i + 1) {  // volatile, because getcontext() can return twice
    stacks.push_back(std::make_unique<char[]>(kStackBytes));
    REQUIRE(getcontext(&fibers[i]) == 0);
    fibers[i].uc_stack.ss_sp = stacks.back().get();
    fibers[i].uc_stack.ss_size = kStackBytes;
    fibers[i].uc_link = &scheduler;
    makecontext(&fibers[i], reinterpret_cast<void (*)()>(&Fiber), 1, i);
  }
  for (int round = 0; round < 2; ++round) {
    for (ucontext_t& fiber : fibers) REQUIRE(swapcontext(&scheduler, &fiber) == 0);
  }
  std::puts("done");
}
