// What NVIDIA's management library says of this process's device memory. It is loaded by name on first use, with
// declarations of our own; it needs no context.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_NVML_H_
#define HBMPROF_SRC_BACKENDS_CUDA_NVML_H_

#include <cstdint>

namespace hbmprof::internal {

struct NvmlMemory {
  int64_t total_bytes = -1;
  int64_t used_bytes = -1;     // by all processes
  int64_t process_bytes = -1;  // all that this process holds: allocations, contexts, code. -1 if it does not say
};

// `pci_bus_id` as cuDeviceGetPCIBusId gives it. A process in a container whose process ids NVML does not share is not
// found there.
NvmlMemory QueryNvml(const char* pci_bus_id);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_NVML_H_
