// The process's own CUDA driver (calls/driver.h) and queries to it. They need no CUDA header. Nothing here creates a
// context, changes the current context of a thread of the program, or changes the runtime's last-error state.
// Everything here is thread-safe.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "hbmprof/allocation.h"
#include "src/backends/calls/driver.h"
#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal {

namespace cuda_driver {
#define CALLS "src/backends/cuda/driver/driver_calls.inc"
#include "src/backends/calls/entries.inc"
#undef CALLS
}  // namespace cuda_driver

class CudaDriverInProcess : public DriverQueries {
 public:
  constexpr CudaDriverInProcess() : DriverQueries(&cuda_driver::driver) {}
  int CurrentDevice() override;
  const void* CurrentContext() override;
  Pointer DescribePointer(const void* address) override;
  Range AddressRange(const void* address) override;
  Capture CaptureOf(const DriverStream& stream) override;
  bool PrimaryContextActive(int device) override;
  std::optional<int64_t> FreeBytes() override;
  std::optional<size_t> PoolBytes(void* pool) override;
  // Returns what the driver and NVML report about the device:
  //   - its size and its UUID, and the processes that have memory of it (NVML);
  //   - the bytes in use: by this process if NVML reports them; else by all processes, if NVML reports them or the
  //     device is the calling thread's current one. Not the latter for an integrated device: they are those of the
  //     whole host;
  //   - the idle bytes of its default pool, and of the other pools and the graphs that the adapter knows.
  // Unknown values stay unset. Never retains a context.
  DeviceProbe Probe(int ordinal, DeviceId id) override;
  bool HasContext() override { return CurrentContext() != nullptr; }
};

// For code without an adapter.
extern CudaDriverInProcess cuda_driver_in_process;

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_
