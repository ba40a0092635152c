// A library that looks up its own function's name after itself, as interposers do, and that has functions with the
// names of a function of the C library and of one of libcuda.
#include <dlfcn.h>
#include <unistd.h>

extern "C" {

pid_t getppid(void) noexcept { return -1; }

int cuMemAlloc_v2() { return -1; }

// The next definition of getppid after this library's: the C library's.
void* next_getppid() { return dlsym(RTLD_NEXT, "getppid"); }
void* own_getppid() { return reinterpret_cast<void*>(&getppid); }
}
