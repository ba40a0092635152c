// A preloaded library that interposes the driver in the way of HAMi-core, which limits the memory of containers:
//   - it exports dlsym, and finds the next one with dlvsym; so does it with dlopen, unlike HAMi-core;
//   - its dlsym returns what its own library has for a name that begins with "cu", and does not jump: the C library
//   sees
//     it as the caller of a search with RTLD_NEXT. It returns null if a thread finds the same function with RTLD_NEXT
//     again;
//   - it exports the driver's functions, for programs that link them;
//   - its cuGetProcAddress returns its own functions by their names, without regard to the version.
// With EXPORTS_ONLY it exports the driver's functions and nothing else.
#include <dlfcn.h>

#include <cstring>
#include <mutex>

#include "src/backends/cuda/shared/driver_abi.h"
#include "src/base/compat/first_glibc.h"
#include "tests/inject/neighbours/counts.h"

using namespace hbmprof::internal::cuda_driver;  // NOLINT: its types
using neighbour::allocations;
using neighbour::frees;

namespace {

using Dlsym = void*(void*, const char*);
Dlsym* next_dlsym = nullptr;
void* itself = nullptr;
void* driver = nullptr;
std::once_flag once;

void FindNext() {
#ifdef EXPORTS_ONLY
  next_dlsym = &dlsym;
#else
  next_dlsym = reinterpret_cast<Dlsym*>(dlvsym(RTLD_NEXT, "dlsym", HBMPROF_FIRST_GLIBC));
#endif
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&FindNext), &info) != 0) itself = dlopen(info.dli_fname, RTLD_LAZY);
}

#ifndef EXPORTS_ONLY
// Returns whether this thread has been given the function before.
bool IsRepeated(void* function) {
  static thread_local void* given[100];
  static thread_local int count = 0;
  for (int i = 0; i < count; ++i) {
    if (given[i] == function) return true;
  }
  if (count < 100) given[count++] = function;
  return false;
}
#endif

// The driver's function, for the wrapper of the same name.
template <typename Function>
Function* Real(Function*, const char* name) {
  if (driver == nullptr) {
    std::call_once(once, &FindNext);
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
  }
#ifdef EXPORTS_ONLY
  if (void* const next = dlsym(RTLD_NEXT, name)) return reinterpret_cast<Function*>(next);
#endif
  return reinterpret_cast<Function*>(next_dlsym(driver, name));
}

}  // namespace

extern "C" {

#ifndef EXPORTS_ONLY
void* dlsym(void* handle, const char* name) noexcept {
  std::call_once(once, &FindNext);
  if (handle == RTLD_NEXT) {
    void* const function = next_dlsym(RTLD_NEXT, name);
    return IsRepeated(function) ? nullptr : function;
  }
  if (std::strncmp(name, "cu", 2) == 0) {
    if (void* const own = next_dlsym(itself, name)) return own;
  }
  return next_dlsym(handle, name);
}

#endif

#ifndef EXPORTS_ONLY
void* dlopen(const char* file, int flags) noexcept {
  using Dlopen = void*(const char*, int);
  static auto* const next = reinterpret_cast<Dlopen*>(dlvsym(RTLD_NEXT, "dlopen", HBMPROF_FIRST_GLIBC));
  // The program's, not those of this library or of hbmprof.
  if (file != nullptr && std::strcmp(file, "libcuda.so.1") == 0 && flags == RTLD_NOW) ++neighbour::opened;
  return next(file, flags);
}
#endif

#define WRAP(name, count, parameters, arguments)  \
  CUresult name parameters;                       \
  CUresult name parameters {                      \
    static auto* const real = Real(&name, #name); \
    const neighbour::Call call(count);            \
    return real arguments;                        \
  }
WRAP(cuMemAlloc_v2, allocations, (CUdeviceptr * ptr, size_t bytes), (ptr, bytes))
WRAP(cuMemAllocManaged, allocations, (CUdeviceptr * ptr, size_t bytes, Flags flags), (ptr, bytes, flags))
WRAP(cuMemAllocHost_v2, allocations, (void** ptr, size_t bytes), (ptr, bytes))
WRAP(cuMemAllocAsync, allocations, (CUdeviceptr * ptr, size_t bytes, Handle stream), (ptr, bytes, stream))
WRAP(cuMemCreate, allocations,
     (CUmemGenericAllocationHandle * handle, size_t bytes, const MemAllocationProp* properties, Flags64 flags),
     (handle, bytes, properties, flags))
WRAP(cuMemFree_v2, frees, (CUdeviceptr ptr), (ptr))
WRAP(cuMemFreeHost, frees, (void* ptr), (ptr))
WRAP(cuMemRelease, frees, (CUmemGenericAllocationHandle handle), (handle))
#undef WRAP

#ifndef EXPORTS_ONLY
CUresult cuGetProcAddress_v2(const char* name, void** function, int version, Flags64 flags, int* status);
CUresult cuGetProcAddress_v2(const char* name, void** function, int version, Flags64 flags, int* status) {
  static auto* const real = Real(&cuGetProcAddress_v2, "cuGetProcAddress_v2");
  char second[100];
  std::snprintf(second, sizeof(second), "%s_v2", name);
  *function = next_dlsym(itself, second);
  if (*function == nullptr) *function = next_dlsym(itself, name);
  return *function != nullptr ? kSuccess : real(name, function, version, flags, status);
}
#endif
}
