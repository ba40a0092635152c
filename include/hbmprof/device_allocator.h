// DeviceAllocator: what every allocator of device memory can do; TrackingAllocator: any of them, with its buffers
// recorded.
//
// Not here: the allocators themselves (simulated_device.h, cuda.h, or your own).
#ifndef HBMPROF_DEVICE_ALLOCATOR_H_
#define HBMPROF_DEVICE_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hbmprof/allocation.h"
#include "hbmprof/profiler.h"

namespace hbmprof {

// A stream of one device, in whose order asynchronous frees take effect. 0 is the default stream.
using StreamId = uint64_t;

// Allocates memory of one device. Implementations are thread-safe.
class DeviceAllocator {
 public:
  virtual ~DeviceAllocator() = default;

  // A buffer of at least `bytes` bytes. Zero bytes give a null pointer and OK. Errors: kResourceExhausted when the
  // device has no room, others as the implementation says; nothing is allocated then.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // Gives `ptr` back at once. Null is ignored. Errors: kInvalidArgument if it is not a live buffer of this allocator.
  virtual absl::Status Free(void* ptr) = 0;

  // The same in stream order: the memory may be used by work queued on `stream` after this call, and is reused only by
  // work after the free. Otherwise as above. By default the plain calls.
  virtual absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream);
  virtual absl::Status FreeAsync(void* ptr, StreamId stream);

  // What the buffers are: device name ("sim:0", "GPU:0") as the `device` label shows it, kind, and the numbers the
  // device knows of itself.
  virtual std::string device_name() const = 0;
  virtual MemoryKind kind() const { return MemoryKind::kDevice; }
  virtual DeviceProbe Probe() const { return {}; }
};

// A DeviceAllocator that passes every call to `upstream` and records what it hands out, at the requested size, with the
// stack of whoever called it. An allocation that fails with kResourceExhausted is reported (out_of_memory.h). What a
// call returns is exactly what upstream returned, whatever happens in the recording. A free that upstream refuses puts
// the record back. Thread-safe.
//
// Makes upstream's Probe() the device's. Of several on one device the last one made is asked; once that one is
// destroyed, the device's own numbers are unknown.
class TrackingAllocator : public DeviceAllocator {
 public:
  // `upstream` and `profiler` must outlive this object. `allocator_name`, if not empty, becomes the label `allocator`.
  explicit TrackingAllocator(DeviceAllocator& upstream, std::string_view allocator_name = {},
                             Profiler& profiler = Profiler::Default());
  // Records stay: buffers not yet freed are still live on the device.
  ~TrackingAllocator() override;
  TrackingAllocator(const TrackingAllocator&) = delete;
  TrackingAllocator& operator=(const TrackingAllocator&) = delete;

  absl::StatusOr<void*> Allocate(size_t bytes) override;
  absl::Status Free(void* ptr) override;
  absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId stream) override;
  absl::Status FreeAsync(void* ptr, StreamId stream) override;
  std::string device_name() const override { return upstream_.device_name(); }
  MemoryKind kind() const override { return upstream_.kind(); }
  DeviceProbe Probe() const override { return upstream_.Probe(); }

  DeviceId device() const { return attributes_.device; }

 private:
  void ReportFailure(std::string_view call, size_t bytes) const;

  DeviceAllocator& upstream_;
  Profiler& profiler_;
  const Attributes attributes_;
};

}  // namespace hbmprof

#endif  // HBMPROF_DEVICE_ALLOCATOR_H_
