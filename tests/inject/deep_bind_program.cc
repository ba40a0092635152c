// Loads a library with RTLD_DEEPBIND twice, and lets it allocate through the driver.
#include <dlfcn.h>

#include <cstdio>

int main(int, char** argv) {
  for (int i = 0; i < 2; ++i) {
    void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    auto* run = reinterpret_cast<int (*)()>(dlsym(library, "run"));
    if (run() != 0 || dlclose(library) != 0) return 1;
  }
  std::printf("done\n");
  return 0;
}
