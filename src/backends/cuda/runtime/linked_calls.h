// What the tracked forms of the runtime's calls share. They query the driver, so no query changes the runtime's last
// error. Only after a reset of a device, and if the driver names no device of a failed call, the runtime is asked.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_LINKED_CALLS_H_
#define HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_LINKED_CALLS_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "hbmprof/allocation.h"
#include "hbmprof/caller.h"
#include "hbmprof/profiler.h"
#include "src/backends/calls/events.h"

namespace hbmprof::internal {

// Returns Profiler::Default(); null in a process that is off, or if the host has no memory for the profiler.
Profiler* LinkedProfiler();

// Reports a call that has failed because there is no memory (hbmprof/out_of_memory.h), on the current device. Does
// nothing if `profiler` uses the injected library, which has already reported the driver's call.
void ReportCudaOutOfMemory(const Profiler& profiler, const char* call, size_t bytes, MemoryKind kind);

// Tracks a call of the runtime's function `name` that requests `bytes` bytes of this kind: see AllocateAndRecord.
// Reports it if it fails for lack of memory.
template <typename Call, typename Describe, typename AttributesOf>
cudaError_t TrackAllocation(const Caller& caller, const char* name, size_t bytes, MemoryKind kind, const Call& call,
                            const Describe& describe, const AttributesOf& attributes) {
  const ScopedCaller scope(caller);
  Profiler* const profiler = LinkedProfiler();
  if (profiler == nullptr) return call();
  const cudaError_t result = AllocateAndRecord(*profiler, caller, cudaSuccess, call, describe, attributes);
  if (result == cudaErrorMemoryAllocation) ReportCudaOutOfMemory(*profiler, name, bytes, kind);
  return result;
}

// Tracks a call that frees `ptr`: see RemoveAndFree.
template <typename Call>
cudaError_t TrackFree(void* ptr, const Call& call) {
  Profiler* const profiler = LinkedProfiler();
  return profiler == nullptr ? call() : RemoveAndFree(*profiler, ptr, cudaSuccess, call);
}

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_RUNTIME_LINKED_CALLS_H_
