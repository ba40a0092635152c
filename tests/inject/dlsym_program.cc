// Prints what dlsym finds, in words that must not depend on what is preloaded.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

extern "C" {
void* next_getppid();
void* own_getppid();
[[gnu::weak]] int cuMemFree_v2(unsigned long long);
}

namespace {

void Print(const char* what, const void* function) {
  Dl_info info = {};
  const bool known = function != nullptr && dladdr(function, &info) != 0;
  std::printf("%s: %s\n", what,
              !known                                                 ? "nothing"
              : std::strstr(info.dli_fname, "libc.so") != nullptr    ? "the C library's"
              : std::strstr(info.dli_fname, "libcuda.so") != nullptr ? "the driver's"
                                                                     : "a library's own");
}

}  // namespace

int main() {
  Print("RTLD_NEXT from a library", next_getppid());
  Print("RTLD_NEXT from the program", dlsym(RTLD_NEXT, "getppid"));
  Print("its own", own_getppid());
  Print("RTLD_DEFAULT", dlsym(RTLD_DEFAULT, "puts"));
  void* c_library = dlopen("libc.so.6", RTLD_NOW);
  Print("a handle", dlsym(c_library, "puts"));
  Print("what is not there", dlsym(c_library, "cuMemAlloc_v2"));
  std::printf("%s\n", dlerror() != nullptr ? "with an error" : "without an error");
  void* library = dlopen("libinject_dlsym_library.so", RTLD_NOW | RTLD_NOLOAD);
  Print("another library's function of a wrapped name", dlsym(library, "cuMemAlloc_v2"));
  std::printf("%s\n", dlerror() != nullptr ? "with an error" : "without an error");
  Print("RTLD_DEFAULT, without a driver", dlsym(RTLD_DEFAULT, "cuMemFree_v2"));
  std::printf("%s\n", dlerror() != nullptr ? "with an error" : "without an error");
  Print("a weak reference, without a driver", reinterpret_cast<void*>(&cuMemFree_v2));
  Print("RTLD_DEFAULT, a library's function", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  Print("a name that begins like the driver's", dlsym(c_library, "cuserid"));
  Print("an empty name", dlsym(c_library, ""));
  static_cast<void>(dlerror());
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  Print("a call that is not wrapped", dlsym(driver, "cuInit"));
  return 0;
}
