// The wrappers of the functions that driver_calls.inc lists as wrapped. The functions below find the wrapper for a name
// or for a function of the driver. Everything here is thread-safe.
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

namespace hbmprof::internal {

class CudaMemoryFromBefore;

// Callbacks that src/inject/cuda_preload.cc defines. The wrappers call PrepareCudaTracking before they first use
// Profiler::Default(), possibly in several threads at the same time, CudaTrackingStarts once, after that, and
// CudaMemoryEnds in each tracked call that ends memory, before its records end; OpenCL's layer calls it for each event.
void PrepareCudaTracking();
void CudaTrackingStarts();
void CudaMemoryEnds();
// The wrappers call it after a call of the driver has failed because there was no memory. `caller` is the caller of the
// wrapper. Throws std::bad_alloc if the host has no memory to report the failure.
void CudaAllocationFailed(const FailedAllocation& failure, const Caller& caller);

// The wrappers call it after cuProfilerStart or cuProfilerStop has succeeded.
void CudaProfilerCalled(bool starts);

// The wrappers call it before mapped memory is unmapped (src/inject/injected_profiler.cc).
void CudaMemoryUnmaps(uint64_t address, size_t bytes);

// For attaching. The first function makes the tracker, if there is none; it returns null if the host has no memory. The
// second one measures the devices with an active primary context (CudaMemoryFromBefore::Measure). The third one gives
// the allocation that contains `address`, which is memory from before, a record of its own, and returns whether it did.
CudaMemoryFromBefore* CudaMemoryFromBeforeOfProcess();
void MeasureCudaMemoryFromBefore(int attempts);
bool AdoptCudaMemoryFromBefore(uint64_t address);
// See CudaDriverAdapter::Follow.
void FollowCudaCalls(bool follow);
// Returns the number of outermost tracked calls that have ended, modulo 2^32.
uint32_t EndedCudaCalls();

// Adds the warning that nothing is recorded although hbmprof is attached (attach.cc). Throws std::bad_alloc.
void AddAttachWarnings(Snapshot* snapshot);

// Returns the wrapper of the driver's function `name`, null if that is not wrapped.
void* CudaWrapperByName(std::string_view name);

// Returns whether this is the driver's library.
bool IsCudaDriver(const link_map& library);

// Returns the wrapper that calls `function`; `function` itself if there is none, as for a function of another copy of
// the driver (dlmopen). The driver can still be unloaded after that.
void* CudaWrapperOf(void* function);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_INJECT_DRIVER_SHIM_H_
