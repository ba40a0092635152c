// The wrapped calls of driver_calls.inc: which there are, what the driver has of them, and which wrapper stands for
// which function of the driver.
// Not here: how programs come to call the wrappers (src/inject).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_SHIM_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_SHIM_H_

#include <cstdint>
#include <string_view>

#include "hbmprof/allocation.h"

namespace hbmprof::internal {

// Both are defined by whoever links the wrappers. The first is called before Profiler::Default() is first used, perhaps
// by several threads at once; the second once, after that.
void PrepareCudaTracking();
void CudaTrackingStarts();

// See CudaPhysicalMemory::NameByAddress. Not before a driver's call was tracked.
bool NameCudaMappingByAddress(uint64_t address, bool (*rename)(BufferId from, BufferId to));

// The wrapper of the driver's call of that name, null if it is not wrapped.
void* CudaWrapperByName(std::string_view name);

// The wrapper of a function of the driver, `function` itself if it is none of those that are wrapped.
void* CudaWrapperOf(void* function);

// Calls `visit(name, state, note)` for each entry point that matters to memory, in the order of driver_calls.inc:
// "tracked", "passed through" (the note says why, and is empty otherwise), or "absent" from this driver.
using CudaCoverageVisitor = void (*)(const char* name, const char* state, const char* note, void* argument);
void ForEachCudaEntryPoint(CudaCoverageVisitor visit, void* argument);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_SHIM_H_
