#include "src/backends/cuda/driver/driver_table.h"

#include <dlfcn.h>

#include <atomic>

#include "src/base/linker_error.h"

// The injected library defines HBMPROF_DLSYM as the name of a function that calls the C library's dlsym: inside that
// library the name dlsym refers to its own dlsym.
#ifdef HBMPROF_DLSYM
extern "C" void* HBMPROF_DLSYM(void* library, const char* name);
#else
#define HBMPROF_DLSYM dlsym
#endif

namespace hbmprof::internal {

void* FindSymbol(void* library, const char* name) { return HBMPROF_DLSYM(library, name); }

LoadedDriver::LoadedDriver() : library_(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {}

LoadedDriver::~LoadedDriver() {
  if (library_ != nullptr) dlclose(library_);
  if (has_failed_ || library_ == nullptr) ClearLinkerError();
}

void* LoadedDriver::Find(const char* name) {
  void* const function = library_ == nullptr ? nullptr : FindSymbol(library_, name);
  has_failed_ = has_failed_ || function == nullptr;
  return function;
}

void* CudaDriverLibrary() {
  static std::atomic<void*> found{nullptr};
  if (void* library = found.load(std::memory_order_acquire)) return library;
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr) {
    found.store(library, std::memory_order_release);
  } else {
    ClearLinkerError();
  }
  return library;
}

namespace cuda_driver {
namespace {

// An element is null if the driver does not have the function. Threads that fill the table at the same time write the
// same values.
std::atomic<void*> functions[kEntryCount];
std::atomic<bool> is_filled{false};

}  // namespace

constexpr const char* kEntryNames[kEntryCount] = {
#define CALL(name, parameters, arguments, role) #name,
#include "src/backends/cuda/driver/driver_calls.inc"
#define QUERY(name, parameters, arguments) #name,
#include "src/backends/cuda/driver/driver_calls.inc"
};

bool LoadDriverFunctions() {
  if (is_filled.load(std::memory_order_acquire)) return true;
  void* library = CudaDriverLibrary();
  if (library == nullptr) return false;
  for (int i = 0; i < kEntryCount; ++i) {
    functions[i].store(FindSymbol(library, kEntryNames[i]), std::memory_order_relaxed);
  }
  ClearLinkerError();  // if the last functions are missing
  is_filled.store(true, std::memory_order_release);
  return true;
}

void SetDriverFunction(int entry, void* function) { functions[entry].store(function, std::memory_order_release); }

void* DriverFunction(int entry) {
  return LoadDriverFunctions() ? functions[entry].load(std::memory_order_relaxed) : nullptr;
}

void* FunctionToCall(int entry) {
  if (is_filled.load(std::memory_order_acquire)) return functions[entry].load(std::memory_order_relaxed);
  return LoadedDriver().Find(kEntryNames[entry]);
}

}  // namespace cuda_driver
}  // namespace hbmprof::internal
