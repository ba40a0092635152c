// Limits its address space to little more than it has, before and after the first allocation. hbmprof must work
// without the memory that it cannot get.
#include <malloc.h>
#include <sys/resource.h>

#include <cstdlib>

#include "tests/hostile/hostile.h"

namespace {

// Makes malloc keep 16 MiB for this thread. A thread of hbmprof that writes a profile may have the rest at the instant
// at which the program needs memory.
void KeepFreeMemory() {
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  void* pieces[256];
  for (void*& piece : pieces) piece = std::malloc(64 << 10);
  for (void* const piece : pieces) std::free(piece);
}

void Limit(size_t more) {
  size_t pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  REQUIRE(file != nullptr && std::fscanf(file, "%zu", &pages) == 1);
  std::fclose(file);
  const rlimit limit = {pages * 4096 + more, RLIM_INFINITY};
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
}

}  // namespace

int main(int argc, char**) {
  if (argc == 1) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      execl("/proc/self/exe", "again", "first", nullptr);
      _exit(98);
    }
    WaitFor(child, 0);
    Churn(1000);
  }
  KeepFreeMemory();
#ifdef HOSTILE_DRIVER
  Limit(64 << 20);  // the driver itself needs some
#else
  Limit(1 << 20);
#endif
  for (int i = 0; i < 2000; ++i) Allocate(100);
  Churn(1000);
  std::puts("done");
}
