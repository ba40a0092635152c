// A library that looks up the next definition of its own function, as interposers do, and a function of libcuda.
#include <dlfcn.h>
#include <unistd.h>

extern "C" {

pid_t getppid(void) noexcept { return -1; }

// The next definition of getppid after this library's: the C library's.
void* next_getppid() { return dlsym(RTLD_NEXT, "getppid"); }
void* own_getppid() { return reinterpret_cast<void*>(&getppid); }
}
