// The device memory of processes as NVIDIA's management library (NVML) reports it. The library is loaded by name at the
// first use. It is called through declarations of hbmprof, without its header. It needs no context.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_SHARED_NVML_H_
#define HBMPROF_SRC_BACKENDS_CUDA_SHARED_NVML_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hbmprof/snapshot.h"
#include "src/core/device_driver.h"

namespace hbmprof::internal {

// nullopt: NVML does not report it.
struct NvmlMemory {
  std::optional<int64_t> total_bytes;
  std::optional<int64_t> used_bytes;     // by all processes
  std::optional<int64_t> process_bytes;  // allocations, contexts and code of this process
  std::string uuid;                      // "GPU-..."; of the whole device if it is divided (MIG); empty: unknown
  std::vector<DeviceProcess> processes;  // that compute on the device; empty: unknown
};

// Returns the memory of the device `pci_bus_id`, the string that cuDeviceGetPCIBusId returns. NVML does not find the
// process in a container that does not share its process ids with NVML. Thread-safe.
NvmlMemory QueryNvml(const char* pci_bus_id);

// Sets the limit of the group with the directory `control_group` on the device, if it has one (NVML 615 and later).
// Thread-safe.
void QueryNvmlGroup(const char* pci_bus_id, const char* control_group, DeviceFacts* facts);

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_SHARED_NVML_H_
