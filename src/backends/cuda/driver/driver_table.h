// The table of the CUDA driver's functions that hbmprof calls: the wrapped functions (CALL) and the queries (QUERY) of
// driver_calls.inc. It is filled at the first use after the process has loaded libcuda.so.1, and from then on that
// library stays loaded. Everything here is thread-safe, and uses no memory and no lock of hbmprof.
//
// Not in this file: the wrappers (src/inject/driver_shim.h), the use of the results (driver_queries.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_TABLE_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal {

// Calls the C library's dlsym, also in the injected library, which has a dlsym of its own.
void* FindSymbol(void* library, const char* name);

// The process's libcuda.so.1; null while the process has not loaded it. From the first call that finds it, the library
// stays loaded.
void* CudaDriverLibrary();

// The process's libcuda.so.1, which stays loaded while this object lives.
class LoadedDriver {
 public:
  LoadedDriver();
  ~LoadedDriver();
  LoadedDriver(const LoadedDriver&) = delete;
  LoadedDriver& operator=(const LoadedDriver&) = delete;

  bool is_loaded() const { return library_ != nullptr; }
  // Returns null if the driver is not loaded or lacks the function.
  void* Find(const char* name);

 private:
  void* const library_;
  bool has_failed_ = false;
};

namespace cuda_driver {

// Wrapped functions come first.
enum Entry : int {
#define CALL(name, parameters, arguments, role) k_##name,
#include "src/backends/cuda/driver/driver_calls.inc"
  kWrappedCount,
  kLastWrapped = kWrappedCount - 1,
#define QUERY(name, parameters, arguments) k_##name,
#include "src/backends/cuda/driver/driver_calls.inc"
  kEntryCount
};

// By Entry.
extern const char* const kEntryNames[kEntryCount];

// Fills the table if the process has loaded the driver; returns whether it is filled.
bool LoadDriverFunctions();

// From now on `function` is called as the driver's function with the number `entry`: what the driver's own entry jumps
// to, after that entry was changed to jump to the wrapper. REQUIRES: the table is filled.
void SetDriverFunction(int entry, void* function);

// The driver's function with the number `entry`; null if the process has not loaded the driver or the driver lacks it.
void* DriverFunction(int entry);

// The same, but does not fill the table: a program that has made no tracked call can unload the driver.
void* FunctionToCall(int entry);

// query::cuMemGetInfo_v2(...) calls the driver's function of that name and returns its result; kErrorNotFound if there
// is no such function.
namespace query {
#define QUERY(name, parameters, arguments)                                        \
  inline CUresult name parameters {                                               \
    using Function = CUresult parameters;                                         \
    auto* const function = reinterpret_cast<Function*>(DriverFunction(k_##name)); \
    return function == nullptr ? kErrorNotFound : function arguments;             \
  }
#include "src/backends/cuda/driver/driver_calls.inc"
}  // namespace query

}  // namespace cuda_driver
}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_TABLE_H_
