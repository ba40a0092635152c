#include "src/backends/calls/adapter.h"

#include <algorithm>
#include <vector>

namespace hbmprof::internal {

void DriverAdapter::Follow(bool follow) {
  pools_.Follow(follow);
  physical_.Clear();
  graphs_.Clear();
  shared_.Clear();
  contexts_.Clear();
}

void DriverAdapter::RecordAsync(const Caller& caller, uint64_t address, size_t bytes, const DriverStream& stream) {
  const DriverQueries::Capture capture = queries_.CaptureOf(stream);
  const Attributes attributes =
      StreamOrderedAttributes(queries_, reinterpret_cast<const void*>(address), capture.active);
  if (capture.graph != nullptr) {
    graphs_.AllocNodeMade(caller, capture.graph, BufferId(address), bytes, attributes);
    return;
  }
  RecordRange(caller, BufferId(address), bytes, attributes);
  HasRecorded(attributes.device);
}

void DriverAdapter::RecordImported(const Caller& caller, uint64_t address) {
  const auto* pointer = reinterpret_cast<const void*>(address);
  const size_t bytes = queries_.AddressRangeBytes(pointer);
  RecordOrDrop(bytes, [&] {
    Attributes attributes = OnCurrentDevice(MemoryKind::kExternal);
    attributes.allocator = queries_.StreamOrderedAllocator();
    RecordRange(caller, pointer, bytes, attributes);
    HasRecorded(attributes.device);
  });
}

void DriverAdapter::RecordNode(const Caller& caller, const void* graph, const GraphNode& node) {
  if (!node.freed.is_null()) graphs_.FreeNodeMade(graph, node.freed);
  if (node.moved != nullptr) graphs_.Moved(node.moved, graph);
  if (node.allocated.is_null()) return;
  const Attributes attributes = {At(node.place).device, MemoryKind::kGraph, queries_.StreamOrderedAllocator()};
  graphs_.AllocNodeMade(caller, graph, node.allocated, node.bytes, attributes);
}

void DriverAdapter::RecordShared(const Caller& caller, uint64_t address, const void* context) {
  const auto* pointer = reinterpret_cast<const void*>(address);
  const size_t bytes = queries_.AddressRangeBytes(pointer);
  RecordOrDrop(bytes, [&] {
    const Attributes attributes = OnCurrentDevice(MemoryKind::kExternal);
    shared_.Open(
        pointer, attributes.device, [&] { RecordRange(caller, pointer, bytes, attributes); }, context);
  });
}

bool DriverAdapter::Remove(BufferId id) {
  if (id.is_null()) return false;
  DriverRanges::Instance().Remove(id.value());
  Forget(id);
  const bool has_ended = profiler_.RecordFree(id).has_value();
  if (!has_ended) RemoveFromBefore(id.value(), 0);
  return has_ended;
}

void DriverAdapter::RemoveFromBefore(uint64_t address, size_t bytes) {
  if (!from_before_.is_expected() || address >> 57 != 0) return;  // a handle has no address
  const auto* const pointer = reinterpret_cast<const void*>(address);
  const DriverQueries::Pointer described = queries_.DescribePointer(pointer);
  if (described.device < 0 || described.kind != MemoryKind::kDevice) return;
  if (bytes == 0) bytes = queries_.AddressRangeBytes(pointer);
  const DeviceId device = queries_.Device(described.device);
  from_before_.Measure(device, kMeasureAttempts);
  from_before_.Remove(device, static_cast<int64_t>(bytes));
}

bool DriverAdapter::AdoptFromBefore(uint64_t address, size_t bytes) {
  // A measurement waits as for a call: the bytes must not count twice between the two changes below.
  const TrackedCall call(from_before_.stack());
  const DriverQueries::Pointer pointer = queries_.DescribePointer(reinterpret_cast<const void*>(address));
  if (!from_before_.is_expected() || pointer.device < 0 || pointer.kind != MemoryKind::kDevice) return false;
  const Attributes attributes = {queries_.Device(pointer.device), pointer.kind, {}};
  if (!RecordRange(from_before_.stack(), BufferId(address), bytes, attributes)) return false;
  from_before_.BecomeSegment(attributes.device, static_cast<int64_t>(bytes));
  return true;
}

bool DriverAdapter::EndContext(const void* context) {
  if (!contexts_.End(context)) return false;
  shared_.RemoveContext(context);
  DriverRanges::Changed();
  return true;
}

void DriverAdapter::EndPrimaryContext(int device) {
  const DeviceId id = queries_.Device(device);
  // The memory of other contexts keeps its records. They are not removed and recorded again, because another thread can
  // free that memory at the same time.
  std::vector<BufferId> kept = physical_.Live();
  for (const std::vector<BufferId>& owned : {contexts_.AllBuffers(), shared_.OfContexts()}) {
    kept.insert(kept.end(), owned.begin(), owned.end());
  }
  // Stream-ordered memory that is a segment has the allocator of its pool.
  ForEachRange([&](const auto& range) {
    if (range.has_allocator) kept.push_back(range.record);
  });
  profiler_.DropDevice(id, queries_.StreamOrderedAllocator(), std::move(kept));
  shared_.RemoveDevice(id);
  DriverRanges::Changed();
}

void DriverAdapter::EndMemory(int device, bool (*stays)(MemoryKind kind)) {
  const DeviceId id = queries_.Device(device);
  std::vector<BufferId> kept;
  const auto keep = [&](BufferId record) {
    const std::optional<LiveBuffer> live = profiler_.FindBuffer(record);
    if (live.has_value() && stays(live->attributes.kind)) kept.push_back(record);
  };
  for (const BufferId record : physical_.Live()) keep(record);
  ForEachRange([&](const auto& range) { keep(range.record); });
  profiler_.DropDevice(id, std::nullopt, std::move(kept));
  shared_.RemoveDevice(id);
  DriverRanges::Changed();
}

DriverAdapter::Measurement DriverAdapter::Measure() {
  if (!profiler_.enabled()) return {};
  return {queries_.FreeBytes(), TrackedCall::Count()};
}

size_t DriverAdapter::BytesSince(const Measurement& before) {
  if (!before.free_bytes.has_value()) return 0;
  const std::optional<int64_t> after = queries_.FreeBytes();
  const bool alone = TrackedCall::Count() == before.calls;
  if (!after.has_value() || !alone) return 0;
  return static_cast<size_t>(std::max<int64_t>(*before.free_bytes - *after, 0));
}

}  // namespace hbmprof::internal
