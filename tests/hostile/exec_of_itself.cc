// Replaces itself by the same program with exec: from the main thread, from another thread, and in a forked child.
#include <initializer_list>
#include <thread>

#include "tests/hostile/hostile.h"

namespace {

[[noreturn]] void Again(const char* round) {
  execl("/proc/self/exe", "again", round, nullptr);
  _exit(98);
}

}  // namespace

int main(int argc, char** argv) {
  Allocate(1000);
  Churn(10);
  const int round = argc == 2 ? std::atoi(argv[1]) : 0;
  if (round == 0) Again("1");
  if (round == 1) {
    std::thread([] { Again("2"); }).join();
  }
  if (round == 2) {
    for (const char* next : {"3", "4"}) {
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) Again(next);
      WaitFor(child, (next[0] - '0') << 8);
    }
    std::puts("done");
    return 0;
  }
  return round;
}
