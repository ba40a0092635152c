// Closes descriptor 2 and opens its own file, which gets this number. The profile at exit cannot be written; the
// message about that must not be written into the file.
#include <sys/resource.h>

#include <cstring>

#include "tests/hostile/hostile.h"

int main() {
  Allocate(1000);
  close(2);
  // While a thread of hbmprof opens a file, it occupies the free ones of the descriptors 0, 1 and 2 (docs/limits.md).
  for (int own; (own = open("own", O_CREAT | O_RDWR | O_APPEND, 0644)) != 2;) {
    REQUIRE(own > 2);
    close(own);
  }
  REQUIRE(write(2, "own text\n", 9) == 9);
  Churn(10);
  // No file can be opened any more.
  const rlimit limit = {3, 3};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  std::puts("done");
}
