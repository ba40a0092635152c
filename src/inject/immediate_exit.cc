// _exit and _Exit, which replace those of the C library in the whole process when this library is preloaded. They write
// the profile first. Not in this file: the code that writes it (src/api/exit_writer.h).
#include <sys/syscall.h>
#include <unistd.h>

#include "src/api/exit_writer.h"

extern "C" {

[[gnu::visibility("default")]] void _exit(int status) {
  hbmprof::internal::WriteBeforeImmediateExit();
  while (true) syscall(SYS_exit_group, status);
}

[[gnu::visibility("default")]] void _Exit(int status) { _exit(status); }
}
