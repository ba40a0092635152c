// A library as the variables of Nsight's tools name it: the driver loads it from CUDA_INJECTION64_PATH in cuInit, and
// NVTX from NVTX_INJECTION64_PATH at the first range. It counts the loads as allocations. Preloaded, it subscribes to
// CUPTI's callbacks, as profilers of frameworks do, if NEIGHBOUR_CUPTI names the library, and prints CUPTI's answers.
#include <dlfcn.h>

#include "tests/inject/neighbours/counts.h"

namespace {

using Callback = void(void*, int, unsigned, const void*);

[[gnu::constructor]] void Subscribe() {
  const char* const name = std::getenv("NEIGHBOUR_CUPTI");
  if (name == nullptr) return;
  void* const cupti = dlopen(name, RTLD_NOW);
  auto* const subscribe =
      cupti == nullptr ? nullptr : reinterpret_cast<int (*)(void**, Callback*, void*)>(dlsym(cupti, "cuptiSubscribe"));
  auto* const enable =
      cupti == nullptr ? nullptr : reinterpret_cast<int (*)(unsigned, void*, int)>(dlsym(cupti, "cuptiEnableDomain"));
  if (subscribe == nullptr || enable == nullptr) {
    std::printf("no CUPTI\n");
    return;
  }
  void* subscriber = nullptr;
  const int subscribed = subscribe(
      &subscriber, [](void*, int, unsigned, const void*) {}, nullptr);
  std::printf("cuptiSubscribe: %d, cuptiEnableDomain: %d\n", subscribed, enable(1, subscriber, 1));
  std::fflush(stdout);
}

}  // namespace

extern "C" {
int InitializeInjection() {
  ++neighbour::allocations;
  return 1;
}
int InitializeInjectionNvtx2(void*) {
  ++neighbour::allocations;
  return 1;
}
}
