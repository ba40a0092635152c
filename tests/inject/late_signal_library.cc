// Preloaded into the command `hbmprof run`. After the command has waited for the program, another process sends SIGTERM
// to the command. Prints a line on stderr for this, and one for each signal that the command sends afterwards.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {
bool sent = false;
}

extern "C" pid_t waitpid(pid_t process, int* status, int options) {
  const auto wait = [](pid_t one, int* end, int how) {
    return static_cast<pid_t>(syscall(SYS_wait4, one, end, how, nullptr));
  };
  const pid_t result = wait(process, status, options);
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  if (result <= 0 || sent || sigismember(&blocked, SIGTERM) == 0) return result;  // not the wait for the program
  sent = true;
  const pid_t self = getpid();
  const pid_t sender = fork();
  if (sender == 0) _exit(static_cast<int>(syscall(SYS_kill, self, SIGTERM)));
  wait(sender, nullptr, 0);
  fprintf(stderr, "late signal sent\n");
  return result;
}

extern "C" int kill(pid_t process, int number) {
  if (sent) fprintf(stderr, "signal %d sent on to %d\n", number, process);
  return static_cast<int>(syscall(SYS_kill, process, number));
}
