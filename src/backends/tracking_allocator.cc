// TrackingAllocator. See hbmprof/device_allocator.h.
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

#include "hbmprof/caller.h"
#include "hbmprof/device_allocator.h"
#include "hbmprof/out_of_memory.h"

namespace hbmprof {

TrackingAllocator::TrackingAllocator(DeviceAllocator& upstream, std::string_view allocator_name, Profiler& profiler)
    : upstream_(upstream),
      profiler_(profiler),
      attributes_{profiler.Device(upstream.device_name()), upstream.kind(),
                  allocator_name.empty() ? AllocatorId{} : profiler.Allocator(allocator_name)} {
  profiler_.SetDeviceProbe(
      attributes_.device, [this] { return upstream_.Probe(); }, this);
}

TrackingAllocator::~TrackingAllocator() { profiler_.RemoveDeviceProbe(attributes_.device, this); }

// A record is made after the upstream allocation and removed before the upstream free (profiler.h): upstream may give
// another thread the same address as soon as it has freed it. Null pointers are not recorded.

[[gnu::noinline]] absl::StatusOr<void*> TrackingAllocator::Allocate(size_t bytes) {
  const Caller caller = Caller::OfThisFunction();
  const ScopedCaller scope(caller);
  return Recorded(caller, "Allocate", bytes, upstream_.Allocate(bytes));
}

[[gnu::noinline]] absl::StatusOr<void*> TrackingAllocator::AllocateAsync(size_t bytes, StreamId stream) {
  const Caller caller = Caller::OfThisFunction();
  const ScopedCaller scope(caller);
  return Recorded(caller, "AllocateAsync", bytes, upstream_.AllocateAsync(bytes, stream));
}

absl::StatusOr<void*> TrackingAllocator::Recorded(const Caller& caller, std::string_view call, size_t bytes,
                                                  absl::StatusOr<void*> ptr) const {
  if (ptr.ok()) {
    profiler_.RecordAllocFrom(caller, *ptr, bytes, attributes_);
  } else if (absl::IsResourceExhausted(ptr.status())) {
    try {
      const std::string device = upstream_.device_name();
      ReportOutOfMemory({call, bytes, device, SpaceOf(attributes_.kind)}, profiler_);
    } catch (const std::exception&) {  // the host has no memory for the name: the failure is not reported
    }
  }
  return ptr;
}

absl::Status TrackingAllocator::Free(void* ptr) {
  const bool was_recorded = profiler_.RecordFree(ptr).has_value();
  absl::Status status = upstream_.Free(ptr);
  if (!status.ok() && was_recorded) profiler_.RecordRefusedFree();
  return status;
}

absl::Status TrackingAllocator::FreeAsync(void* ptr, StreamId stream) {
  const bool was_recorded = profiler_.RecordFree(ptr).has_value();
  absl::Status status = upstream_.FreeAsync(ptr, stream);
  if (!status.ok() && was_recorded) profiler_.RecordRefusedFree();
  return status;
}

}  // namespace hbmprof
