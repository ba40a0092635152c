// Unmounts /proc before it first allocates.
#include <sched.h>
#include <sys/mount.h>

#include "tests/hostile/hostile.h"

int main() {
  REQUIRE(unshare(CLONE_NEWNS) == 0);
  REQUIRE(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
  REQUIRE(umount2("/proc", MNT_DETACH) == 0);
  REQUIRE(access("/proc/self", F_OK) != 0);
  Churn(10);
  Allocate(1000);
  std::puts("done");
}
