// _exit and _Exit, as the whole process finds them once this library is preloaded: the profile is written first.
// Not here: how (src/api/exit_writer.h).
#include <sys/syscall.h>
#include <unistd.h>

#include "src/api/exit_writer.h"

extern "C" {

[[noreturn, gnu::visibility("default")]] void _exit(int status) {
  hbmprof::internal::WriteBeforeImmediateExit();
  while (true) syscall(SYS_exit_group, status);
}

[[noreturn, gnu::visibility("default")]] void _Exit(int status) { _exit(status); }
}
