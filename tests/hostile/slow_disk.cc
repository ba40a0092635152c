// Has a disk that takes 20 seconds for each file, and allocates, runs out of memory and forks meanwhile: the first call
// waits for 5 seconds at most, and no other call for the disk.
#include <ctime>
#include <string>

#include "tests/hostile/hostile.h"

// Takes the place of the C library's function.
extern "C" int fsync(int) {
  sleep(20);
  return 0;
}

namespace {

double Seconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

[[gnu::noinline]] void FailToAllocate() {
#if defined(HOSTILE_LINKED)
  REQUIRE(hbmprof_report_out_of_memory("Allocate", int64_t{1} << 40, 0, 0) == 1);
#elif defined(HOSTILE_DRIVER)
  hbmprof::internal::cuda_driver::CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, size_t{1} << 40) != hbmprof::internal::cuda_driver::kSuccess);
#endif
}

void Log() {
#if defined(HOSTILE_LINKED)
  hbmprof_log_memory("step");
#endif
}

// Sets the variables before hbmprof reads them. The files are beside the profile.
void RequestFiles() {
  for (const char* variable : {"HBMPROF_OUTPUT", "HBMPROF_GPU_OUTPUT"}) {
    const char* const output = getenv(variable);
    if (output == nullptr) continue;
    const std::string path = output;
    const std::string folder = path.substr(0, path.rfind('/'));
    setenv("HBMPROF_OOM_OUTPUT", (folder + "/oom.pb.gz").c_str(), 1);
    setenv("HBMPROF_RECORD", (folder + "/recording").c_str(), 1);
    setenv("HBMPROF_LOG", "/dev/null", 1);  // is not a regular file
  }
}

}  // namespace

int main() {
  RequestFiles();
  const double start = Seconds();
  Allocate(1000);
  FailToAllocate();
  Log();
  const pid_t child = fork();
  if (child == 0) {
    Log();
    exit(0);
  }
  WaitFor(child, 0);
  REQUIRE(Seconds() - start < 12);
  std::puts("done");
}
