// The wrappers of the functions that the vendors' tables list as wrapped. The functions below find the wrapper for a
// name or for a function of a driver. Everything here is thread-safe.
//
// Not in this file: how the calls of programs reach the wrappers (linker/dynamic_linker.cc, attach.cc).
#ifndef HBMPROF_SRC_INJECT_DRIVER_SHIM_H_
#define HBMPROF_SRC_INJECT_DRIVER_SHIM_H_

#include <link.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/out_of_memory.h"
#include "hbmprof/snapshot.h"
#include "src/backends/calls/adapter.h"
#include "src/backends/calls/driver.h"

namespace hbmprof::internal {

// Callbacks that src/inject/gpu_preload.cc defines. The wrappers call PrepareTracking before they first use
// Profiler::Default(), possibly in several threads at the same time, TrackingStarts once, after that, and
// MemoryEnds in each tracked call that ends memory, before its records end; OpenCL's layer calls it for each event.
// DeviceEnds: the same for a call that ends a device and its memory, as the last one of a program that ends.
void PrepareTracking();
void TrackingStarts();
void MemoryEnds();
void DeviceEnds(DriverAdapter& tracker, int device);
// The wrappers call it after a call of the driver has failed because there was no memory. `caller` is the caller of the
// wrapper, `pages` says which pages the call wanted. Throws std::bad_alloc if the host has no memory to report it.
void AllocationFailed(const FailedAllocation& failure, const Caller& caller, uint64_t pages);

// The wrappers call it after a driver's profiler was started or stopped, as by cuProfilerStart.
void ProfilerCalled(bool starts);

// The wrappers call it before mapped memory is unmapped (src/inject/injected_profiler.cc).
void MemoryUnmaps(uint64_t address, size_t bytes);

// Calls MemoryFromBefore::Expect for all drivers in use.
void ExpectMemoryFromBefore(const Caller& stack);

// For attaching, to CUDA. The first function makes the tracker, if there is none; it returns null if the host has no
// memory. The second one measures the devices with an active primary context (MemoryFromBefore::Measure). The third one
// gives the allocation that contains `address`, which is memory from before, a record of its own, and returns whether
// it did.
MemoryFromBefore* MemoryFromBeforeOfProcess();
void MeasureMemoryFromBefore(int attempts);
bool AdoptMemoryFromBefore(uint64_t address);
// See DriverAdapter::Follow.
void FollowCalls(bool follow);
// Returns the number of outermost tracked calls that have ended, modulo 2^32.
uint32_t EndedCalls();

// Adds the warning that nothing is recorded although hbmprof is attached (attach.cc). Throws std::bad_alloc.
void AddAttachWarnings(Snapshot* snapshot);

// A driver whose functions are wrapped.
using Visit = void(const char* name, const char* state, const char* reason, void* argument);
struct WrappedDriver {
  Driver& driver;
  void* const* wrappers;  // by Entry
  DriverAdapter* (*tracker)();
  DriverQueries::Range (*range_of)(uint64_t address);
  void (*cover)(Visit* visit, void* argument);  // see hbmprof_driver_coverage
};
extern const WrappedDriver wrapped_drivers[5];

// Returns the wrapper of the function `name`, null if that is not wrapped.
struct Wrapped {
  void* wrapper = nullptr;
  int entry = 0;
  Driver* driver = nullptr;
};
Wrapped WrappedByName(std::string_view name);
inline void* WrapperByName(std::string_view name) { return WrappedByName(name).wrapper; }

// Returns whether this is a driver's library.
bool IsDriver(const link_map& library);

// Returns the wrapper that calls `function`; `function` itself if there is none, as for a function of another copy of
// the driver (dlmopen). The driver can still be unloaded after that.
void* WrapperOf(void* function);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_DRIVER_SHIM_H_
