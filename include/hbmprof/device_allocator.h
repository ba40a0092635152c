// DeviceAllocator: the interface of an allocator of device memory. TrackingAllocator: records the buffers of another
// DeviceAllocator.
//
//   class MyAllocator : public hbmprof::DeviceAllocator {
//    public:
//     absl::StatusOr<void*> Allocate(size_t bytes) override { ... }
//     absl::Status Free(void* ptr) override { ... }
//     std::string device_name() const override { return "my_device:0"; }
//   };
//
//   MyAllocator memory;
//   hbmprof::TrackingAllocator allocator(memory, "weights");   // use this one from here on
//
// simulated_device.h has an allocator that is ready to use, in a library of its own.
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

// A stream of a device: its work runs in order. 0 is the default stream.
using StreamId = uint64_t;

// Allocates memory of one device. Implementations are thread-safe.
class DeviceAllocator {
 public:
  virtual ~DeviceAllocator() = default;

  // Returns a buffer of at least `bytes` bytes; null for 0 bytes. Errors: kResourceExhausted if the device has no
  // memory left, and others that the implementation describes. After an error nothing is allocated.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // Frees a buffer immediately. Null is ignored. Errors: kInvalidArgument if `ptr` is not a live buffer of this
  // allocator; nothing is changed then.
  virtual absl::Status Free(void* ptr) = 0;

  // Like Allocate and Free, but in the order of `stream`: work that is queued on it after AllocateAsync may use the
  // buffer, and work that is queued on it after FreeAsync may reuse its memory. Errors are as above. The default
  // implementations call Allocate and Free.
  virtual absl::StatusOr<void*> AllocateAsync(size_t bytes, StreamId /*stream*/) { return Allocate(bytes); }
  virtual absl::Status FreeAsync(void* ptr, StreamId /*stream*/) { return Free(ptr); }

  // These functions describe the buffers. device_name is the name of their device, which becomes the label `device`
  // (allocation.h). kind is their kind. Probe returns the device's own numbers (Profiler::SetDeviceProbe).
  virtual std::string device_name() const = 0;
  virtual MemoryKind kind() const { return MemoryKind::kDevice; }
  virtual DeviceProbe Probe() const { return {}; }
};

// A DeviceAllocator that calls `upstream` and records the buffers, with the requested size and the stack of the caller.
// Records that upstream makes during the call have the same stack (ScopedCaller). Each call returns exactly what
// upstream returned, also if recording fails. A call that fails with kResourceExhausted is reported (out_of_memory.h).
// Thread-safe.
//
// Wrap an allocator once. Do not wrap a pool that records its own segments and blocks (RecordSegment, RecordBlock):
// each block would also be recorded as an allocation, and at the beginning of a segment it would replace the segment's
// record. Wrap only the pool's upstream.
//
// The constructor sets upstream's Probe() as the probe of the device, in place of an earlier one. The destructor
// removes it; the device's own numbers are then not known. So if a device has several TrackingAllocators, the probe of
// the last one is in effect.
class TrackingAllocator : public DeviceAllocator {
 public:
  // `upstream` and `profiler` must live longer than this object. `allocator_name`, if it is not empty, becomes the
  // label `allocator`.
  explicit TrackingAllocator(DeviceAllocator& upstream, std::string_view allocator_name = {},
                             Profiler& profiler = Profiler::Default());
  // Keeps the records: buffers that are not freed are still live on the device.
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

  // Returns the id of the device `device_name()` in `profiler`, for example for Profiler::Stats.
  DeviceId device() const { return attributes_.device; }

 private:
  // Records or reports the result of upstream's function `call`, and returns it.
  absl::StatusOr<void*> Recorded(const Caller& caller, std::string_view call, size_t bytes,
                                 absl::StatusOr<void*> ptr) const;

  DeviceAllocator& upstream_;
  Profiler& profiler_;
  const Attributes attributes_;
};

}  // namespace hbmprof

#endif  // HBMPROF_DEVICE_ALLOCATOR_H_
