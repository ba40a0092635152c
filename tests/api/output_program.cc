// A program that records 1,000 bytes and then changes its process so that a profile at exit is hard to write.
//
//   output_program leak                ends
//   output_program hold COMMAND...     runs a command and ends
//   output_program forks N             before it records, N forked children record 1 byte and end, all at once
//   output_program reopen FILE         closes standard error, opens FILE (which gets its number), writes a line to it
//   output_program broken COMMAND...   becomes a command whose standard error is a pipe without a reader
//   output_program nobody COMMAND...   becomes a command of the user nobody
//   output_program drop                continues as the user nobody
//   output_program root DIR            makes DIR its root, and continues as the user nobody
//   output_program filter CALL...      allows itself no system calls but these numbers; any other ends it
//   output_program copies LIBRARY      records 2,000 bytes in a library that contains a copy of hbmprof
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hbmprof/c_api.h"

namespace {

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::_Exit(3);
}
void Require(bool holds, const char* what) {
  if (!holds) Fail(what);
}

char memory[1024];

void BecomeNobody() { Require(setgid(65534) == 0 && setuid(65534) == 0, "setuid"); }

int Run(char** command) {
  const pid_t child = fork();
  if (child == 0) {
    execvp(command[0], command);
    Fail(command[0]);
  }
  int status = 0;
  Require(child > 0 && waitpid(child, &status, 0) == child, "fork");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ForkMany(int count) {
  int gate[2];
  Require(pipe(gate) == 0, "pipe");
  for (int i = 0; i < count; ++i) {
    const pid_t child = fork();
    Require(child >= 0, "fork");
    if (child != 0) continue;
    close(gate[1]);
    char byte;
    static_cast<void>(!read(gate[0], &byte, 1));
    hbmprof_record_alloc(&memory[1], 1, 0);
    std::exit(0);
  }
  close(gate[1]);
  for (int i = 0; i < count; ++i) {
    int status = 0;
    Require(wait(&status) > 0 && status == 0, "a child");
  }
}

void Filter(char** calls, int count) {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (int i = 0; i < count; ++i) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(std::atoi(calls[i])), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  Require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  Require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "seccomp");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "nobody" || mode == "broken") {
    if (mode == "nobody") BecomeNobody();
    int ends[2];
    Require(pipe(ends) == 0, "pipe");
    if (mode == "broken") dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    execv(argv[2], argv + 2);
    Fail(argv[2]);
  }
  if (mode == "forks") {
    hbmprof_enabled();  // makes the profiler, whose file the children inherit
    ForkMany(std::atoi(argv[2]));
  }
  hbmprof_record_alloc(&memory[0], 1000, 0);
  if (mode == "hold") return Run(argv + 2);
  if (mode == "exec") {
    execv(argv[2], argv + 2);
    Fail(argv[2]);
  }
  if (mode == "reopen") {
    close(STDERR_FILENO);
    Require(open(argv[2], O_CREAT | O_WRONLY, 0644) == STDERR_FILENO, "open");
    Require(write(STDERR_FILENO, "its own\n", 8) == 8, "write");
  }
  if (mode == "drop") BecomeNobody();
  if (mode == "root") {
    Require(chroot(argv[2]) == 0 && chdir("/") == 0, "chroot");
    BecomeNobody();
  }
  if (mode == "filter") Filter(argv + 2, argc - 2);
  if (mode == "copies") {
    void* const library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    Require(library != nullptr, "dlopen");
    reinterpret_cast<void (*)(size_t)>(dlsym(library, "RecordInCopy"))(2000);
  }
  return 0;
}
