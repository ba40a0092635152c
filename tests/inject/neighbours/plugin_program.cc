// A program that loads a profiler plugin (argv[1]) as NCCL does, and allocates between its events, in two threads.
#include <dlfcn.h>

#include <cstdio>
#include <thread>

#include "tests/inject/driver_program.h"
#include "tests/inject/neighbours/profiler_plugin.h"

int main(int, char** argv) {
  using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
  driver_program::UseDevice(0);
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  CHECK_THAT(library != nullptr);
  const auto* const plugin = static_cast<const ProfilerPlugin*>(dlsym(library, "profiler_plugin"));
  CHECK_THAT(plugin != nullptr);
  void* context = nullptr;
  CHECK_THAT(plugin->init(&context) == 0);
  const auto communicate = [&] {
    driver_program::UseDevice(0);
    plugin->start_event(context);
    const CUdeviceptr buffer = driver_program::Allocate(4096);
    plugin->stop_event(context);
    CHECK_THAT(cuMemFree_v2(buffer) == kSuccess);
  };
  std::thread one(communicate), two(communicate);
  one.join();
  two.join();
  CHECK_THAT(plugin->finalize(context) == 0);
  driver_program::Allocate(12345);
  std::printf("done\n");
  return 0;
}
