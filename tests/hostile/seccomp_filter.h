// A filter of system calls, as sandboxes set one up.
#ifndef HBMPROF_TESTS_HOSTILE_SECCOMP_FILTER_H_
#define HBMPROF_TESTS_HOSTILE_SECCOMP_FILTER_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>

#include "tests/hostile/hostile.h"

// From now on each call that opens, links or renames a file has the result `action` (SECCOMP_RET_...).
inline void ForbidOpening(unsigned action) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_open, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rename, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_linkat, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, action),
  };
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

#endif  // HBMPROF_TESTS_HOSTILE_SECCOMP_FILTER_H_
