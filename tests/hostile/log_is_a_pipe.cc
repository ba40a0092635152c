// Its log is a named pipe that nobody reads.
#include "tests/hostile/hostile.h"

int main() {
  REQUIRE(mkfifo("log", 0600) == 0 && setenv("HBMPROF_LOG", "log", 1) == 0);
  Allocate(1000);
#if defined(HOSTILE_LINKED)
  hbmprof_log_memory("step");
#endif
  std::puts("done");
}
