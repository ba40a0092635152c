// A program that allocates through the double of PyTorch's libraries, which lies as argv[1] says. argv[2], if there is
// one, is the double's path. It is loaded twice, the second time at another address.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>

#include "tests/inject/torch_double.h"

namespace {

bool Allocate(const char* path, const char* lie, bool closes) {
  void* const library = dlopen(path, RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return false;
  }
  const auto allocate = reinterpret_cast<decltype(&torch_double_allocate)>(dlsym(library, "torch_double_allocate"));
  const auto reports = reinterpret_cast<decltype(&torch_double_reports)>(dlsym(library, "torch_double_reports"));
  const int made = allocate(lie);
  const int got = reports();
  std::printf("made %d got %d\n", made, got);
  if (!closes) return made == got;
  Dl_info info = {};
  dladdr(reinterpret_cast<void*>(reports), &info);
  dlclose(library);
  // Where it was, nothing can be loaded any more.
  mmap(info.dli_fbase, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  return made == got;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) return Allocate(argv[2], argv[1], true) && Allocate(argv[2], argv[1], true) ? 0 : 1;
  return Allocate("libc10_cuda.so", argc > 1 ? argv[1] : "", false) ? 0 : 1;
}
