// Attaches the injected library argv[1] to its own process twice, with the libcuda.so.1 that LD_LIBRARY_PATH names, if
// there is one. The real driver works without a device. Prints the codes.
#include <dlfcn.h>

#include <cstdio>

#include "src/backends/cuda/shared/driver_abi.h"
#include "tests/support/check.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

int main(int, char** argv) {
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  auto* const attach = reinterpret_cast<int (*)(const char*)>(dlsym(library, "hbmprof_attach"));
  auto* const detach = reinterpret_cast<int (*)()>(dlsym(library, "hbmprof_detach"));
  std::printf("without a driver %d %d\n", attach(nullptr), detach());
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 0;
  auto* const init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto* const allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(dlsym(driver, "cuMemAlloc_v2"));
  CUdeviceptr ptr = 0;
  const CUresult first = init(0);
  const CUresult second = allocate(&ptr, 4096);
  for (int i = 0; i < 2; ++i) {
    std::printf("attach %d\n", attach(nullptr));
    std::fflush(stdout);
    CHECK_THAT(init(0) == first && allocate(&ptr, 4096) == second);
    char line[16];
    CHECK_THAT(std::fgets(line, sizeof(line), stdin) != nullptr);
    std::printf("detach %d\n", detach());
    CHECK_THAT(init(0) == first && allocate(&ptr, 4096) == second);
  }
  return 0;
}
