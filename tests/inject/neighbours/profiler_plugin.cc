// A profiler plugin as NCCL loads it: a table of functions that NCCL calls at its events, from several threads. It
// allocates pinned memory with the driver that it finds itself.
#include "tests/inject/neighbours/profiler_plugin.h"

#include <dlfcn.h>

#include "src/backends/cuda/shared/driver_abi.h"
#include "tests/inject/neighbours/counts.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types

namespace {

void* const driver = dlopen("libcuda.so.1", RTLD_NOW);

int Init(void** context) {
  return reinterpret_cast<CUresult (*)(void**, size_t)>(dlsym(driver, "cuMemAllocHost_v2"))(context, 1000);
}
int StartEvent(void*) {
  ++neighbour::allocations;
  return 0;
}
int StopEvent(void*) {
  ++neighbour::frees;
  return 0;
}
int Finalize(void* context) { return reinterpret_cast<CUresult (*)(void*)>(dlsym(driver, "cuMemFreeHost"))(context); }

}  // namespace

extern "C" const ProfilerPlugin profiler_plugin = {&Init, &StartEvent, &StopEvent, &Finalize};
