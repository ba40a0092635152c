// The process's own CUDA driver (calls/driver.h) and queries to it. They need no CUDA header. Nothing here creates a
// context, changes the current context of a thread of the program, or changes the runtime's last-error state.
// Everything here is thread-safe.
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "hbmprof/allocation.h"
#include "src/backends/calls/driver.h"
#include "src/backends/cuda/shared/driver_abi.h"

namespace hbmprof::internal {

namespace cuda_driver {
#define CALLS "src/backends/cuda/driver/driver_calls.inc"
#include "src/backends/calls/entries.inc"
#undef CALLS
}  // namespace cuda_driver

// Queries about a device that only the adapter can answer. Both functions are called in the device's probe, so they
// must not call CudaDeviceId. Each function can be empty.
struct CudaAdapterQueries {
  // Calls visit(pool) for each pool of the device except its default pool.
  std::function<void(int ordinal, const std::function<void(void*)>& visit)> pools;
  // Returns the bytes that graphs have in use on the device.
  std::function<int64_t(DeviceId id)> graph_bytes;
};

// Driver::Device with a probe that returns what the driver and NVML report about the device:
//   - its size and its UUID, and the processes that have memory of it (NVML);
//   - the bytes in use: by this process if NVML reports them; else by all processes, if NVML reports them or the device
//     is the calling thread's current one. Not the latter for an integrated device: they are those of the whole host;
//   - the idle bytes of its default pool, and of the other pools and the graphs that `adapter` knows.
// Unknown values stay unset. The probe never retains a context.
DeviceId CudaDeviceId(int ordinal, const CudaAdapterQueries& adapter = {});

class CudaDriverInProcess : public DriverQueries {
 public:
  CudaDriverInProcess() : DriverQueries(&cuda_driver::driver) {}
  int CurrentDevice() override;
  const void* CurrentContext() override;
  Pointer DescribePointer(const void* address) override;
  Range AddressRange(const void* address) override;
  Capture CaptureOf(const DriverStream& stream) override;
  bool PrimaryContextActive(int device) override;
  std::optional<int64_t> FreeBytes() override;
  DeviceId Device(int ordinal) override { return CudaDeviceId(ordinal, adapter_queries_); }
  std::optional<size_t> PoolBytes(void* pool) override;
  bool HasContext() override;

  // REQUIRES: no call was tracked before.
  void SetAdapterQueries(CudaAdapterQueries adapter) { adapter_queries_ = std::move(adapter); }

 private:
  CudaAdapterQueries adapter_queries_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_
