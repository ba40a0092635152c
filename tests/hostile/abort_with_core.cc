// Enables core dumps and aborts with live allocations. hbmprof must not catch the signal or end the process before it.
#include <sys/resource.h>

#include "tests/hostile/hostile.h"

int main() {
  rlimit cores = {};
  getrlimit(RLIMIT_CORE, &cores);
  cores.rlim_cur = cores.rlim_max;
  setrlimit(RLIMIT_CORE, &cores);
  Allocate(1000);
  std::abort();
}
