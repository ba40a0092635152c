// A filter of system calls, as sandboxes set one up.
#ifndef HBMPROF_TESTS_HOSTILE_SECCOMP_FILTER_H_
#define HBMPROF_TESTS_HOSTILE_SECCOMP_FILTER_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <initializer_list>
#include <vector>

#include "tests/hostile/hostile.h"

// From now on each of these system calls has the result `action` (SECCOMP_RET_...).
inline void Forbid(std::initializer_list<unsigned> calls, unsigned action) {
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, action));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// The calls that open, link or rename a file.
inline void ForbidOpening(unsigned action) { Forbid({SYS_open, SYS_openat, SYS_rename, SYS_linkat}, action); }

#endif  // HBMPROF_TESTS_HOSTILE_SECCOMP_FILTER_H_
