// Queries to the CUDA driver, as an interface and for the process's own driver. They need no CUDA header, and call the
// process's own libcuda if the process has loaded it (driver_table.h). Nothing here creates a context, changes the
// current context of a thread of the program, or changes the runtime's last-error state. Everything here is
// thread-safe.
//
// Not in this file: recording (adapter.h, driver_adapter.h).
#ifndef HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_
#define HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "hbmprof/allocation.h"
#include "hbmprof/profiler.h"

namespace hbmprof::internal {

struct CudaDriverStream {
  void* stream = nullptr;
  bool per_thread_default = false;  // the null stream is the per-thread default stream
};

// The queries that the adapter makes to the driver. No query may change any state of the driver or create a context.
class CudaDriverQueries {
 public:
  struct Pointer {
    int device = -1;  // -1: the driver does not report it
    MemoryKind kind = MemoryKind::kDevice;
  };
  struct Capture {
    bool active = false;
    const void* graph = nullptr;  // the graph that the stream is captured into
  };

  virtual ~CudaDriverQueries() = default;
  // Returns the ordinal of the calling thread's current device, -1 if it has none.
  virtual int CurrentDevice() = 0;
  virtual const void* CurrentContext() = 0;
  virtual Pointer DescribePointer(const void* address) = 0;
  // Returns the size in bytes of the allocation that contains `address`; 0 if the driver does not report it.
  virtual size_t AddressRangeBytes(const void* address) = 0;
  virtual Capture CaptureOf(const CudaDriverStream& stream) = 0;
  virtual bool PrimaryContextActive(int device) = 0;
  // Returns the free bytes of the current device; nullopt if there is no current device.
  virtual std::optional<int64_t> FreeBytes() = 0;
  // Returns the profiler's id of a device.
  virtual DeviceId Device(int ordinal) = 0;
  // Returns the allocator that labels stream-ordered memory.
  virtual AllocatorId StreamOrderedAllocator() = 0;
  // Keeps the device's baseline (DeviceProbe::baseline), unless that has been done. Called after each record of an
  // allocation on the device.
  virtual void KeepBaseline(DeviceId device) = 0;
};

// Returns the attributes of stream-ordered memory at `address`.
inline Attributes StreamOrderedAttributes(CudaDriverQueries& driver, const void* address, bool is_captured) {
  const CudaDriverQueries::Pointer pointer = driver.DescribePointer(address);
  const int device = pointer.device >= 0 ? pointer.device : driver.CurrentDevice();
  return {driver.Device(device), is_captured ? MemoryKind::kGraph : pointer.kind, driver.StreamOrderedAllocator()};
}

// Returns "GPU:<ordinal>".
std::string CudaDeviceName(int ordinal);

// Queries about a device that only the adapter can answer. Both functions are called in the device's probe, so they
// must not call CudaDeviceId. Each function can be empty.
struct CudaAdapterQueries {
  // Calls visit(pool) for each pool of the device except its default pool.
  std::function<void(int ordinal, const std::function<void(void*)>& visit)> pools;
  // Returns the bytes that graphs have in use on the device.
  std::function<int64_t(DeviceId id)> graph_bytes;
};

// Returns the id of a device in Profiler::Default(). For the ordinal -1 it is the id of the device "unknown". Call it
// only if the device is in use: after a call that allocates on it, even if that call has failed. The first call for a
// device sets its probe, which returns what the driver and NVML report about it:
//   - its size and its UUID, and the processes that have memory of it (NVML);
//   - the bytes in use: by this process if NVML reports them; else by all processes, if NVML reports them or the device
//     is the calling thread's current one. Not the latter for an integrated device: they are those of the whole host;
//   - the idle bytes of its default pool, and of the other pools and the graphs that `adapter` knows.
// Unknown values stay unset. The probe never retains a context.
DeviceId CudaDeviceId(int ordinal, const CudaAdapterQueries& adapter = {});

// Returns the allocator of Profiler::Default() that labels stream-ordered memory.
AllocatorId CudaStreamOrderedAllocator();

// Queries the process's driver, for an adapter that records into Profiler::Default().
class CudaDriverInProcess : public CudaDriverQueries {
 public:
  int CurrentDevice() override;
  const void* CurrentContext() override;
  Pointer DescribePointer(const void* address) override;
  size_t AddressRangeBytes(const void* address) override;
  Capture CaptureOf(const CudaDriverStream& stream) override;
  bool PrimaryContextActive(int device) override;
  std::optional<int64_t> FreeBytes() override;
  DeviceId Device(int ordinal) override { return CudaDeviceId(ordinal, adapter_queries_); }
  AllocatorId StreamOrderedAllocator() override { return CudaStreamOrderedAllocator(); }
  void KeepBaseline(DeviceId device) override;

  // REQUIRES: no call was tracked before.
  void SetAdapterQueries(CudaAdapterQueries adapter) { adapter_queries_ = std::move(adapter); }

 private:
  CudaAdapterQueries adapter_queries_;
};

}  // namespace hbmprof::internal

#endif  // HBMPROF_SRC_BACKENDS_CUDA_DRIVER_DRIVER_QUERIES_H_
