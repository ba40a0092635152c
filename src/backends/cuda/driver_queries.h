// Questions to the CUDA driver, for those who know no CUDA header: the process's own libcuda, found by name if the
// process has loaded it, asked by its stable binary interface. Nothing here creates a context, changes the current one,
// or touches the runtime's last-error state.
// Not here: questions to the runtime (queries.h), what is recorded (adapter.h, driver_adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_QUERIES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_QUERIES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "hbmprof/allocation.h"
#include "hbmprof/profiler.h"
#include "src/backends/cuda/driver_adapter.h"

namespace hbmprof::internal {

// "GPU:<ordinal>".
std::string CudaDeviceName(int ordinal);

// What only the adapter knows of a device. It is asked inside the device's probe, so it must not ask for a device's id.
struct CudaAdapterQueries {
  // Calls visit(pool) for each pool of the device but its default one.
  std::function<void(int ordinal, const std::function<void(void*)>& visit)> pools;
  // What graphs have in use.
  std::function<int64_t(DeviceId id)> graph_bytes;
};

// The id of a device of Profiler::Default(), with ProbeCudaDevice as its probe. Call it only when the device is in use:
// after an allocation succeeded. -1 gives the device "unknown". The `books` of the first call for a device stay.
DeviceId CudaDeviceId(int ordinal, const CudaAdapterQueries& adapter = {});

// The allocator of Profiler::Default() that stream-ordered memory is labelled with.
AllocatorId CudaStreamOrderedAllocator();

// The size of the driver's allocation that `ptr` lies in; 0 if the driver does not say.
size_t CudaAddressRangeBytes(const void* ptr);

// What is known of a device: its size; bytes in use, by this process if NVML tells, else by all processes, if NVML
// tells that or the calling thread is on the device; what its default pool holds idle, and, of which the `books` know,
// the other pools and the graphs. Empty while nobody answers. `id` is what the books call it. Never retains a context.
DeviceProbe ProbeCudaDevice(int ordinal, DeviceId id = kDefaultDevice, const CudaAdapterQueries& adapter = {});

// The driver, as the adapter asks it, on behalf of Profiler::Default().
class CudaDriverInProcess : public CudaDriverQueries {
 public:
  int CurrentDevice() override;
  const void* CurrentContext() override;
  Pointer DescribePointer(const void* address) override;
  size_t AddressRangeBytes(const void* address) override;
  Capture CaptureOf(const CudaDriverStream& stream) override;
  bool PrimaryContextActive(int device) override;
  int64_t FreeBytes() override;
  DeviceId Device(int ordinal) override { return CudaDeviceId(ordinal, adapter_queries_); }
  AllocatorId StreamOrderedAllocator() override { return CudaStreamOrderedAllocator(); }
  void Recorded(DeviceId device) override;

  // Before the first call that is tracked.
  void SetAdapterQueries(CudaAdapterQueries adapter) { adapter_queries_ = std::move(adapter); }

 private:
  CudaAdapterQueries adapter_queries_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_QUERIES_H_
