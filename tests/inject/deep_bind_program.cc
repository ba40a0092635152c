// Loads a library with RTLD_DEEPBIND and lets it allocate through the driver.
#include <dlfcn.h>

#include <cstdio>

int main(int, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  auto* run = reinterpret_cast<int (*)()>(dlsym(library, "run"));
  if (run() != 0) return 1;
  std::printf("done\n");
  return 0;
}
