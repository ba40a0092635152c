// A program that is linked with a driver, and that refers to a function which the driver at run time lacks: weakly if
// WEAK is defined. argv[1] is "call" to call it. What it prints must not depend on what is preloaded.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

extern "C" {
int cuInit(unsigned);
#ifdef WEAK
[[gnu::weak]]
#endif
int cuStreamBeginRecaptureToGraph(void*, int, void*, void*, void*);
}

int main(int argc, char** argv) {
  std::printf("%d\n", cuInit(0));
  for (const char* name : {"cuMemAlloc_v2", "cuStreamBeginRecaptureToGraph"}) {
    for (void* const handle : {RTLD_DEFAULT, RTLD_NEXT}) {
      const bool is_found = dlsym(handle, name) != nullptr;
      const char* const error = dlerror();
      std::printf("%s: %d %s\n", name, is_found, error == nullptr ? "" : error);
    }
  }
#ifdef WEAK
  std::printf("refers to it: %d\n", &cuStreamBeginRecaptureToGraph != nullptr);
#endif
  std::fflush(stdout);
  if (argc > 1 && std::strcmp(argv[1], "call") == 0) {
    std::printf("%d\n", cuStreamBeginRecaptureToGraph(nullptr, 0, nullptr, nullptr, nullptr));
  }
  return 0;
}
