#include "src/backends/cuda/driver/driver_adapter.h"

#include <algorithm>
#include <vector>

namespace hbmprof::internal {

void CudaDriverAdapter::Follow(bool follow) {
  pools_.Follow(follow);
  physical_.Clear();
  graphs_.Clear();
  shared_.Clear();
  contexts_.Clear();
}

Attributes CudaDriverAdapter::At(const cuda_driver::MemLocation& location) {
  const int device = cuda_driver::DeviceOfLocation(location);
  if (device >= 0) return {queries_.Device(device), MemoryKind::kVmm, {}};
  return OnCurrentDevice(IsOnHost(location) ? MemoryKind::kPinnedHost : MemoryKind::kVmm);
}

void CudaDriverAdapter::RecordAsync(const Caller& caller, uint64_t address, size_t bytes,
                                    const CudaDriverStream& stream) {
  const CudaDriverQueries::Capture capture = queries_.CaptureOf(stream);
  const Attributes attributes =
      StreamOrderedAttributes(queries_, reinterpret_cast<const void*>(address), capture.active);
  if (capture.graph != nullptr) {
    graphs_.AllocNodeMade(caller, capture.graph, BufferId(address), bytes, attributes);
    return;
  }
  RecordRange(caller, BufferId(address), bytes, attributes);
  HasRecorded(attributes.device);
}

void CudaDriverAdapter::RecordImported(const Caller& caller, uint64_t address) {
  const auto* pointer = reinterpret_cast<const void*>(address);
  const size_t bytes = queries_.AddressRangeBytes(pointer);
  RecordOrDrop(bytes, [&] {
    Attributes attributes = OnCurrentDevice(MemoryKind::kExternal);
    attributes.allocator = queries_.StreamOrderedAllocator();
    RecordRange(caller, pointer, bytes, attributes);
    HasRecorded(attributes.device);
  });
}

void CudaDriverAdapter::RecordAllocNode(const Caller& caller, const void* graph,
                                        const cuda_driver::MemAllocNodeParams& params) {
  Attributes attributes = At(params.pool.location);
  attributes.kind = MemoryKind::kGraph;
  attributes.allocator = queries_.StreamOrderedAllocator();
  graphs_.AllocNodeMade(caller, graph, BufferId(uint64_t{params.address}), params.bytes, attributes);
}

void CudaDriverAdapter::RecordShared(const Caller& caller, uint64_t address, const void* context) {
  const auto* pointer = reinterpret_cast<const void*>(address);
  const size_t bytes = queries_.AddressRangeBytes(pointer);
  RecordOrDrop(bytes, [&] {
    const Attributes attributes = OnCurrentDevice(MemoryKind::kExternal);
    shared_.Open(
        pointer, attributes.device, [&] { RecordRange(caller, pointer, bytes, attributes); }, context);
  });
}

bool CudaDriverAdapter::Remove(BufferId id) {
  if (id.is_null()) return false;
  CudaDriverRanges::Instance().Remove(id.value());
  Forget(id);
  const bool has_ended = profiler_.RecordFree(id).has_value();
  if (!has_ended) RemoveFromBefore(id.value(), 0);
  return has_ended;
}

void CudaDriverAdapter::RemoveFromBefore(uint64_t address, size_t bytes) {
  if (!from_before_.is_expected() || address >> 57 != 0) return;  // a handle has no address
  const auto* const pointer = reinterpret_cast<const void*>(address);
  const CudaDriverQueries::Pointer described = queries_.DescribePointer(pointer);
  if (described.device < 0 || described.kind != MemoryKind::kDevice) return;
  if (bytes == 0) bytes = queries_.AddressRangeBytes(pointer);
  const DeviceId device = queries_.Device(described.device);
  from_before_.Measure(device, kMeasureAttempts);
  from_before_.Remove(device, static_cast<int64_t>(bytes));
}

bool CudaDriverAdapter::AdoptFromBefore(uint64_t address, size_t bytes) {
  // A measurement waits as for a call: the bytes must not count twice between the two changes below.
  const TrackedCudaCall call(from_before_.stack());
  const CudaDriverQueries::Pointer pointer = queries_.DescribePointer(reinterpret_cast<const void*>(address));
  if (!from_before_.is_expected() || pointer.device < 0 || pointer.kind != MemoryKind::kDevice) return false;
  const Attributes attributes = {queries_.Device(pointer.device), pointer.kind, {}};
  if (!RecordRange(from_before_.stack(), BufferId(address), bytes, attributes)) return false;
  from_before_.BecomeSegment(attributes.device, static_cast<int64_t>(bytes));
  return true;
}

bool CudaDriverAdapter::EndContext(const void* context) {
  if (!contexts_.End(context)) return false;
  shared_.RemoveContext(context);
  CudaDriverRanges::Changed();
  return true;
}

void CudaDriverAdapter::EndPrimaryContext(int device) {
  const DeviceId id = queries_.Device(device);
  // The memory of other contexts keeps its records. They are not removed and recorded again, because another thread can
  // free that memory at the same time.
  std::vector<BufferId> kept = physical_.Live();
  for (const std::vector<BufferId>& owned : {contexts_.AllBuffers(), shared_.OfContexts()}) {
    kept.insert(kept.end(), owned.begin(), owned.end());
  }
  // Stream-ordered memory that is a segment has the allocator of its pool.
  for (CudaDriverRanges::Found found; found.last != UINT64_MAX;) {
    found = CudaDriverRanges::Instance().Find(BufferId(found.last + 1));
    if (found.changes == 0) break;  // inside the profiler
    if (found.range.has_allocator) kept.push_back(found.range.record);
  }
  profiler_.DropDevice(id, queries_.StreamOrderedAllocator(), std::move(kept));
  shared_.RemoveDevice(id);
  CudaDriverRanges::Changed();
}

CudaDriverAdapter::Measurement CudaDriverAdapter::Measure() {
  if (!profiler_.enabled()) return {};
  return {queries_.FreeBytes(), TrackedCudaCall::Count()};
}

size_t CudaDriverAdapter::BytesSince(const Measurement& before) {
  if (!before.free_bytes.has_value()) return 0;
  const std::optional<int64_t> after = queries_.FreeBytes();
  const bool alone = TrackedCudaCall::Count() == before.calls;
  if (!after.has_value() || !alone) return 0;
  return static_cast<size_t>(std::max<int64_t>(*before.free_bytes - *after, 0));
}

}  // namespace hbmprof::internal
