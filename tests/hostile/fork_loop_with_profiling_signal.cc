// Forks again and again while a SIGPROF handler allocates: in the parent, in the child, and inside fork() itself.
#include <sys/time.h>
#include <sys/wait.h>

#include <csignal>

#include "tests/hostile/hostile.h"

int main() {
  Churn(10);
  std::signal(SIGPROF, [](int) { Churn(3); });
  itimerval often = {};
  often.it_interval.tv_usec = often.it_value.tv_usec = 1000;
  setitimer(ITIMER_PROF, &often, nullptr);
  for (int i = 0; i < 300; ++i) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      Churn(10);
      raise(SIGPROF);
      _exit(i % 100);
    }
    Churn(10);
    int status = 0;
    while (waitpid(child, &status, 0) != child) continue;
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == i % 100);
  }
  std::puts("done");
}
