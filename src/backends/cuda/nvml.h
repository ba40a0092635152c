// The device memory of this process as NVIDIA's management library (NVML) reports it. The library is loaded by name at
// the first use. It is called through our own declarations, without its header. It needs no context.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_NVML_H_
#define HBMPROF_SRC_BACKENDS_CUDA_NVML_H_

#include <cstdint>

namespace hbmprof::internal {

struct NvmlMemory {
  int64_t total_bytes = -1;
  int64_t used_bytes = -1;     // by all processes
  int64_t process_bytes = -1;  // allocations, contexts and code of this process; -1: NVML does not report it
};

// Returns the memory of the device `pci_bus_id`, the string that cuDeviceGetPCIBusId returns. NVML does not find the
// process in a container that does not share its process ids with NVML. Thread-safe.
NvmlMemory QueryNvml(const char* pci_bus_id);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_NVML_H_
