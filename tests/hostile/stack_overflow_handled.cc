// Overflows its stack, catches the fault on another stack, allocates there, and continues elsewhere.
#include <setjmp.h>
#include <signal.h>

#include <vector>

#include "tests/hostile/hostile.h"

namespace {

sigjmp_buf back;

void Handle(int) {
  Churn(3);
  siglongjmp(back, 1);
}

[[gnu::noinline]] int Recurse(int depth) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(depth);
  if (depth % 64 == 0) Churn(1);
  if (depth < 0) return 0;
  return Recurse(depth + 1) + frame[0];
}

}  // namespace

int main() {
  Churn(10);
  std::vector<char> stack(64 << 10);
  stack_t other = {};
  other.ss_sp = stack.data();
  other.ss_size = stack.size();
  REQUIRE(sigaltstack(&other, nullptr) == 0);
  struct sigaction action = {};
  action.sa_handler = &Handle;
  action.sa_flags = SA_ONSTACK;
  REQUIRE(sigaction(SIGSEGV, &action, nullptr) == 0);
  for (volatile int round = 0; round < 3; round = round + 1) {
    if (sigsetjmp(back, 1) == 0) return Recurse(1);
    Churn(10);
  }
  std::puts("done");
}
